// The state of the whole broker.
import { get } from "./api.js";
import { Chart, drawLengths, drawRates, window } from "./chart.js";
import { bytes, card, compact, duration, facts, fill, h, link, num, rate, table, tile } from "./dom.js";

const RANGES = [[60, "1 min"], [600, "10 min"], [3600, "1 hour"]];

const meter = (label, value, limit, text, high) =>
  h("div", { class: "meter" }, h("div", {}, h("span", {}, label), h("b", {}, text)),
    limit > 0 && h("progress", { max: limit, value: Math.min(value, limit), class: high ? "high" : "", "aria-label": label }));

function node(n) {
  const diskLimit = n.disk_free_limit > 0;
  return [
    meter("Memory", n.mem_used, n.mem_limit, n.mem_limit > 0 ? `${bytes(n.mem_used)} of ${bytes(n.mem_limit)}` : bytes(n.mem_used), n.mem_alarm),
    meter("Open files", n.fd_used, n.fd_total, `${num(n.fd_used)} of ${num(n.fd_total)}`),
    facts([
      ["Disk free", n.disk_free > 0 ? `${bytes(n.disk_free)}${diskLimit ? `, alarm below ${bytes(n.disk_free_limit)}` : ""}` : null],
      ["Uptime", duration(n.uptime)],
      ["Data", n.db_dir || "in memory only"],
      ["Processors", num(n.processors)],
    ]),
  ];
}

export function overview(ctx) {
  let seconds = Number(ctx.query.get("range") ?? 60);
  const tiles = h("div", { class: "tiles" });
  const counts = h("div", { class: "tiles small" });
  const lengths = new Chart("Queued messages");
  const flow = new Chart("Message rates");
  const machine = h("div", {});
  const ports = h("div", {});
  const range = h("select", { "aria-label": "Time shown", onchange: () => {
    seconds = Number(range.value);
    ctx.query.set("range", seconds);
    ctx.remember(ctx.query);
    ctx.refresh();
  } }, RANGES.map(([s, text]) => h("option", { value: s, selected: s === seconds }, `Last ${text}`)));

  const refresh = async (signal) => {
    const [o, nodes] = await Promise.all([
      get("/overview", { ...window(seconds), columns: "cluster_name,product_version,queue_totals,message_stats,object_totals,listeners,churn_rates" }, signal),
      ctx.user.monitors ? get("/nodes", { columns: "mem_used,mem_limit,mem_alarm,disk_free,disk_free_limit,fd_used,fd_total,uptime,db_dir,processors" }, signal) : [],
    ]);
    const q = o.queue_totals, m = o.message_stats ?? {}, n = o.object_totals, churn = o.churn_rates ?? {};
    const r = (name) => rate(m[`${name}_details`]?.rate);
    fill(tiles,
      tile("Ready", compact(q.messages_ready), "to be delivered"),
      tile("Unacked", compact(q.messages_unacknowledged), "to be settled"),
      tile("Published", r("publish"), `${compact(m.publish ?? 0)} in all`),
      tile("Delivered", r("deliver_get"), `${compact(m.deliver_get ?? 0)} in all`),
      tile("Acknowledged", r("ack"), `${compact(m.ack ?? 0)} in all`),
      tile("Unroutable", rate((m.return_unroutable_details?.rate ?? 0) + (m.drop_unroutable_details?.rate ?? 0)), `${compact((m.return_unroutable ?? 0) + (m.drop_unroutable ?? 0))} in all`));
    fill(counts,
      tile("Connections", num(n.connections), `${compact(churn.connection_created ?? 0)} opened`, link("connections")),
      tile("Channels", num(n.channels), `${compact(churn.channel_created ?? 0)} opened`, link("channels")),
      tile("Queues", num(n.queues), `${compact(churn.queue_created ?? 0)} created`, link("queues")),
      tile("Exchanges", num(n.exchanges), null, link("exchanges")),
      tile("Consumers", num(n.consumers)));
    drawLengths(lengths, q, seconds);
    drawRates(flow, m, { publish: "Publish", confirm: "Confirm", deliver_get: "Deliver", ack: "Ack", redeliver: "Redeliver" }, seconds);
    fill(machine, nodes.map(node));
    fill(ports, table("Ports", [
      { title: "Protocol", cell: (l) => l.protocol },
      { title: "Address", cell: (l) => l.ip_address },
      { title: "Port", num: true, cell: (l) => String(l.port) },
      { title: "TLS", cell: (l) => (l.tls ? "yes" : "no") },
    ], o.listeners ?? [], "None is shown to this user."));
  };

  return {
    title: "Overview", every: 5000, refresh,
    content: [
      h("header", { class: "head" }, h("h1", {}, "Overview"), h("div", { class: "buttons" }, range)),
      tiles, h("div", { class: "grid two" }, lengths.el, flow.el), counts,
      ctx.user.monitors && h("div", { class: "grid two" }, card("Node", machine), card("Ports", ports)),
    ],
  };
}
