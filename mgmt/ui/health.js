// What is stuck or wrong, why, and what to do: the broker's own report.
import { get } from "./api.js";
import { badge, card, fill, h, link, num } from "./dom.js";

const COLOURS = { critical: "warn", warning: "warn", note: "" };

// where leads to the page of what a finding is about.
const where = (f) => (f.kind === "queue" || f.kind === "exchange" ? link(f.kind + "s", f.vhost, f.name) : null);

const finding = (f) => card(null,
  h("p", {}, badge(f.severity, "How bad it is", COLOURS[f.severity]), " ",
    f.kind, f.name && " ", f.name && (where(f) ? h("a", { href: where(f) }, f.name) : h("b", {}, f.name)), f.vhost && ` in vhost ${f.vhost}`),
  h("p", {}, h("b", {}, f.summary)),
  f.cause && h("p", {}, f.cause),
  f.action && h("p", {}, h("b", {}, "To do: "), f.action));

export function health() {
  const list = h("div", { class: "grid" });
  const refresh = async (signal) => {
    const r = await get("/health/report", {}, signal);
    fill(list,
      r.findings.length === 0 ? card(null, h("p", {}, "Nothing is wrong, as far as the broker can tell.")) : r.findings.map(finding),
      r.left_out > 0 && card(null, h("p", {}, `${num(r.left_out)} more are not shown.`)));
  };
  return {
    title: "Health", every: 5000, refresh,
    content: [h("header", { class: "head" }, h("h1", {}, "Health"), h("p", { class: "quiet" }, "What is stuck or wrong, why, and what to do")), list],
  };
}
