// Forms and dialogs.
import { fill, h, toast } from "./dom.js";

let fields = 0;

// read gives the value of one field. Errors are for the user.
function read(field, input) {
  if (field.type === "checkbox") return input.checked;
  const text = input.value;
  if (field.type === "json") {
    if (text.trim() === "") return {};
    let value;
    try {
      value = JSON.parse(text);
    } catch (e) {
      throw new Error(`${field.label}: not JSON (${e.message})`);
    }
    if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error(`${field.label}: not a JSON object, such as {"key": 1}`);
    return value;
  }
  if (field.type === "number") return text === "" ? undefined : Number(text);
  if (field.type === "file") return input.files[0];
  return text;
}

function input(field, id) {
  const props = { id, name: field.name, required: field.required, "aria-describedby": field.hint && `${id}-hint` };
  switch (field.type) {
    case "select":
      return h("select", props, field.options.map((o) => {
        const [value, text] = Array.isArray(o) ? o : [o, o];
        return h("option", { value, selected: value === field.value }, text);
      }));
    case "json":
    case "text":
      return h("textarea", { ...props, rows: field.rows ?? 2, spellcheck: "false", placeholder: field.placeholder, value: field.value ?? "" });
    case "checkbox":
      return h("input", { ...props, type: "checkbox", checked: field.value === true });
    default:
      return h("input", {
        ...props, type: field.type ?? "text", placeholder: field.placeholder, value: field.value ?? "", readonly: field.readonly,
        min: field.min, max: field.max, accept: field.accept, autocomplete: field.autocomplete ?? "off", spellcheck: "false", autocapitalize: "off",
      });
  }
}

// form has the fields { name, label, type, value, required, hint }, a row of buttons { text, run, kind }, and says what
// went wrong. run gets the values; the text that it gives is shown as done. A button with leave has no use for them.
export function form(list, buttons, { label, more } = {}) {
  const inputs = new Map();
  const row = (f) => {
    const id = `f${++fields}`;
    const el = input(f, id);
    inputs.set(f, el);
    const name = h("label", { for: id }, f.label);
    return h("div", { class: `field ${f.wide ? "wide" : ""} ${f.type === "checkbox" ? "check" : ""}` },
      f.type === "checkbox" ? [el, name] : [name, el], f.hint && h("small", { id: `${id}-hint` }, f.hint));
  };
  const problem = h("p", { class: "problem", role: "alert" });
  const controls = buttons.map((b, i) => h("button", { type: i === 0 ? "submit" : "button", class: b.kind ?? (i === 0 ? "primary" : ""), onclick: i === 0 ? undefined : () => (b.leave ? b.leave() : el.reportValidity() && act(b)) }, b.text));
  const act = async (b) => {
    fill(problem);
    buttons.forEach((b, i) => (controls[i].disabled = !b.leave));
    try {
      const values = {};
      for (const [f, i] of inputs) values[f.name] = read(f, i);
      const done = await b.run(values, el);
      if (done) toast(done);
    } catch (e) {
      fill(problem, e.message);
    }
    for (const c of controls) c.disabled = false;
  };
  const el = h("form", { "aria-label": label, onsubmit: (e) => (e.preventDefault(), act(buttons[0])) },
    h("div", { class: "fields" }, list.map(row)),
    more && h("details", {}, h("summary", {}, more.title), h("div", { class: "fields" }, more.fields.map(row))),
    problem, h("div", { class: "buttons" }, controls));
  return el;
}

// dialog shows content above the page until close is called or the user leaves it.
export function dialog(title, make) {
  const close = () => el.close();
  const el = h("dialog", { "aria-label": title, onclose: () => el.remove() },
    h("header", {}, h("h2", {}, title), h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: close }, "✕")),
    make(close));
  document.body.append(el);
  el.showModal();
  return el;
}

// formDialog is a form in a dialog that closes when it is done.
export function formDialog(title, list, text, run, options = {}) {
  return dialog(title, (close) => form(list, [{
    text, kind: options.kind, run: async (values) => {
      const done = await run(values);
      close();
      return done;
    },
  }], { label: title, more: options.more }));
}

// ask lets the user think again before something is lost. typed: what must be typed first.
export function ask(title, text, verb, run, typed) {
  const list = typed === undefined ? [] : [{ name: "typed", label: `Type ${typed} to confirm`, required: true }];
  dialog(title, (close) => [h("p", {}, text), form(list, [
    {
      text: verb, kind: "danger", run: async (v) => {
        if (typed !== undefined && v.typed !== typed) throw new Error("That is another name.");
        const done = await run();
        close();
        return done;
      },
    },
    { text: "Cancel", leave: close },
  ], { label: title })]);
}

// without drops what was left empty.
export const without = (o) => Object.fromEntries(Object.entries(o).filter(([, v]) => v !== undefined && v !== ""));
