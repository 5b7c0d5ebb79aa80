// Lists that the broker filters, sorts and cuts into pages, so that ten thousand rows cost as much as fifty.
import { get } from "./api.js";
import { fill, h, num } from "./dom.js";

const SIZES = ["25", "50", "100", "500"];

// listPage makes a page of a list. o: title, what ("queues"), where() (the path), fields (the columns asked for), columns
// { title, sort, cell, num }, actions (buttons), sort (the first one). Its state is in the address, so that a link shows the same.
export function listPage(ctx, o) {
  const q = ctx.query;
  const body = h("div", {});
  const foot = h("nav", { class: "pager", "aria-label": "Pages" });
  const problem = h("p", { class: "problem", role: "alert" });
  const state = () => ({ page: Number(q.get("page") ?? 1), size: q.get("size") ?? "50", sort: q.get("sort") ?? o.sort, desc: q.get("desc") === "1", name: q.get("name") ?? "", regex: q.get("regex") === "1" });

  const set = (changes) => {
    for (const [k, v] of Object.entries({ page: null, ...changes })) v === null || v === "" || v === false ? q.delete(k) : q.set(k, v === true ? "1" : v);
    ctx.remember(q);
    ctx.refresh();
  };

  let typing;
  const filter = h("input", {
    type: "search", placeholder: `Filter ${o.what} by name`, "aria-label": `Filter ${o.what} by name`, value: state().name, spellcheck: "false",
    oninput: () => (clearTimeout(typing), typing = setTimeout(() => set({ name: filter.value }), 250)),
  });
  const regex = h("input", { type: "checkbox", checked: state().regex, onchange: () => set({ regex: regex.checked }) });
  const size = h("select", { "aria-label": "Rows on a page", onchange: () => set({ size: size.value }) },
    SIZES.map((s) => h("option", { value: s, selected: s === state().size }, `${s} rows`)));

  const head = (c) => {
    const s = state();
    if (!c.sort) return h("th", { scope: "col", class: c.num && "num" }, c.title);
    const sorted = s.sort === c.sort;
    return h("th", { scope: "col", class: c.num && "num", "aria-sort": sorted ? (s.desc ? "descending" : "ascending") : "none" },
      h("button", { type: "button", class: "sort", title: c.hint, onclick: () => set({ sort: c.sort, desc: sorted ? !s.desc : c.num === true }) }, c.title, h("span", { class: "arrow", "aria-hidden": "true" }, sorted ? (s.desc ? "▼" : "▲") : "")));
  };

  const refresh = async (signal) => {
    const s = state();
    let answer;
    try {
      answer = await get(o.where(), { page: s.page, page_size: s.size, sort: s.sort, sort_reverse: s.desc, name: s.name, use_regex: s.regex ? "true" : undefined, columns: o.fields }, signal);
    } catch (e) {
      if (e.error === "page_out_of_range") return set({ page: null });
      if (e.status !== 400) throw e;
      return fill(problem, s.regex ? `The filter is not a regular expression: ${e.message}` : e.message);
    }
    fill(problem);
    const rows = answer.items;
    fill(body, rows.length === 0
      ? h("p", { class: "empty" }, answer.total_count > 0 && s.name ? `None of ${num(answer.total_count)} ${o.what} matches the filter.` : o.empty)
      : h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": o.title },
        h("table", {}, h("thead", {}, h("tr", {}, o.columns.map(head))),
          h("tbody", {}, rows.map((r) => h("tr", {}, o.columns.map((c) => h("td", { class: c.num ? "num" : c.class }, c.cell(r)))))))));
    const to = (page, text, label, off) => h("button", { type: "button", disabled: off, "aria-label": label, onclick: () => set({ page }) }, text);
    const from = (answer.page - 1) * answer.page_size;
    fill(foot, h("span", { class: "quiet" }, rows.length ? `${num(from + 1)}–${num(from + rows.length)} of ${num(answer.filtered_count)}` : ""),
      answer.page_count > 1 && [
        to(1, "«", "First page", s.page <= 1), to(s.page - 1, "‹", "Previous page", s.page <= 1),
        h("span", {}, `Page ${num(s.page)} of ${num(answer.page_count)}`),
        to(s.page + 1, "›", "Next page", s.page >= answer.page_count), to(answer.page_count, "»", "Last page", s.page >= answer.page_count),
      ]);
  };

  return {
    title: o.title, vhosts: o.vhosts, every: 5000, refresh,
    content: [
      h("header", { class: "head" }, h("h1", {}, o.title), h("div", { class: "buttons" }, o.actions)),
      h("div", { class: "filter" }, filter, h("label", { class: "inline" }, regex, "Regular expression"), size),
      problem, h("section", { class: "card flush" }, body), foot,
    ],
  };
}
