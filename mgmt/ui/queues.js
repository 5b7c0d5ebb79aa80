// Queues: the list, and the page of one.
import { del, get, path, put } from "./api.js";
import { Chart, drawLengths, drawRates, window } from "./chart.js";
import { badge, bytes, card, compact, date, duration, facts, fill, h, link, num, objectFacts, rate, table, tile, toast } from "./dom.js";
import { ask, formDialog, without } from "./form.js";
import { listPage } from "./list.js";
import { binder, bindingTable, messagesOf, publisher, tabs } from "./messages.js";

const MARKS = {
  "x-message-ttl": ["TTL", "Messages expire"], "x-expires": ["Exp", "The queue expires when it is unused"],
  "x-max-length": ["Lim", "Bounded number of messages"], "x-max-length-bytes": ["Lim B", "Bounded size"],
  "x-dead-letter-exchange": ["DLX", "Dead letters go to an exchange"], "x-max-priority": ["Pri", "Messages have priorities"],
  "x-single-active-consumer": ["SAC", "One consumer at a time"],
};

export const features = (q) => [
  q.durable && badge("D", "Durable: survives a restart"),
  q.auto_delete && badge("AD", "Deleted with its last consumer"),
  q.exclusive && badge("Excl", "Belongs to one connection"),
  Object.keys(q.arguments ?? {}).map((k) => MARKS[k] && badge(MARKS[k][0], `${MARKS[k][1]}: ${JSON.stringify(q.arguments[k])}`)),
  q.policy && badge(q.policy, "Policy", "policy"),
  q.operator_policy && badge(q.operator_policy, "Operator policy", "policy"),
];

const r = (q, name) => rate(q.message_stats?.[`${name}_details`]?.rate);

function create(ctx) {
  formDialog("New queue", [
    { name: "name", label: "Name", required: true },
    { name: "vhost", label: "Vhost", type: "select", options: ctx.vhosts, value: ctx.vhost || "/" },
    { name: "type", label: "Type", type: "select", options: [["", "default of the vhost"], "classic", "quorum"] },
    { name: "durable", label: "Durable", type: "checkbox", value: true },
    { name: "auto_delete", label: "Delete with its last consumer", type: "checkbox" },
    { name: "arguments", label: "Arguments", type: "json", wide: true, hint: 'A JSON object, such as {"x-max-priority": 5}' },
  ], "Create", async (v) => {
    const args = without({ "x-queue-type": v.type, "x-message-ttl": v.ttl, "x-max-length": v.length, "x-dead-letter-exchange": v.dlx, "x-dead-letter-routing-key": v.dlk, "x-max-priority": v.priority });
    await put(`/queues${path(v.vhost, v.name)}`, { durable: v.durable, auto_delete: v.auto_delete, arguments: { ...args, ...v.arguments } });
    ctx.refresh();
    return `Queue ${v.name} is there.`;
  }, {
    more: {
      title: "Limits and dead letters", fields: [
        { name: "ttl", label: "Messages expire after (ms)", type: "number", min: 0 },
        { name: "length", label: "At most so many messages", type: "number", min: 0 },
        { name: "dlx", label: "Dead letter exchange" },
        { name: "dlk", label: "Dead letter routing key" },
        { name: "priority", label: "Highest priority", type: "number", min: 1, max: 255 },
      ],
    },
  });
}

export function queues(ctx) {
  if (ctx.rest.length === 2) return queue(ctx, ...ctx.rest);
  return listPage(ctx, {
    title: "Queues", what: "queues", vhosts: true, sort: "name",
    where: () => (ctx.vhost ? `/queues${path(ctx.vhost)}` : "/queues"),
    fields: "name,vhost,type,durable,auto_delete,exclusive,arguments,policy,operator_policy,messages,messages_ready,messages_unacknowledged,messages_delayed,oldest_message_age,consumers,message_stats.publish_details.rate,message_stats.deliver_get_details.rate,message_stats.ack_details.rate",
    actions: h("button", { type: "button", class: "primary", onclick: () => create(ctx) }, "New queue"),
    empty: "There are no queues here yet.",
    columns: [
      { title: "Name", sort: "name", class: "name", cell: (q) => h("a", { href: link("queues", q.vhost, q.name) }, q.name) },
      { title: "Vhost", sort: "vhost", cell: (q) => q.vhost },
      { title: "Type", sort: "type", cell: (q) => q.type },
      { title: "Features", cell: (q) => h("span", { class: "badges" }, features(q)) },
      { title: "Ready", sort: "messages_ready", num: true, cell: (q) => num(q.messages_ready) },
      { title: "Unacked", sort: "messages_unacknowledged", num: true, cell: (q) => num(q.messages_unacknowledged) },
      { title: "Delayed", sort: "messages_delayed", num: true, cell: (q) => num(q.messages_delayed) },
      { title: "Total", sort: "messages", num: true, cell: (q) => num(q.messages) },
      { title: "Oldest", hint: "How long the oldest ready message has waited", sort: "oldest_message_age", num: true, cell: (q) => (q.oldest_message_age > 0 ? duration(q.oldest_message_age) : "–") },
      { title: "Consumers", sort: "consumers", num: true, cell: (q) => num(q.consumers) },
      { title: "In", hint: "Published", sort: "message_stats.publish_details.rate", num: true, cell: (q) => r(q, "publish") },
      { title: "Out", hint: "Delivered and got", sort: "message_stats.deliver_get_details.rate", num: true, cell: (q) => r(q, "deliver_get") },
      { title: "Ack", hint: "Acknowledged", sort: "message_stats.ack_details.rate", num: true, cell: (q) => r(q, "ack") },
    ],
  });
}

// consumerTable lists consumers; of a channel with their queues.
export const consumerTable = (list, ofChannel) => table("Consumers", [
  { title: "Consumer tag", cell: (c) => h("code", {}, c.consumer_tag) },
  ofChannel
    ? { title: "Queue", cell: (c) => h("a", { href: link("queues", c.queue.vhost, c.queue.name) }, c.queue.name) }
    : { title: "Channel", cell: (c) => h("a", { href: link("channels", c.channel_details.name) }, c.channel_details.name) },
  { title: "User", cell: (c) => c.channel_details.user },
  { title: "Acks", cell: (c) => (c.ack_required ? "manual" : "automatic") },
  { title: "Prefetch", num: true, cell: (c) => (c.prefetch_count ? num(c.prefetch_count) : "unlimited") },
  { title: "State", cell: (c) => (c.exclusive ? "exclusive" : c.activity_status.replace("_", " ")) },
], list, "Nobody consumes.");

function queue(ctx, vhost, name) {
  const where = `/queues${path(vhost, name)}`;
  const badges = h("span", { class: "badges" });
  const tiles = h("div", { class: "tiles" });
  const lengths = new Chart("Messages");
  const flow = new Chart("Rates");
  const details = h("div", {}), policies = h("div", {}), consumers = h("div", {}), bindings = h("div", {});

  const refresh = async (signal) => {
    const [q, bound] = await Promise.all([get(where, window(60), signal), get(`${where}/bindings`, {}, signal)]);
    fill(badges, badge(q.type, "Type"), features(q));
    fill(tiles,
      tile("Ready", compact(q.messages_ready), q.oldest_message_age > 0 ? `${bytes(q.message_bytes_ready)}, the oldest ${duration(q.oldest_message_age)}` : bytes(q.message_bytes_ready)),
      tile("Unacked", compact(q.messages_unacknowledged), bytes(q.message_bytes_unacknowledged)),
      q.messages_delayed > 0 && tile("Delayed", compact(q.messages_delayed), bytes(q.message_bytes_delayed)),
      tile("In", r(q, "publish"), `${compact(q.message_stats?.publish ?? 0)} published`),
      tile("Out", r(q, "deliver_get"), `${compact(q.message_stats?.deliver_get ?? 0)} delivered`),
      tile("Consumers", num(q.consumers), q.consumers ? (q.consumer_capacity > 0 ? "can take more" : "all are busy") : "nobody consumes"));
    drawLengths(lengths, q, 60);
    drawRates(flow, q.message_stats, { publish: "Publish", deliver_get: "Deliver", ack: "Ack", redeliver: "Redeliver" }, 60);
    fill(details, facts([
      ["Vhost", q.vhost], ["Type", q.type], ["Durable", q.durable ? "yes" : "no"], ["Auto-delete", q.auto_delete ? "yes" : "no"],
      ["Owner", q.owner_pid_details && h("a", { href: link("connections", q.owner_pid_details.name) }, q.owner_pid_details.name)],
      ["Persistent", `${num(q.messages_persistent)} messages, ${bytes(q.message_bytes_persistent)}`],
      ["Oldest ready message", q.oldest_message_age > 0 ? `since ${date(Date.now() - q.oldest_message_age)}` : null],
      ["Next one's timestamp", q.head_message_timestamp ? date(q.head_message_timestamp * 1000) : null],
      ["Memory", bytes(q.memory)],
      ["Repetitions refused", q.messages_deduplicated ? num(q.messages_deduplicated) : null],
      ["Active consumer", q.single_active_consumer_tag],
    ]), h("h3", {}, "Arguments"), objectFacts(q.arguments));
    fill(policies, facts([["Policy", q.policy ?? "none"], ["Operator policy", q.operator_policy ?? "none"]]), h("h3", {}, "In effect"), objectFacts(q.effective_policy_definition));
    fill(consumers, consumerTable(q.consumer_details));
    fill(bindings, bindingTable(ctx, bound.filter((b) => b.source !== ""), "source", "Only the default exchange leads here, with the queue's name as routing key."));
  };

  const purge = () => ask("Purge the queue", `All messages of ${name} that are ready are removed. They can't be brought back.`, "Purge", async () => {
    await del(`${where}/contents`);
    ctx.refresh();
    return "Purged.";
  });
  const remove = () => ask("Delete the queue", `The queue ${name}, its messages and its bindings are removed.`, "Delete", async () => {
    await del(where);
    ctx.leave(link("queues"));
    toast(`Queue ${name} is deleted.`);
  }, name.length < 60 ? name : undefined);

  return {
    title: name, every: 3000, refresh, missing: `There is no queue ${name} in the vhost ${vhost}.`, back: ["queues", "All queues"],
    content: [
      h("header", { class: "head" },
        h("div", {}, h("p", { class: "crumbs" }, h("a", { href: link("queues") }, "Queues"), " in vhost ", vhost), h("h1", {}, name), badges),
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: purge }, "Purge"), h("button", { type: "button", class: "danger", onclick: remove }, "Delete"))),
      tiles,
      tabs(ctx, [
        { id: "state", title: "State", content: [h("div", { class: "grid two" }, lengths.el, flow.el), h("div", { class: "grid two" }, card("Details", details), card("Policies", policies)), card("Consumers", consumers)] },
        { id: "bindings", title: "Bindings", content: [card("Bindings", bindings), card("Bind to an exchange", binder(ctx, vhost, { to: { kind: "q", name } }))] },
        { id: "publish", title: "Publish", content: card("Publish a message to this queue", publisher(ctx, vhost, "", name)) },
        { id: "messages", title: "Messages", content: messagesOf(ctx, vhost, name) },
      ]),
    ],
  };
}
