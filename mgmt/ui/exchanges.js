// Exchanges: the list, and the page of one.
import { del, exchangeName, get, path, put } from "./api.js";
import { Chart, drawRates, window } from "./chart.js";
import { badge, card, facts, fill, h, link, objectFacts, rate, toast } from "./dom.js";
import { ask, formDialog } from "./form.js";
import { listPage } from "./list.js";
import { binder, bindingTable, exchangeLink, publisher, tabs } from "./messages.js";

const TYPES = ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-random", "x-local-random", "x-message-deduplication", "x-delayed-message"];

const features = (x) => [
  x.durable && badge("D", "Durable: survives a restart"),
  x.auto_delete && badge("AD", "Deleted with its last binding"),
  x.internal && badge("I", "Internal: clients can't publish to it"),
  x.arguments?.["alternate-exchange"] && badge("AE", `Alternate exchange: ${x.arguments["alternate-exchange"]}`),
  x.policy && badge(x.policy, "Policy", "policy"),
];

function create(ctx) {
  formDialog("New exchange", [
    { name: "name", label: "Name", required: true },
    { name: "vhost", label: "Vhost", type: "select", options: ctx.vhosts, value: ctx.vhost || "/" },
    { name: "type", label: "Type", type: "select", options: TYPES },
    { name: "alternate", label: "Alternate exchange", hint: "Gets what matches no binding" },
    { name: "durable", label: "Durable", type: "checkbox", value: true },
    { name: "auto_delete", label: "Delete with its last binding", type: "checkbox" },
    { name: "internal", label: "Internal", type: "checkbox" },
    { name: "arguments", label: "Arguments", type: "json", wide: true },
  ], "Create", async (v) => {
    const args = v.alternate ? { "alternate-exchange": v.alternate, ...v.arguments } : v.arguments;
    await put(`/exchanges${path(v.vhost, v.name)}`, { type: v.type, durable: v.durable, auto_delete: v.auto_delete, internal: v.internal, arguments: args });
    ctx.refresh();
    return `Exchange ${v.name} is there.`;
  });
}

export function exchanges(ctx) {
  if (ctx.rest.length === 2) return exchange(ctx, ctx.rest[0], ctx.rest[1] === "amq.default" ? "" : ctx.rest[1]);
  return listPage(ctx, {
    title: "Exchanges", what: "exchanges", vhosts: true, sort: "name",
    where: () => (ctx.vhost ? `/exchanges${path(ctx.vhost)}` : "/exchanges"),
    fields: "name,vhost,type,durable,auto_delete,internal,arguments,policy,message_stats.publish_in_details.rate,message_stats.publish_out_details.rate",
    actions: h("button", { type: "button", class: "primary", onclick: () => create(ctx) }, "New exchange"),
    empty: "There are no exchanges here.",
    columns: [
      { title: "Name", sort: "name", class: "name", cell: (x) => exchangeLink(x.vhost, x.name) },
      { title: "Vhost", sort: "vhost", cell: (x) => x.vhost },
      { title: "Type", sort: "type", cell: (x) => x.type },
      { title: "Features", cell: (x) => h("span", { class: "badges" }, features(x)) },
      { title: "In", hint: "Published to it", sort: "message_stats.publish_in_details.rate", num: true, cell: (x) => rate(x.message_stats?.publish_in_details?.rate) },
      { title: "Out", hint: "Routed to queues", sort: "message_stats.publish_out_details.rate", num: true, cell: (x) => rate(x.message_stats?.publish_out_details?.rate) },
    ],
  });
}

function exchange(ctx, vhost, name) {
  const where = `/exchanges${path(vhost, exchangeName(name))}`;
  const shown = name === "" ? "(default)" : name;
  const badges = h("span", { class: "badges" }), details = h("div", {}), from = h("div", {}), to = h("div", {});
  const flow = new Chart("Rates");
  const builtIn = name === "" || name.startsWith("amq.");

  const refresh = async (signal) => {
    const [x, source, destination] = await Promise.all([
      get(where, window(60), signal),
      name === "" ? [] : get(`${where}/bindings/source`, {}, signal),
      name === "" ? [] : get(`${where}/bindings/destination`, {}, signal),
    ]);
    fill(badges, badge(x.type, "Type"), features(x));
    drawRates(flow, x.message_stats, { publish_in: "In", publish_out: "Out" }, 60);
    fill(details, facts([["Vhost", x.vhost], ["Type", x.type], ["Durable", x.durable ? "yes" : "no"], ["Auto-delete", x.auto_delete ? "yes" : "no"], ["Internal", x.internal ? "yes" : "no"], ["Policy", x.policy]]), h("h3", {}, "Arguments"), objectFacts(x.arguments));
    fill(from, bindingTable(ctx, source, "destination", name === "" ? "Every queue is bound here by its name." : "Nothing is bound: what is published here reaches nobody."));
    fill(to, bindingTable(ctx, destination, "source", "No exchange leads here."));
  };
  const remove = () => ask("Delete the exchange", `The exchange ${shown} and its bindings are removed.`, "Delete", async () => {
    await del(where);
    ctx.leave(link("exchanges"));
    toast(`Exchange ${shown} is deleted.`);
  });

  return {
    title: shown, every: 3000, refresh, missing: `There is no exchange ${shown} in the vhost ${vhost}.`, back: ["exchanges", "All exchanges"],
    content: [
      h("header", { class: "head" },
        h("div", {}, h("p", { class: "crumbs" }, h("a", { href: link("exchanges") }, "Exchanges"), " in vhost ", vhost), h("h1", {}, shown), badges),
        h("div", { class: "buttons" }, !builtIn && h("button", { type: "button", class: "danger", onclick: remove }, "Delete"))),
      tabs(ctx, [
        { id: "state", title: "State", content: h("div", { class: "grid two" }, flow.el, card("Details", details)) },
        { id: "bindings", title: "Bindings", content: [card("From this exchange", from), name !== "" && [card("To this exchange", to), card("Bind to it", binder(ctx, vhost, { from: name }))]] },
        { id: "publish", title: "Publish", content: card("Publish a message", publisher(ctx, vhost, name)) },
      ]),
    ],
  };
}
