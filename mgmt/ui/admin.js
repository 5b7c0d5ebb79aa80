// Users, vhosts, policies and definitions.
import { call, del, get, path, put } from "./api.js";
import { badge, bytes, card, facts, fill, h, link, num, objectFacts, rate, table, toast } from "./dom.js";
import { ask, form, formDialog, without } from "./form.js";
import { listPage } from "./list.js";

const TAGS = [
  ["administrator", "everything"], ["policymaker", "policies and parameters of its vhosts"],
  ["monitoring", "sees all vhosts, connections, channels and the node"], ["management", "its vhosts and its own connections"],
];

// admin is the page of one section, below a row of all of them.
export function admin(ctx) {
  const sections = [
    ctx.user.admin && ["users", "Users", users], ctx.user.admin && ["vhosts", "Vhosts", vhosts],
    ["policies", "Policies", policies], ctx.user.admin && ["definitions", "Definitions", definitions],
  ].filter(Boolean);
  const [id, , page] = sections.find(([s]) => s === ctx.rest[0]) ?? sections[0];
  const p = page(ctx, ctx.rest[1]);
  const nav = h("nav", { class: "tabs", "aria-label": "Administration" }, sections.map(([s, title]) => h("a", { href: link("admin", s), "aria-current": s === id && "page" }, title)));
  return { ...p, content: [nav, p.content] };
}

const tagFields = (tags) => TAGS.map(([t, what]) => ({ name: `tag-${t}`, label: t, type: "checkbox", value: tags.includes(t), hint: what }));
const otherTags = (tags) => tags.filter((t) => !TAGS.some(([known]) => known === t)).join(", ");
const tagsOf = (v) => [...TAGS.map(([t]) => t).filter((t) => v[`tag-${t}`]), ...v.others.split(",").map((t) => t.trim()).filter(Boolean)];

function users(ctx, name) {
  if (name !== undefined) return user(ctx, name);
  const create = () => formDialog("New user", [
    { name: "name", label: "Name", required: true },
    { name: "password", label: "Password", type: "password", required: true, autocomplete: "new-password" },
    ...tagFields([]),
    { name: "others", label: "Other tags", hint: "Separated by commas" },
    { name: "all", label: `All permissions in ${ctx.vhost || "/"}`, type: "checkbox", value: true },
  ], "Create", async (v) => {
    const existing = await get(`/users${path(v.name)}`).catch((e) => (e.status === 404 ? null : Promise.reject(e)));
    if (existing !== null) throw new Error(`There is a user ${v.name} already.`);
    await put(`/users${path(v.name)}`, { password: v.password, tags: tagsOf(v) });
    if (v.all) await put(`/permissions${path(ctx.vhost || "/", v.name)}`, { configure: ".*", write: ".*", read: ".*" });
    ctx.refresh();
    return `User ${v.name} is there.`;
  });
  return listPage(ctx, {
    title: "Users", what: "users", sort: "name", where: () => "/users", fields: "name,tags,limits", empty: "There are no users.",
    actions: h("button", { type: "button", class: "primary", onclick: create }, "New user"),
    columns: [
      { title: "Name", sort: "name", class: "name", cell: (u) => h("a", { href: link("admin", "users", u.name) }, u.name) },
      { title: "Tags", cell: (u) => h("span", { class: "badges" }, u.tags.length === 0 ? h("span", { class: "quiet" }, "none: may not log in here") : u.tags.map((t) => badge(t, "Tag", t === "administrator" ? "policy" : ""))) },
      { title: "Limits", cell: (u) => objectFacts(u.limits, "") },
    ],
  });
}

// permissionColumns are what users and vhosts show of permissions; other is "vhost" or "user".
const permissionColumns = (other, where, forget) => [
  { title: other === "vhost" ? "Vhost" : "User", cell: (p) => h("a", { href: link("admin", where, p[other]) }, p[other]) },
  ...["configure", "write", "read"].map((k) => ({ title: k[0].toUpperCase() + k.slice(1), cell: (p) => h("code", {}, p[k] === "" ? "nothing" : p[k]) })),
  { title: "", class: "act", cell: (p) => h("button", { type: "button", class: "small", onclick: () => forget(p) }, "Clear") },
];

// permissionForm gives a user permissions in a vhost; one of both is known.
const permissionForm = (ctx, known, label) => form([
  known.vhost === undefined ? { name: "vhost", label: "Vhost", type: "select", options: ctx.vhosts } : { name: "user", label: "User", required: true },
  ...["configure", "write", "read"].map((name) => ({ name, label: name[0].toUpperCase() + name.slice(1), value: ".*", hint: name === "configure" ? "Regular expressions of names; empty: nothing" : undefined })),
], [{
  text: "Set permissions", run: async (v) => {
    await put(`/permissions${path(known.vhost ?? v.vhost, known.user ?? v.user)}`, { configure: v.configure, write: v.write, read: v.read });
    ctx.refresh();
    return "The permissions are set.";
  },
}], { label });

function user(ctx, name) {
  const where = `/users${path(name)}`;
  const badges = h("span", { class: "badges" }), permissions = h("div", {}), topics = h("div", {});
  let current;
  const clear = (p) => ask("Clear permissions", `${name} can no longer use the vhost ${p.vhost}.`, "Clear", async () => {
    await del(`/permissions${path(p.vhost, name)}`);
    ctx.refresh();
    return "Cleared.";
  });
  const refresh = async (signal) => {
    const [u, list, topicList] = await Promise.all([get(where, {}, signal), get(`${where}/permissions`, {}, signal), get(`${where}/topic-permissions`, {}, signal)]);
    current = u;
    fill(badges, u.tags.length ? u.tags.map((t) => badge(t, "Tag", t === "administrator" ? "policy" : "")) : h("span", { class: "quiet" }, "no tags"));
    fill(permissions, table("Permissions", permissionColumns("vhost", "vhosts", clear), list, "This user can't use any vhost."));
    fill(topics, table("Topic permissions", [
      { title: "Vhost", cell: (p) => p.vhost }, { title: "Exchange", cell: (p) => p.exchange }, { title: "Write", cell: (p) => h("code", {}, p.write) }, { title: "Read", cell: (p) => h("code", {}, p.read) },
    ], topicList, "None: topic exchanges ask for no more than the permissions."));
  };
  const edit = () => formDialog(`Tags of ${name}`, [...tagFields(current.tags), { name: "others", label: "Other tags", value: otherTags(current.tags), hint: "Separated by commas" }], "Save", async (v) => {
    const now = await get(where); // its password may have changed meanwhile
    await put(where, { password_hash: now.password_hash, hashing_algorithm: now.hashing_algorithm, tags: tagsOf(v) });
    ctx.refresh();
    return "The tags are saved.";
  });
  const password = () => formDialog(`New password for ${name}`, [{ name: "password", label: "Password", type: "password", required: true, autocomplete: "new-password" }], "Save", async (v) => {
    await put(where, { password: v.password, tags: (await get(where)).tags });
    return "The password is saved.";
  });
  const remove = () => ask("Delete the user", `${name} can no longer log in, and its connections are closed.`, "Delete", async () => {
    await del(where);
    ctx.leave(link("admin", "users"));
    toast(`User ${name} is deleted.`);
  });
  return {
    title: name, every: 5000, refresh, missing: `There is no user ${name}.`, back: ["admin/users", "All users"],
    content: [
      h("header", { class: "head" },
        h("div", {}, h("h1", {}, name), badges),
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: edit }, "Tags"), h("button", { type: "button", onclick: password }, "Password"), h("button", { type: "button", class: "danger", onclick: remove }, "Delete"))),
      card("Permissions", permissions, permissionForm(ctx, { user: name }, "Set permissions")), card("Topic permissions", topics),
    ],
  };
}

const vhostFields = (v) => [
  { name: "description", label: "Description", value: v?.description },
  { name: "tags", label: "Tags", value: v?.tags?.join(", "), hint: "Separated by commas" },
  { name: "type", label: "Default queue type", type: "select", options: ["classic", "quorum"], value: v?.default_queue_type },
];
const vhostBody = (v) => ({ description: v.description, tags: v.tags, default_queue_type: v.type });

function vhosts(ctx, name) {
  if (name !== undefined) return vhost(ctx, name);
  const create = () => formDialog("New vhost", [{ name: "name", label: "Name", required: true }, ...vhostFields()], "Create", async (v) => {
    if (ctx.vhosts.includes(v.name)) throw new Error(`There is a vhost ${v.name} already.`);
    await put(`/vhosts${path(v.name)}`, vhostBody(v));
    await ctx.loadVHosts();
    ctx.refresh();
    return `Vhost ${v.name} is there.`;
  });
  return listPage(ctx, {
    title: "Vhosts", what: "vhosts", sort: "name", where: () => "/vhosts", empty: "There are no vhosts.",
    fields: "name,description,tags,messages_ready,messages_unacknowledged,message_stats.publish_details.rate,message_stats.deliver_get_details.rate",
    actions: h("button", { type: "button", class: "primary", onclick: create }, "New vhost"),
    columns: [
      { title: "Name", sort: "name", class: "name", cell: (v) => h("a", { href: link("admin", "vhosts", v.name) }, v.name) },
      { title: "Description", cell: (v) => v.description },
      { title: "Tags", cell: (v) => h("span", { class: "badges" }, v.tags.map((t) => badge(t, "Tag"))) },
      { title: "Ready", sort: "messages_ready", num: true, cell: (v) => num(v.messages_ready) },
      { title: "Unacked", sort: "messages_unacknowledged", num: true, cell: (v) => num(v.messages_unacknowledged) },
      { title: "In", num: true, sort: "message_stats.publish_details.rate", cell: (v) => rate(v.message_stats?.publish_details?.rate) },
      { title: "Out", num: true, sort: "message_stats.deliver_get_details.rate", cell: (v) => rate(v.message_stats?.deliver_get_details?.rate) },
    ],
  });
}

function vhost(ctx, name) {
  const where = `/vhosts${path(name)}`;
  const details = h("div", {}), permissions = h("div", {}), limits = h("div", {});
  let current;
  const clear = (p) => ask("Clear permissions", `${p.user} can no longer use the vhost ${name}.`, "Clear", async () => {
    await del(`/permissions${path(name, p.user)}`);
    ctx.refresh();
    return "Cleared.";
  });
  const refresh = async (signal) => {
    const [v, list, bounds] = await Promise.all([get(where, {}, signal), get(`${where}/permissions`, {}, signal), get(`/vhost-limits${path(name)}`, {}, signal)]);
    current = v;
    fill(details, facts([
      ["Description", v.description], ["Tags", v.tags.join(", ")], ["Default queue type", v.default_queue_type || "classic"], ["Ready", num(v.messages_ready)], ["Unacked", num(v.messages_unacknowledged)],
      ["Received", bytes(v.recv_oct)], ["Sent", bytes(v.send_oct)],
    ]));
    fill(permissions, table("Permissions", permissionColumns("user", "users", clear), list, "Nobody may use this vhost."));
    fill(limits, objectFacts(bounds[0]?.value, "No limits."));
  };
  const edit = () => formDialog(`Vhost ${name}`, vhostFields(current), "Save", async (v) => {
    await put(where, vhostBody(v));
    ctx.refresh();
    return "Saved.";
  });
  const remove = () => ask("Delete the vhost", `The vhost ${name} is removed with all of its queues, messages, exchanges and policies, and its connections are closed.`, "Delete", async () => {
    await del(where);
    await ctx.loadVHosts();
    ctx.leave(link("admin", "vhosts"));
    toast(`Vhost ${name} is deleted.`);
  }, name);
  const limit = form([
    { name: "which", label: "Limit", type: "select", options: [["max-queues", "queues"], ["max-connections", "connections"]] },
    { name: "value", label: "At most", type: "number", min: -1, hint: "Empty: no limit" },
  ], [{
    text: "Set limit", run: async (v) => {
      const one = `/vhost-limits${path(name, v.which)}`;
      if (v.value === undefined) await del(one);
      else await put(one, { value: v.value });
      ctx.refresh();
      return "The limit is set.";
    },
  }], { label: "Set a limit" });
  return {
    title: name, every: 5000, refresh, missing: `There is no vhost ${name}.`, back: ["admin/vhosts", "All vhosts"],
    content: [
      h("header", { class: "head" }, h("h1", {}, name),
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: edit }, "Edit"), h("button", { type: "button", class: "danger", onclick: remove }, "Delete"))),
      h("div", { class: "grid two" }, card("Details", details), card("Limits", limits, limit)),
      card("Permissions", permissions, permissionForm(ctx, { vhost: name }, "Set permissions")),
    ],
  };
}

const APPLY = ["all", "queues", "classic_queues", "quorum_queues", "exchanges"];

function policies(ctx) {
  const body = h("div", {}), operator = h("div", {});
  const edit = (kind, p) => formDialog(p ? `Policy ${p.name}` : kind === "policies" ? "New policy" : "New operator policy", [
    { name: "name", label: "Name", required: true, value: p?.name, readonly: p !== undefined },
    p ? null : { name: "vhost", label: "Vhost", type: "select", options: ctx.vhosts, value: ctx.vhost || "/" },
    { name: "pattern", label: "Pattern", value: p?.pattern, placeholder: "^orders\\.", hint: "A regular expression of names", required: true },
    { name: "apply", label: "Applies to", type: "select", options: kind === "policies" ? APPLY : APPLY.filter((a) => a !== "exchanges" && a !== "all"), value: p?.["apply-to"] ?? "queues" },
    { name: "priority", label: "Priority", type: "number", value: p?.priority ?? 0, hint: "The highest that matches is the one" },
    { name: "definition", label: "Definition", type: "json", rows: 5, wide: true, value: JSON.stringify(p?.definition ?? {}, null, 2), hint: 'Such as {"max-length": 1000, "overflow": "reject-publish"}' },
  ].filter(Boolean), "Save", async (v) => {
    await put(`/${kind}${path(p?.vhost ?? v.vhost, p?.name ?? v.name)}`, without({ pattern: v.pattern, "apply-to": v.apply, priority: v.priority, definition: v.definition }));
    ctx.refresh();
    return `Policy ${p?.name ?? v.name} is saved.`;
  });
  const remove = (kind, p) => ask("Delete the policy", `${p.name} no longer applies to what it matches.`, "Delete", async () => {
    await del(`/${kind}${path(p.vhost, p.name)}`);
    ctx.refresh();
    return "The policy is deleted.";
  });
  const list = (kind, rows, mayChange) => table(kind === "policies" ? "Policies" : "Operator policies", [
    { title: "Name", class: "name", cell: (p) => p.name }, { title: "Vhost", cell: (p) => p.vhost }, { title: "Pattern", cell: (p) => h("code", {}, p.pattern) },
    { title: "Applies to", cell: (p) => p["apply-to"] }, { title: "Priority", num: true, cell: (p) => String(p.priority) }, { title: "Definition", cell: (p) => objectFacts(p.definition) },
    { title: "", class: "act", cell: (p) => mayChange && [h("button", { type: "button", class: "small", onclick: () => edit(kind, p) }, "Edit"), " ", h("button", { type: "button", class: "small", onclick: () => remove(kind, p) }, "Delete")] },
  ], rows, "There are none.");
  const refresh = async (signal) => {
    const scope = ctx.vhost ? path(ctx.vhost) : "";
    const [mine, operators] = await Promise.all([get(`/policies${scope}`, {}, signal), get(`/operator-policies${scope}`, {}, signal)]);
    fill(body, list("policies", mine, true));
    fill(operator, list("operator-policies", operators, ctx.user.admin));
  };
  return {
    title: "Policies", vhosts: true, every: 5000, refresh,
    content: [
      h("header", { class: "head" }, h("h1", {}, "Policies"), h("div", { class: "buttons" }, h("button", { type: "button", class: "primary", onclick: () => edit("policies") }, "New policy"))),
      h("section", { class: "card flush" }, body),
      h("header", { class: "head" }, h("h2", {}, "Operator policies"), h("div", { class: "buttons" }, ctx.user.admin && h("button", { type: "button", onclick: () => edit("operator-policies") }, "New operator policy"))),
      h("p", { class: "note" }, "They set bounds that policies and arguments can't exceed."),
      h("section", { class: "card flush" }, operator),
    ],
  };
}

function definitions(ctx) {
  const choices = [["", "the whole broker"], ...ctx.vhosts.map((v) => [v, `vhost ${v}`])];
  const of = (v) => `/definitions${v === "" ? "" : path(v)}`;
  const save = form([{ name: "vhost", label: "Of", type: "select", options: choices }], [{
    text: "Export", run: async (v) => {
      const all = await get(of(v.vhost));
      const url = URL.createObjectURL(new Blob([JSON.stringify(all, null, 2)], { type: "application/json" }));
      h("a", { href: url, download: `firemq-${v.vhost === "" ? "definitions" : v.vhost.replace(/[^\w.-]+/g, "_")}-${new Date().toISOString().slice(0, 10)}.json` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
      return "Exported.";
    },
  }], { label: "Export definitions" });
  const restore = form([
    { name: "vhost", label: "Into", type: "select", options: choices },
    { name: "file", label: "File", type: "file", accept: ".json,application/json", required: true },
  ], [{
    text: "Import", run: async (v) => {
      let body;
      try {
        body = JSON.parse(await v.file.text());
      } catch (e) {
        throw new Error(`${v.file.name} is not JSON: ${e.message}`);
      }
      await call("POST", of(v.vhost), { body });
      await ctx.loadVHosts();
      return `${v.file.name} is imported.`;
    },
  }], { label: "Import definitions" });
  return {
    title: "Definitions", every: 0, refresh: async () => {},
    content: [
      h("header", { class: "head" }, h("h1", {}, "Definitions")),
      h("p", { class: "note" }, "Users, vhosts, permissions, queues, exchanges, bindings and policies as one JSON file, in RabbitMQ's format. Messages are not in it; hashes of passwords are."),
      h("div", { class: "grid two" },
        card("Export", save),
        card("Import", h("p", { class: "note" }, "The file is checked as a whole before anything changes. What exists stays; users, permissions and policies are replaced."), restore)),
    ],
  };
}
