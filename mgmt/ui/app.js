// The UI: login, the frame around the pages, which page is shown, and when it is refreshed.
//
// A page is an object: title, content (nodes, made once), refresh(signal) (fetches and fills what changes) and
// every (ms). Only the page that is shown asks the broker for anything, and only while its tab is visible.
import { admin } from "./admin.js";
import { Unreachable, call, get, login, loggedIn, logout, watchLogout } from "./api.js";
import { channels, connections } from "./connections.js";
import { badge, fill, h, link } from "./dom.js";
import { exchanges } from "./exchanges.js";
import { form } from "./form.js";
import { health } from "./health.js";
import { overview } from "./overview.js";
import { queues } from "./queues.js";

const PAGES = { overview, connections, channels, exchanges, queues, health, admin };
const TITLES = { overview: "Overview", connections: "Connections", channels: "Channels", exchanges: "Exchanges", queues: "Queues", health: "Health", admin: "Admin" };
const VHOST = "firemq.vhost";

const app = document.getElementById("app");
let user = null; // who is logged in
let vhosts = [];
let shown = null; // the page that is shown
let frame = null; // its parts: main, banner, nav, select
let timer, calls = new AbortController();

function loginPage(why) {
  const panel = form([
    { name: "name", label: "User name", required: true, autocomplete: "username" },
    { name: "password", label: "Password", type: "password", autocomplete: "current-password" },
  ], [{
    text: "Log in", run: async (v) => {
      login(v.name, v.password);
      try {
        await enter();
      } catch (e) {
        logout();
        if (e.error === "not_authorized") throw new Error("The user name or the password is wrong.");
        if (e.message === "Not management user") throw new Error("This user has none of the tags administrator, monitoring, policymaker and management.");
        throw e;
      }
    },
  }], { label: "Log in" });
  document.title = "Log in – FireMQ";
  fill(app, h("main", { class: "login" }, h("div", { class: "card" }, brand(), why && h("p", { class: "problem", role: "alert" }, why), panel)));
  panel.elements[0].focus();
}

const brand = () => h("div", { class: "brand" }, h("img", { src: "/ui/icon.svg", alt: "", width: 28, height: 28 }), h("span", {}, "FireMQ"));

// enter finds out who is logged in, and shows the page of the address.
async function enter() {
  const who = await get("/whoami");
  const has = (t) => who.tags.includes(t);
  user = { name: who.name, tags: who.tags, admin: has("administrator"), policies: has("administrator") || has("policymaker"), monitors: has("administrator") || has("monitoring") };
  await loadVHosts();
  const o = await get("/overview", { columns: "cluster_name,product_version" });
  build(o);
  route();
}

async function loadVHosts() {
  vhosts = (await get("/vhosts", { columns: "name" })).map((v) => v.name);
  if (frame) fillVHosts();
}

function leaveSession(why) {
  stop();
  logout();
  sessionStorage.removeItem(VHOST);
  user = shown = frame = null;
  for (const d of document.querySelectorAll("dialog")) d.remove();
  loginPage(why);
}

watchLogout((e) => user && leaveSession(e.error === "not_authorized" ? "The broker no longer accepts this login." : "This user may no longer log in here."));

function build(o) {
  const select = h("select", { id: "vhost", onchange: () => chooseVHost(select.value) });
  frame = {
    select, scope: h("div", { class: "scope", hidden: true }, h("label", { for: "vhost" }, "Vhost"), select),
    alarm: h("div", { class: "alarm", role: "alert", hidden: true }), trouble: h("div", { class: "alarm", role: "alert", hidden: true }),
    nav: h("nav", { "aria-label": "Pages" }), main: h("main", { id: "main", tabindex: "-1" }),
  };
  fill(app,
    h("a", { class: "skip", href: "#main", onclick: (e) => (e.preventDefault(), frame.main.focus()) }, "Skip to the page"),
    h("div", { class: "frame" },
      h("aside", {}, brand(), frame.nav,
        h("footer", {}, h("p", { title: "The cluster's name" }, o.cluster_name), h("p", { class: "quiet" }, `FireMQ ${o.product_version}`))),
      h("div", { class: "page" },
        h("div", { class: "top" }, frame.scope,
          h("div", { class: "who" }, h("span", { class: "name" }, user.name), user.tags.map((t) => badge(t, "Tag")), h("button", { type: "button", class: "small", onclick: () => leaveSession() }, "Log out"))),
        frame.alarm, frame.trouble, frame.main)));
  fillVHosts();
}

const vhost = () => {
  const v = new URLSearchParams(location.hash.split("?")[1]).get("vhost") ?? sessionStorage.getItem(VHOST) ?? "";
  return vhosts.includes(v) ? v : "";
};

function fillVHosts() {
  frame.select.replaceChildren(...[["", "all"], ...vhosts.map((v) => [v, v])].map(([value, text]) => h("option", { value, selected: value === vhost() }, text)));
}

function chooseVHost(v) {
  sessionStorage.setItem(VHOST, v);
  const [where, query] = location.hash.slice(1).split("?");
  const q = new URLSearchParams(query);
  q.delete("page");
  q.delete("vhost");
  if (v) q.set("vhost", v);
  history.replaceState(null, "", `#${where}${q.size ? `?${q}` : ""}`);
  route();
}

// parse cuts the address "#/queues/%2F/orders?tab=messages".
function parse() {
  const [where, query] = location.hash.slice(1).split("?");
  let parts;
  try {
    parts = where.split("/").slice(1).map(decodeURIComponent);
  } catch {
    parts = [];
  }
  const name = parts[0] in PAGES && (parts[0] !== "admin" || user.policies) ? parts[0] : "overview";
  return { name, rest: name === parts[0] ? parts.slice(1) : [], where: where || "/overview", query: new URLSearchParams(query) };
}

function route() {
  if (user === null) return;
  stop();
  const at = parse();
  const ctx = {
    user, vhosts, vhost: vhost(), rest: at.rest, query: at.query, loadVHosts,
    refresh: () => tick(),
    remember: (q) => history.replaceState(null, "", `#${at.where}${q.size ? `?${q}` : ""}`),
    leave: (where) => (location.hash = where),
  };
  fill(frame.nav, Object.entries(TITLES).filter(([n]) => n !== "admin" || user.policies).map(([n, title]) =>
    h("a", { href: link(n), "aria-current": n === at.name && "page" }, title)));
  shown = PAGES[at.name](ctx);
  document.title = `${shown.title} – FireMQ`;
  frame.scope.hidden = shown.vhosts !== true;
  frame.select.value = vhost();
  frame.trouble.hidden = true;
  frame.main.replaceChildren(h("div", { class: "content loading" }, shown.content));
  window.scrollTo(0, 0);
  tick();
}

function stop() {
  clearTimeout(timer);
  calls.abort();
  calls = new AbortController();
}

// tick refreshes the page that is shown, and again after its interval.
async function tick() {
  stop();
  const page = shown, { signal } = calls;
  if (page === null) return;
  try {
    await Promise.all([page.refresh(signal), alarms(signal)]);
    if (signal.aborted) return;
    frame.main.firstChild.classList.remove("loading");
    frame.main.classList.remove("stale");
    frame.trouble.hidden = true;
  } catch (e) {
    if (signal.aborted || frame === null) return;
    if (e.status === 404 && page.missing) {
      const [where, text] = page.back;
      frame.main.replaceChildren(h("div", { class: "content" }, h("div", { class: "card gone" }, h("h1", {}, "Not there"), h("p", {}, page.missing), h("a", { href: `#/${where}` }, text))));
      return;
    }
    frame.main.classList.add("stale");
    frame.trouble.hidden = false;
    fill(frame.trouble, e instanceof Unreachable ? "The broker can't be reached. What you see may be old; trying again." : `The broker refused: ${e.message}`);
  }
  if (page.every > 0 && !document.hidden) timer = setTimeout(tick, page.every);
}

// alarms shows the banner while the broker has stopped reading from publishers.
async function alarms(signal) {
  let list = [];
  try {
    await call("GET", "/health/checks/alarms", { signal });
  } catch (e) {
    if (e.status !== 503) throw e;
    list = e.value?.alarms ?? [];
  }
  frame.alarm.hidden = list.length === 0;
  fill(frame.alarm, list.length > 0 && [h("strong", {}, `Alarm: ${list.map((a) => a.resource).join(", ")}. `), "Publishers wait until it is over. Consumers go on, so that queues drain."]);
}

window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : user && tick()));

if (loggedIn()) enter().catch((e) => (e instanceof Unreachable ? loginPage(e.message) : leaveSession(e.error === "not_authorized" ? "Please log in again." : e.message)));
else loginPage();
