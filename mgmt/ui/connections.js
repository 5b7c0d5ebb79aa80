// Connections and channels: their lists, and the page of one.
import { del, get, path } from "./api.js";
import { Chart, drawRates, rates, window } from "./chart.js";
import { badge, bytes, card, compact, date, duration, facts, fill, h, link, num, objectFacts, rate, show, table, tile } from "./dom.js";
import { formDialog } from "./form.js";
import { listPage } from "./list.js";
import { consumerTable } from "./queues.js";

const state = (s) => badge(s, "State", s === "running" ? "good" : "warn");
const octets = (d) => `${bytes(Math.round(d?.rate ?? 0))}/s`;

export function connections(ctx) {
  if (ctx.rest.length === 1) return connection(ctx, ctx.rest[0]);
  return listPage(ctx, {
    title: "Connections", what: "connections", sort: "name", where: () => "/connections",
    fields: "name,user_provided_name,user,vhost,state,protocol,ssl,channels,connected_at,recv_oct_details.rate,send_oct_details.rate",
    empty: "Nobody is connected.",
    columns: [
      { title: "Name", sort: "name", class: "name", cell: (c) => [h("a", { href: link("connections", c.name) }, c.user_provided_name || c.name), c.user_provided_name && h("small", {}, c.name)] },
      { title: "Vhost", sort: "vhost", cell: (c) => c.vhost },
      { title: "User", sort: "user", cell: (c) => c.user },
      { title: "State", sort: "state", cell: (c) => state(c.state) },
      { title: "Protocol", sort: "protocol", cell: (c) => [c.protocol, c.ssl && [" ", badge("TLS", "Encrypted")]] },
      { title: "Channels", sort: "channels", num: true, cell: (c) => num(c.channels) },
      { title: "From client", sort: "recv_oct_details.rate", num: true, cell: (c) => octets(c.recv_oct_details) },
      { title: "To client", sort: "send_oct_details.rate", num: true, cell: (c) => octets(c.send_oct_details) },
      { title: "Connected", sort: "connected_at", num: true, cell: (c) => duration(Date.now() - c.connected_at) },
    ],
  });
}

const channelColumns = [
  { title: "Channel", sort: "name", class: "name", cell: (c) => h("a", { href: link("channels", c.name) }, c.name) },
  { title: "User", sort: "user", cell: (c) => c.user },
  { title: "Mode", cell: (c) => h("span", { class: "badges" }, c.confirm && badge("confirms", "Publishes are confirmed"), c.transactional && badge("tx", "Transactional")) },
  { title: "Consumers", sort: "consumer_count", num: true, cell: (c) => num(c.consumer_count) },
  { title: "Prefetch", sort: "prefetch_count", num: true, cell: (c) => (c.prefetch_count ? num(c.prefetch_count) : "unlimited") },
  { title: "Unacked", sort: "messages_unacknowledged", num: true, cell: (c) => num(c.messages_unacknowledged) },
  { title: "Unconfirmed", sort: "messages_unconfirmed", num: true, cell: (c) => num(c.messages_unconfirmed) },
  { title: "Publish", sort: "message_stats.publish_details.rate", num: true, cell: (c) => rate(c.message_stats?.publish_details?.rate) },
  { title: "Deliver", sort: "message_stats.deliver_get_details.rate", num: true, cell: (c) => rate(c.message_stats?.deliver_get_details?.rate) },
  { title: "Ack", sort: "message_stats.ack_details.rate", num: true, cell: (c) => rate(c.message_stats?.ack_details?.rate) },
];

export function channels(ctx) {
  if (ctx.rest.length === 1) return channel(ctx, ctx.rest[0]);
  return listPage(ctx, {
    title: "Channels", what: "channels", sort: "name", where: () => "/channels",
    fields: "name,user,confirm,transactional,consumer_count,prefetch_count,messages_unacknowledged,messages_unconfirmed,message_stats.publish_details.rate,message_stats.deliver_get_details.rate,message_stats.ack_details.rate",
    empty: "There are no channels.", columns: channelColumns,
  });
}

function connection(ctx, name) {
  const where = `/connections${path(name)}`;
  const badges = h("span", { class: "badges" }), details = h("div", {}), client = h("div", {}), list = h("div", {});
  const flow = new Chart("Bytes a second");
  const refresh = async (signal) => {
    const [c, channels] = await Promise.all([get(where, window(60), signal), get(`${where}/channels`, {}, signal)]);
    fill(badges, state(c.state), badge(c.protocol, "Protocol"), c.ssl && badge("TLS", "Encrypted"));
    flow.draw([
      { name: "From client", points: rates(c.recv_oct_details), text: octets(c.recv_oct_details), rate: true },
      { name: "To client", points: rates(c.send_oct_details), text: octets(c.send_oct_details), rate: true },
    ], 60, (n) => bytes(Math.round(n)));
    fill(details, facts([
      ["User", c.user], ["Vhost", c.vhost], ["Client", `${c.peer_host}:${c.peer_port}`], ["Connected", `${date(c.connected_at)}, ${duration(Date.now() - c.connected_at)} ago`],
      ["Login", c.auth_mechanism], ["Heartbeat", c.timeout ? `${c.timeout} s` : "off"], ["Largest frame", bytes(c.frame_max)], ["Channels", `${num(c.channels)} of ${num(c.channel_max)}`],
      ["Received", bytes(c.recv_oct)], ["Sent", bytes(c.send_oct)],
    ]));
    fill(client, objectFacts(Object.fromEntries(Object.entries(c.client_properties).map(([k, v]) => [k, show(v)])), "It says nothing of itself."));
    fill(list, table("Channels", channelColumns, channels, "It has no channels."));
  };
  const close = () => formDialog("Close the connection", [{ name: "reason", label: "Reason, for the client", value: "Closed by an operator", wide: true }], "Close it", async (v) => {
    await del(where, {}, { "X-Reason": v.reason.replace(/[^\x20-\x7e]/g, "?") });
    ctx.leave(link("connections"));
    return "The connection is closed.";
  }, { kind: "danger" });
  return {
    title: name, every: 3000, refresh, missing: "This connection is closed.", back: ["connections", "All connections"],
    content: [
      h("header", { class: "head" },
        h("div", {}, h("p", { class: "crumbs" }, h("a", { href: link("connections") }, "Connections")), h("h1", {}, name), badges),
        h("div", { class: "buttons" }, h("button", { type: "button", class: "danger", onclick: close }, "Close"))),
      h("div", { class: "grid two" }, flow.el, card("Details", details)), card("Channels", list), card("What the client says of itself", client),
    ],
  };
}

function channel(ctx, name) {
  const where = `/channels${path(name)}`;
  const tiles = h("div", { class: "tiles" }), details = h("div", {}), consumers = h("div", {});
  const flow = new Chart("Rates");
  const refresh = async (signal) => {
    const c = await get(where, window(60), signal);
    fill(tiles,
      tile("Unacked", compact(c.messages_unacknowledged), "deliveries not settled"),
      tile("Unconfirmed", compact(c.messages_unconfirmed), c.confirm ? "publishes on their way" : "confirms are off"),
      tile("Prefetch", c.prefetch_count ? num(c.prefetch_count) : "unlimited", c.global_prefetch_count ? `${num(c.global_prefetch_count)} for the channel` : "for each consumer"),
      tile("Consumers", num(c.consumer_count)));
    drawRates(flow, c.message_stats, { publish: "Publish", confirm: "Confirm", deliver_get: "Deliver", ack: "Ack" }, 60);
    fill(details, facts([
      ["Connection", h("a", { href: link("connections", c.connection_details.name) }, c.connection_details.name)], ["Number", String(c.number)], ["User", c.user], ["Vhost", c.vhost],
      ["Mode", c.transactional ? "transactional" : c.confirm ? "publishes are confirmed" : "no confirms"],
      ["In the transaction", c.transactional ? `${num(c.messages_uncommitted)} publishes, ${num(c.acks_uncommitted)} acks` : null],
    ]));
    fill(consumers, consumerTable(c.consumer_details, true));
  };
  return {
    title: name, every: 3000, refresh, missing: "This channel is closed.", back: ["channels", "All channels"],
    content: [
      h("header", { class: "head" }, h("div", {}, h("p", { class: "crumbs" }, h("a", { href: link("channels") }, "Channels")), h("h1", {}, name))),
      tiles, h("div", { class: "grid two" }, flow.el, card("Details", details)), card("Consumers", consumers),
    ],
  };
}
