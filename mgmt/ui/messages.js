// What the pages of queues and exchanges have in common: publishing, reading and binding.
import { del, exchangeName, get, path, post } from "./api.js";
import { badge, bytes, card, date, duration, fill, h, link, num, objectFacts, show, table } from "./dom.js";
import { ask, dialog, form, without } from "./form.js";

const SHOWN = 50_000; // bytes of a payload that are fetched

// publisher is a form that publishes to an exchange; key: the routing key, unless the user gives it.
export function publisher(ctx, vhost, exchange, key) {
  const list = [
    key === undefined && { name: "routing_key", label: "Routing key" },
    { name: "payload", label: "Payload", type: "text", rows: 6, wide: true },
    { name: "encoding", label: "Payload is", type: "select", options: [["string", "text"], ["base64", "base64"]] },
    { name: "delivery_mode", label: "Delivery", type: "select", options: [["2", "persistent"], ["1", "transient"]] },
    { name: "headers", label: "Headers", type: "json", hint: 'A JSON object, such as {"x-delay": 5000}' },
  ].filter(Boolean);
  const texts = ["content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id", "app_id"];
  const more = { title: "More properties", fields: [...texts.map((name) => ({ name, label: name })), { name: "priority", label: "priority", type: "number", min: 0, max: 255 }, { name: "timestamp", label: "timestamp", type: "number" }] };
  return form(list, [{
    text: "Publish", run: async (v) => {
      const properties = without(Object.fromEntries([...texts, "priority", "timestamp"].map((k) => [k, v[k]])));
      properties.delivery_mode = Number(v.delivery_mode);
      if (Object.keys(v.headers).length > 0) properties.headers = v.headers;
      const { routed } = await post(`/exchanges${path(vhost, exchangeName(exchange))}/publish`, { routing_key: key ?? v.routing_key, payload: v.payload, payload_encoding: v.encoding, properties });
      ctx.refresh();
      if (!routed) throw new Error("The message was published, but no queue took it: nothing is bound for its routing key.");
      return "Published.";
    },
  }], { label: "Publish a message", more });
}

// payload shows JSON with its indentation, and the rest as it is.
function payload(m) {
  let text = m.payload;
  if (m.payload_encoding === "string" && m.payload_bytes <= SHOWN && /^\s*[[{]/.test(text)) {
    try {
      text = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // It only looks like JSON.
    }
  }
  return h("pre", { tabindex: "0", "aria-label": "Payload" }, text);
}

// message shows one message, got or browsed; box is what selects it.
function message(m, box) {
  const { headers, ...properties } = m.properties;
  const shown = m.payload_encoding === "base64" ? Math.floor((m.payload.length * 3) / 4) : new TextEncoder().encode(m.payload).length;
  return h("article", { class: "message" },
    h("header", {},
      m.sequence && h(box ? "label" : "span", { class: "inline", title: "The queue's own number of it" }, box, `#${m.sequence}`),
      h("span", {}, h("span", { class: "quiet" }, "exchange "), m.exchange === "" ? "(default)" : m.exchange),
      h("span", {}, h("span", { class: "quiet" }, "key "), m.routing_key),
      h("span", { class: "quiet" }, bytes(m.payload_bytes)),
      m.payload_encoding === "base64" && badge("base64", "The payload is not text"),
      m.redelivered && badge(m.delivery_count > 0 ? `redelivered ${num(m.delivery_count)} times` : "redelivered", "It was delivered before"),
      m.unreadable && badge("damaged", "Its record on disk can't be read", "warn"),
      m.age > 0 && h("span", { class: "quiet" }, `here for ${duration(m.age)}`),
      m.due_at && h("span", { class: "quiet" }, `due ${date(m.due_at)}`),
      m.expires_at && h("span", { class: "quiet" }, `expires ${date(m.expires_at)}`)),
    m.unacked && h("p", { class: "holder" }, `Delivered ${duration(m.unacked.unacked_age)} ago to ${m.unacked.user}, ${m.unacked.consumer_tag ? `consumer ${m.unacked.consumer_tag}` : "by a get"}, on `, h("a", { href: link("connections", m.unacked.connection) }, m.unacked.connection)),
    Object.keys(properties).length > 0 && objectFacts(Object.fromEntries(Object.entries(properties).map(([k, v]) => [k, k === "delivery_mode" ? (v === 2 ? "persistent" : "transient") : k === "timestamp" ? date(v * 1000) : show(v)]))),
    Object.keys(headers ?? {}).length > 0 && [h("h4", {}, "Headers"), objectFacts(headers)],
    payload(m),
    shown + 2 < m.payload_bytes && h("small", {}, `The first ${bytes(shown)} of ${bytes(m.payload_bytes)}.`));
}

const DEEDS = {
  move: { title: "Move", done: "moved", to: true, text: "They come last in the other queue and are gone from this one." },
  copy: { title: "Copy", done: "copied", to: true, text: "They stay here; the copies come last in the other queue." },
  replay: { title: "Replay", done: "replayed", through: true, text: "Dead letters go back to the queue in which they died. Messages that are no dead letters stay here." },
  delete: { title: "Delete", done: "deleted", kind: "danger", text: "They can't be brought back." },
};

const STEP = 5000; // messages of one request: so often progress is shown, and Cancel is heard

// treat asks how, and then treats messages in steps until it is through or the user leaves. picked are sequence numbers;
// without any, all that fit the filter are meant. then is called when something was done.
function treat(vhost, queue, name, picked, filter, then) {
  const deed = DEEDS[name];
  const which = picked.length > 0 ? { sequences: picked } : filter ? { filter } : { all: true };
  const whichText = picked.length > 0 ? (picked.length === 1 ? "The message that is selected." : `The ${num(picked.length)} messages that are selected.`)
    : filter ? "Ready messages that fit the search, those first that are delivered first." : "Ready messages of the queue, those first that are delivered first.";
  const said = h("p", { class: "quiet", "aria-live": "polite" });
  const run = async (v, el, close) => {
    const limit = picked.length || v.limit;
    const body = without({ ...which, to: v.to, through_exchange: v.through_exchange || undefined });
    let done = 0, failed = 0, reason, next = { more: true };
    try {
      while (next.more && done < limit && el.isConnected) {
        next = await post(`/queues${path(vhost, queue)}/messages/${name}`, { ...body, cursor: next.cursor, limit: Math.min(STEP, limit - done) });
        done += next.done;
        failed += next.failed;
        reason ??= next.reason;
        fill(said, `${num(done)} ${deed.done}…`);
      }
    } catch (e) {
      if (done === 0) throw e;
      reason = e.message; // what is done is done
    } finally {
      fill(said);
      if (done > 0) then();
    }
    const gone = picked.length > 0 && el.isConnected ? picked.length - done - failed : 0;
    const told = [`${num(done)} ${deed.done}.`, failed > 0 && `${num(failed)} stay where they are.`, reason, gone > 0 && `${num(gone)} are no longer there.`].filter(Boolean).join(" ");
    if (failed > 0 || reason || gone > 0) {
      if (el.isConnected) throw new Error(told);
      return told;
    }
    close();
    return told;
  };
  dialog(`${deed.title} messages`, (close) => [h("p", {}, whichText, " ", deed.text), form([
    deed.to && { name: "to", label: "To the queue", required: true },
    deed.through && { name: "through_exchange", label: "Publish them to their exchange again", type: "checkbox", hint: "to all queues that are bound now, instead of the one in which they died" },
    picked.length === 0 && { name: "limit", label: "At most", type: "number", value: 1000, min: 1, required: true },
  ].filter(Boolean), [
    { text: deed.title, kind: deed.kind, run: (v, el) => run(v, el, close) },
    { text: "Cancel", leave: close },
  ], { label: `${deed.title} messages` }), said]);
}

const named = (text) => {
  if (!text) return undefined;
  const at = text.indexOf("=");
  return at < 0 ? { [text]: null } : { [text.slice(0, at)]: text.slice(at + 1) };
};

// filterOf is a search as the body of a request has it; undefined if it is for all messages.
function filterOf(v) {
  const filter = without({ body: v.body, routing_key: v.routing_key, exchange: v.exchange, headers: named(v.header), properties: named(v.property), older_than: v.older_than, newer_than: v.newer_than });
  return Object.keys(filter).length > 0 ? { ...filter, use_regex: v.use_regex } : undefined;
}

// browser pages through a queue and searches it, without disturbing it, and treats what is selected or found.
function browser(ctx, vhost, queue) {
  const out = h("div", { class: "messages" });
  const more = h("div", { class: "buttons" });
  const said = h("p", { class: "quiet", "aria-live": "polite" });
  const tools = h("div", { class: "tools", role: "group", "aria-label": "What to do with messages", hidden: true });
  const all = h("input", { type: "checkbox", onchange: () => (boxes.forEach((b) => (b.checked = all.checked)), count()) });
  const target = h("span", { class: "quiet", "aria-live": "polite" });
  let shown, looked, boxes, filter, last;
  const picked = () => boxes.filter((b) => b.checked).map((b) => Number(b.value));
  const count = () => {
    const n = picked().length;
    all.checked = n > 0 && n === boxes.length;
    all.indeterminate = n > 0 && n < boxes.length;
    fill(target, n > 0 ? `${num(n)} selected` : `none selected: all that ${filter ? "fit" : "are ready"}`);
  };
  tools.append(h("label", { class: "inline" }, all, "Select all shown"), target, h("div", { class: "buttons" }, Object.entries(DEEDS).map(([name, deed]) =>
    h("button", { type: "button", class: `small ${deed.kind ?? ""}`, onclick: () => treat(vhost, queue, name, picked(), filter, () => (browse(last).catch((e) => fill(said, e.message)), ctx.refresh())) }, `${deed.title}…`))));
  const page = async (query, cursor) => {
    const b = await get(`/queues${path(vhost, queue)}/messages`, { ...query, cursor });
    looked += b.scanned;
    shown += b.messages.length;
    out.append(...b.messages.map((m) => {
      if (m.state !== "ready") return message(m);
      const box = h("input", { type: "checkbox", value: m.sequence, "aria-label": `Select message ${m.sequence}`, onchange: count });
      boxes.push(box);
      return message(m, box);
    }));
    fill(said, shown === 0 && !b.more ? "No message fits." : `${num(shown)} shown, ${num(looked)} looked at${b.more ? "; there are more" : ""}.`);
    fill(more, b.more && h("button", { type: "button", onclick: () => page(query, b.cursor).catch((e) => fill(said, e.message)) }, "More"));
    tools.hidden = query.state !== "ready" || shown === 0;
    count();
  };
  const browse = async (v) => {
    out.replaceChildren();
    shown = looked = 0;
    boxes = [];
    filter = filterOf(v);
    last = v;
    await page({ ...without(v), use_regex: v.use_regex ? "true" : undefined, truncate: SHOWN });
  };
  const el = form([
    { name: "state", label: "Messages that are", type: "select", options: ["ready", "unacked", "delayed"] },
    { name: "body", label: "Text in the body" },
    { name: "routing_key", label: "Routing key" },
    { name: "header", label: "Header", hint: "name, or name=value" },
  ], [{ text: "Browse", run: browse }], {
    label: "Browse messages", more: {
      title: "More filters", fields: [
        { name: "count", label: "Messages on a page", type: "number", value: 20, min: 1, max: 1000, required: true },
        { name: "exchange", label: "Exchange" },
        { name: "property", label: "Property", hint: "name, or name=value" },
        { name: "older_than", label: "Here longer than (s)", type: "number", min: 0 },
        { name: "newer_than", label: "Here shorter than (s)", type: "number", min: 0 },
        { name: "use_regex", label: "Regular expressions", type: "checkbox", hint: "for body, routing key and values" },
      ],
    },
  });
  return [h("p", { class: "note" }, "Looking changes nothing: order, counts and marks of redelivery stay. What is ready can then be moved, copied, replayed or deleted."), el, said, tools, out, more];
}

// holders lists who has the messages that are not acknowledged, those first that were delivered first.
function holders(vhost, queue) {
  const out = h("div", { class: "messages", "aria-live": "polite" });
  const channel = (m) => `${m.connection} (${m.channel})`;
  const el = form([{ name: "count", label: "Deliveries", type: "number", value: 100, min: 1, max: 10_000, required: true }], [{
    text: "List", run: async (v) => {
      const list = await get(`/queues${path(vhost, queue)}/unacked`, { count: v.count });
      fill(out, table("Deliveries", [
        { title: "Message", cell: (m) => `#${m.sequence}` },
        { title: "Delivered", cell: (m) => `${duration(m.unacked_age)} ago` },
        { title: "To", cell: (m) => (m.consumer_tag ? h("code", {}, m.consumer_tag) : "a get") },
        { title: "User", cell: (m) => m.user },
        { title: "Channel", cell: (m) => h("a", { href: link("channels", channel(m)) }, channel(m)) },
        { title: "Delivery tag", num: true, cell: (m) => num(m.delivery_tag) },
        { title: "Size", num: true, cell: (m) => bytes(m.payload_bytes) },
        { title: "", cell: (m) => m.redelivered && badge("redelivered", "It was delivered before") },
      ], list, "Nobody holds a message."));
    },
  }], { label: "List deliveries" });
  return [h("p", { class: "note" }, "Deliveries that are not acknowledged, the oldest first. Closing the connection gives them to others."), el, out];
}

// messagesOf are the ways to see the messages of a queue.
export const messagesOf = (ctx, vhost, queue) => [card("Browse and search", browser(ctx, vhost, queue)), card("Who holds messages", holders(vhost, queue)), card("Peek or take", reader(ctx, vhost, queue))];

// reader gets messages from a queue as a consumer does: it puts them back, or takes them.
function reader(ctx, vhost, queue) {
  const out = h("div", { class: "messages", "aria-live": "polite" });
  const fetchThem = async (v, ackmode) => {
    const list = await post(`/queues${path(vhost, queue)}/get`, { count: v.count, ackmode, encoding: v.encoding, truncate: SHOWN });
    fill(out, list.length === 0 ? h("p", { class: "empty" }, "No message is ready.") : list.map((m) => message(m)));
    ctx.refresh();
    return list.length;
  };
  const el = form([
    { name: "count", label: "Messages", type: "number", value: 10, min: 1, max: 1000, required: true },
    { name: "encoding", label: "Show payloads as", type: "select", options: [["auto", "text where possible"], ["base64", "base64"]] },
  ], [
    { text: "Peek", run: async (v) => void (await fetchThem(v, "ack_requeue_true")) },
    {
      text: "Take", kind: "danger", run: async (v) => void ask("Take messages", `Up to ${num(v.count)} messages are shown here and are gone from the queue.`, "Take", async () => `${num(await fetchThem(v, "ack_requeue_false"))} taken.`),
    },
  ], { label: "Read messages" });
  return [h("p", { class: "note" }, "Peek puts the messages back: they are marked as redelivered, and the queue's delivery limit counts it. Take removes them."), el, out];
}

export const exchangeLink = (vhost, name) => h("a", { href: link("exchanges", vhost, exchangeName(name)) }, name === "" ? "(default)" : name);

// end names what a binding leads to.
const end = (b) => h("a", { href: b.destination_type === "queue" ? link("queues", b.vhost, b.destination) : link("exchanges", b.vhost, exchangeName(b.destination)) }, b.destination);

// bindingTable lists bindings, with the end that the page is not about.
export function bindingTable(ctx, list, other, empty) {
  const unbind = (b) => ask("Unbind", `Messages from ${b.source} with the key "${b.routing_key}" no longer reach ${b.destination}.`, "Unbind", async () => {
    await del(`/bindings${path(b.vhost, "e", b.source, b.destination_type[0], exchangeName(b.destination), b.properties_key)}`);
    ctx.refresh();
    return "Unbound.";
  });
  return table("Bindings", [
    other === "source" ? { title: "From exchange", cell: (b) => exchangeLink(b.vhost, b.source) } : { title: "To", cell: (b) => [end(b), " ", badge(b.destination_type, "")] },
    { title: "Routing key", cell: (b) => h("code", {}, b.routing_key) },
    { title: "Arguments", cell: (b) => objectFacts(b.arguments, "") },
    { title: "", class: "act", cell: (b) => b.source !== "" && h("button", { type: "button", class: "small", onclick: () => unbind(b) }, "Unbind") },
  ], list, empty);
}

// binder is a form that binds; from and to are given, or asked for.
export function binder(ctx, vhost, { from, to }) {
  const list = [
    from === undefined && { name: "source", label: "From exchange", required: true },
    to === undefined && { name: "kind", label: "To", type: "select", options: [["q", "queue"], ["e", "exchange"]] },
    to === undefined && { name: "destination", label: "Its name", required: true },
    { name: "routing_key", label: "Routing key" },
    { name: "arguments", label: "Arguments", type: "json", hint: 'For a headers exchange, such as {"x-match": "any", "kind": "order"}' },
  ].filter(Boolean);
  return form(list, [{
    text: "Bind", run: async (v, el) => {
      await post(`/bindings${path(vhost, "e", from ?? v.source, to?.kind ?? v.kind, to?.name ?? v.destination)}`, { routing_key: v.routing_key, arguments: v.arguments });
      el.reset();
      ctx.refresh();
      return "Bound.";
    },
  }], { label: "Bind" });
}

// tabs is a row of panels, one shown; which one is in the address.
export function tabs(ctx, list) {
  const shown = list.find((t) => t.id === ctx.query.get("tab")) ?? list[0];
  const panels = list.map((t) => h("div", { role: "tabpanel", id: `panel-${t.id}`, "aria-labelledby": `tab-${t.id}`, hidden: t !== shown }, t.content));
  const pick = (i, focus) => {
    buttons.forEach((b, j) => {
      b.setAttribute("aria-selected", i === j);
      b.tabIndex = i === j ? 0 : -1;
      panels[j].hidden = i !== j;
    });
    if (focus) buttons[i].focus();
    ctx.query.set("tab", list[i].id);
    ctx.remember(ctx.query);
  };
  const buttons = list.map((t, i) => h("button", {
    type: "button", role: "tab", id: `tab-${t.id}`, "aria-controls": `panel-${t.id}`, "aria-selected": String(t === shown), tabindex: t === shown ? 0 : -1,
    onclick: () => pick(i),
    onkeydown: (e) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (step) pick((i + step + list.length) % list.length, true);
    },
  }, t.title));
  return [h("div", { class: "tabs", role: "tablist" }, buttons), panels];
}
