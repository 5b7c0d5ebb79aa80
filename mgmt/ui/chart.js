// Line charts from the API's samples.
import { clock, compact, fill, h, svg } from "./dom.js";

const HEIGHT = 170, LEFT = 46, RIGHT = 8, TOP = 10, BOTTOM = 22;

// The parameters of a query that asks for samples of the last seconds.
export function window(seconds) {
  const incr = Math.max(5, Math.round(seconds / 60 / 5) * 5);
  const w = {};
  for (const kind of ["lengths", "msg_rates", "data_rates"]) {
    w[`${kind}_age`] = seconds;
    w[`${kind}_incr`] = incr;
  }
  return w;
}

// levels are the points of a number that goes up and down; the newest sample comes first.
export const levels = (details) => (details?.samples ?? []).map((s) => [s.timestamp, s.sample]).reverse();

// rates are the changes a second of a counter.
export function rates(details) {
  const all = levels(details);
  return all.slice(1).map(([t, v], i) => [t, Math.max(0, (v - all[i][1]) * 1000) / (t - all[i][0])]);
}

// axis gives the end of an axis that holds max, and the step between its lines.
function axis(max) {
  if (max <= 0) return [1, 1];
  const power = 10 ** Math.floor(Math.log10(max / 3));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s * 4 >= max) ?? 10 * power;
  return [Math.ceil(max / step) * step, step];
}

// Chart is one chart with its legend. draw shows series: { name, points, text }, over the last seconds; text is the
// number of now.
export class Chart {
  constructor(title) {
    this.title = title;
    this.legend = h("div", { class: "legend" });
    this.when = h("span", { class: "quiet when" });
    this.plot = h("div", { class: "plot" });
    this.el = h("section", { class: "card chart" }, h("header", {}, h("h2", {}, title), this.when), this.plot, this.legend);
    this.plot.onpointermove = (e) => this.point(e.clientX - this.plot.getBoundingClientRect().left);
    this.plot.onpointerleave = () => this.point(null);
    new ResizeObserver(() => this.series && this.render()).observe(this.plot);
  }

  draw(series, seconds, format = compact) {
    Object.assign(this, { series, seconds, format });
    this.render();
  }

  point(x) {
    this.at = x;
    if (this.series) this.render();
  }

  render() {
    const width = Math.max(this.plot.clientWidth, 240);
    const drawn = this.series.map((s) => (s.points.length === 1 && !s.rate ? [[s.points[0][0] - this.seconds * 1000, s.points[0][1]], ...s.points] : s.points));
    const end = Math.max(...drawn.flat().map(([t]) => t), 0) || Date.now();
    const start = end - this.seconds * 1000;
    const [top, step] = axis(Math.max(...drawn.flat().map(([, v]) => v), 0));
    const x = (t) => LEFT + ((t - start) / (end - start)) * (width - LEFT - RIGHT);
    const y = (v) => TOP + (1 - v / top) * (HEIGHT - TOP - BOTTOM);
    const f = (n) => n.toFixed(1);

    const grid = [];
    for (let v = 0; v <= top + step / 2; v += step) {
      grid.push(svg("line", { class: v === 0 ? "base" : "grid", x1: LEFT, x2: width - RIGHT, y1: f(y(v)), y2: f(y(v)) }));
      grid.push(svg("text", { x: LEFT - 6, y: f(y(v) + 4), "text-anchor": "end" }, this.format(v)));
    }
    const marks = width > 420 ? 4 : 2;
    for (let i = 0; i <= marks; i++) {
      const t = start + ((end - start) * i) / marks;
      grid.push(svg("text", { x: f(x(t)), y: HEIGHT - 6, "text-anchor": i === 0 ? "start" : i === marks ? "end" : "middle" }, clock(t)));
    }
    const lines = drawn.map((points, i) => {
      const inside = points.filter(([t]) => t >= start);
      return inside.length > 1 && svg("polyline", { class: `line s${i}`, points: inside.map(([t, v]) => `${f(x(t))},${f(y(v))}`).join(" ") });
    });

    // Under the pointer: the sample nearest to it.
    let nearest = null;
    const times = [...new Set(drawn.flat().map(([t]) => t))].filter((t) => t >= start);
    if (this.at !== null && this.at !== undefined && times.length > 0) {
      nearest = times.reduce((a, t) => (Math.abs(x(t) - this.at) < Math.abs(x(a) - this.at) ? t : a));
    }
    const cursor = nearest !== null && svg("line", { class: "cursor", x1: f(x(nearest)), x2: f(x(nearest)), y1: TOP, y2: HEIGHT - BOTTOM });
    const value = (points, text) => {
      if (nearest === null) return text;
      const p = points.find(([t]) => t === nearest);
      return p ? this.format(p[1]) : "–";
    };
    fill(this.when, nearest === null ? `last ${this.seconds < 3600 ? `${this.seconds / 60} min` : "hour"}` : clock(nearest));
    fill(this.legend, this.series.map((s, i) => h("span", { class: "key" }, h("i", { class: `swatch s${i}` }), s.name, h("b", {}, value(drawn[i], s.text)))));
    const label = `${this.title}: ${this.series.map((s) => `${s.name} ${s.text}`).join(", ")}`;
    fill(this.plot, svg("svg", { role: "img", "aria-label": label, width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` }, grid, lines, cursor));
  }
}

// drawLengths and drawRates show what the API gives of a queue, a channel or all.
export function drawLengths(chart, o, seconds) {
  chart.draw([
    { name: "Ready", points: levels(o.messages_ready_details), text: compact(o.messages_ready) },
    { name: "Unacked", points: levels(o.messages_unacknowledged_details), text: compact(o.messages_unacknowledged) },
    { name: "Total", points: levels(o.messages_details), text: compact(o.messages) },
  ], seconds);
}

export function drawRates(chart, stats, names, seconds) {
  const each = (n) => `${compact(n < 10 ? Math.round(n * 10) / 10 : Math.round(n))}/s`;
  chart.draw(Object.entries(names).map(([field, name]) => {
    const details = stats?.[`${field}_details`];
    return { name, points: rates(details), text: each(details?.rate ?? 0), rate: true };
  }), seconds, each);
}
