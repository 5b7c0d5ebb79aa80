// Elements without markup: what the broker sends only ever becomes text nodes and attributes.

const SVG = "http://www.w3.org/2000/svg";

function element(el, props, children) {
  el.handlers = {};
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) {
      el.handlers[name] = value;
      el[name] = value;
    } else if (name === "value" || name === "checked" || name === "selected" || name === "disabled") {
      el[name] = value;
    } else {
      el.setAttribute(name, value === true ? "" : value);
    }
  }
  el.append(...nodes(children));
  return el;
}

// h makes an HTML element: h("a", { href, onclick }, "text", [more], null).
export const h = (tag, props, ...children) => element(document.createElement(tag), props, children);

// svg makes an element of a drawing.
export const svg = (tag, props, ...children) => element(document.createElementNS(SVG, tag), props, children);

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((c) => c !== null && c !== undefined && c !== false && c !== "")
    .map((c) => (c instanceof Node ? c : document.createTextNode(String(c))));
}

// fill makes children the content of parent. What is alike stays, so that focus and selection survive a refresh.
export function fill(parent, ...children) {
  const next = nodes(children);
  next.forEach((node, i) => {
    const old = parent.childNodes[i];
    if (old === undefined) parent.append(node);
    else if (old === node) return;
    else if (old.nodeType !== node.nodeType || old.nodeName !== node.nodeName || old.id !== node.id) old.replaceWith(node);
    else if (node.nodeType === Node.TEXT_NODE) old.data !== node.data && (old.data = node.data);
    else update(old, node);
  });
  while (parent.childNodes.length > next.length) parent.lastChild.remove();
}

function update(old, node) {
  for (const { name } of [...old.attributes]) if (!node.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of Object.keys({ ...old.handlers, ...node.handlers })) old[name] = node.handlers?.[name] ?? null;
  old.handlers = node.handlers;
  fill(old, ...node.childNodes);
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const num = (n) => (n === undefined || n === null ? "–" : whole.format(n));
export const compact = (n) => (n < 10_000 ? (Number.isInteger(n) ? whole : tenth).format(n) : short.format(n));
export const rate = (r) => (r ? `${compact(Math.abs(r) < 10 ? r : Math.round(r))}/s` : "0/s");

export function bytes(n) {
  if (n === undefined || n === null || n < 0) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${tenth.format(n)} ${units[i]}`;
}

export function duration(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  const d = Math.floor(s / 86400), hours = Math.floor(s / 3600) % 24, min = Math.floor(s / 60) % 60;
  if (d > 0) return `${d} d ${hours} h`;
  if (hours > 0) return `${hours} h ${min} min`;
  return min > 0 ? `${min} min ${s % 60} s` : `${s} s`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
export const date = (ms) => new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

// show is any JSON value as text.
export const show = (v) => (typeof v === "string" ? v : JSON.stringify(v));

// link is the address of a page: link("queues", vhost, name).
export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export const badge = (text, title, kind = "") => h("span", { class: `badge ${kind}`, title }, text);

export const card = (title, ...children) => h("section", { class: "card" }, title && h("h2", {}, title), ...children);

// facts is a list of names and values; values that are undefined are left out.
export const facts = (list) =>
  h("dl", { class: "facts" }, list.filter(([, v]) => v !== undefined && v !== null && v !== "").map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, v))));

// objectFacts shows a JSON object, such as arguments; none: what to say instead.
export const objectFacts = (o, none = "none") =>
  Object.keys(o ?? {}).length === 0
    ? h("span", { class: "quiet" }, none)
    : h("dl", { class: "pairs" }, Object.entries(o).map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, show(v)))));

export const tile = (label, value, detail, href) =>
  h(href ? "a" : "div", { class: "tile", href }, h("span", { class: "label" }, label), h("strong", {}, value), h("span", { class: "detail" }, detail ?? " "));

// table shows rows: columns are { title, cell, num }. empty is said when there are none.
export function table(label, columns, rows, empty) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map((c) => h("th", { class: c.num && "num", scope: "col" }, c.title)))),
      h("tbody", {}, rows.map((r) => h("tr", {}, columns.map((c) => h("td", { class: c.num ? "num" : c.class }, c.cell(r))))))));
}

// toast says what was done.
export function toast(text) {
  const el = h("div", { class: "toast" }, text);
  document.getElementById("toasts").append(el);
  setTimeout(() => el.remove(), 5000);
}
