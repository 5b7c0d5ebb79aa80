// The management UI in a headless Chromium, against the brokers at FIREMQ_HTTP_URL, USED_HTTP_URL, which has a client (see
// ui_test.go), and ALARMED_HTTP_URL. Whatever a test does, the page must not report an error or a violation of its content
// security policy.
import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { chromium } from "playwright-core";

const base = process.env.FIREMQ_HTTP_URL;
const used = process.env.USED_HTTP_URL;
const alarmed = process.env.ALARMED_HTTP_URL;
let browser, folder;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "firemq-ui-"));
  browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    // The sandbox can't be had as root, and there is nothing out there that the browser has to talk to.
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
});

after(async () => {
  await browser?.close();
  await rm(folder, { recursive: true, force: true });
});

async function api(method, path, body, user = "guest:guest") {
  const answer = await fetch(`${base}/api${path}`, {
    method, headers: { authorization: `Basic ${btoa(user)}`, "content-type": "application/json" }, body: body && JSON.stringify(body),
  });
  const text = await answer.text();
  return { status: answer.status, value: text === "" ? undefined : JSON.parse(text) };
}

const queue = async (name, vhost = "/") => (await api("GET", `/queues/${encodeURIComponent(vhost)}/${encodeURIComponent(name)}`)).value;

// open gives a page, logged in unless user is null, and fails the test over what the page reports. expected are
// the statuses that the browser may report as failed to load.
async function open(t, { url = base, user = "guest", password = "guest", hash = "", expected = [], ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1300, height: 900 }, acceptDownloads: true, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const problems = [];
  page.on("pageerror", (e) => problems.push(e.stack ?? e.message));
  page.on("dialog", (d) => (problems.push(`a dialog: ${d.message()}`), d.dismiss()));
  page.on("console", (m) => {
    const status = /status of (\d+)/.exec(m.text())?.[1];
    if (m.type() === "error" && !expected.includes(Number(status))) problems.push(m.text());
  });
  t.after(async () => {
    await context.close();
    assert.deepEqual(problems, []);
  });
  await page.goto(`${url}/${hash}`);
  if (user !== null) {
    await login(page, user, password);
    await page.getByRole("heading", { level: 1 }).waitFor();
  }
  return page;
}

async function login(page, user, password) {
  await page.getByLabel("User name").fill(user);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
}

const button = (page, name) => page.getByRole("button", { name, exact: true });
const heading = (page, name) => page.getByRole("heading", { name, level: 1, exact: true }).waitFor();
const toast = (page, text) => page.locator(".toast", { hasText: text }).first().waitFor();

test("a wrong password is told, and does not open a login window of the browser", async (t) => {
  const page = await open(t, { user: null, expected: [401] });
  await login(page, "guest", "wrong");
  await page.getByText("The user name or the password is wrong.").waitFor();
  await login(page, "guest", "guest");
  await heading(page, "Overview");
});

test("a user without a tag is told why it may not log in", async (t) => {
  await api("PUT", "/users/untagged", { password: "p", tags: "" });
  const page = await open(t, { user: null, expected: [401] });
  await login(page, "untagged", "p");
  await page.getByText("This user has none of the tags").waitFor();
});

test("a login outlives a reload, and ends with Log out", async (t) => {
  const page = await open(t, { hash: "#/queues" });
  await page.reload();
  await heading(page, "Queues");
  await button(page, "Log out").click();
  await page.getByLabel("User name").waitFor();
  await page.reload();
  await page.getByLabel("User name").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  assert.equal((await page.context().cookies()).length, 0);
});

test("a user that is deleted is logged out", async (t) => {
  await api("PUT", "/users/leaving", { password: "p", tags: "monitoring" });
  const page = await open(t, { user: "leaving", password: "p", expected: [401] });
  await heading(page, "Overview");
  await api("DELETE", "/users/leaving");
  await page.getByText("The broker no longer accepts this login.").waitFor();
});

test("every page shows what it is about", async (t) => {
  const page = await open(t);
  for (const [name, shown] of [["Connections", "Nobody is connected."], ["Channels", "There are no channels."], ["Exchanges", "amq.topic"], ["Queues", "New queue"], ["Health", "What is stuck or wrong"], ["Overview", "Message rates"]]) {
    await page.getByRole("link", { name, exact: true }).first().click();
    await heading(page, name);
    await page.getByText(shown).first().waitFor();
  }
  await page.getByRole("link", { name: "Admin", exact: true }).click();
  for (const [name, shown] of [["Users", "administrator"], ["Vhosts", "Description"], ["Policies", "Operator policies"], ["Definitions", "Import"]]) {
    await page.getByRole("link", { name, exact: true }).click();
    await heading(page, name);
    await page.getByText(shown, { exact: false }).first().waitFor();
  }
});

test("a queue is made, bound, published to, peeked at, emptied and deleted", async (t) => {
  const page = await open(t, { hash: "#/queues" });
  await button(page, "New queue").click();
  await page.getByLabel("Name", { exact: true }).fill("work");
  await page.getByText("Limits and dead letters").click();
  await page.getByLabel("At most so many messages").fill("1000");
  await button(page, "Create").click();
  await toast(page, "Queue work is there.");
  assert.deepEqual((await queue("work")).arguments, { "x-max-length": 1000 });
  await page.getByRole("link", { name: "work", exact: true }).click();
  await heading(page, "work");

  await page.getByRole("tab", { name: "Bindings" }).click();
  await page.getByLabel("From exchange").fill("amq.topic");
  await page.getByRole("form", { name: "Bind" }).getByLabel("Routing key").fill("work.#");
  await button(page, "Bind").click();
  await toast(page, "Bound.");
  await page.getByRole("cell", { name: "work.#" }).waitFor();
  await button(page, "Unbind").click();
  await page.getByRole("dialog").getByRole("button", { name: "Unbind" }).click();
  await page.getByText("Only the default exchange leads here").waitFor();

  await page.getByRole("tab", { name: "Publish" }).click();
  await page.getByLabel("Payload", { exact: true }).fill('{"order": 1}');
  await page.getByLabel("Headers").fill('{"tenant": "north"');
  await button(page, "Publish").click();
  await page.getByText("Headers: not JSON").waitFor();
  await page.getByLabel("Headers").fill('{"tenant": "north"}');
  await page.getByText("More properties").click();
  await page.getByLabel("correlation_id").fill("c-7");
  for (let i = 0; i < 3; i++) {
    await button(page, "Publish").click();
    await page.locator(".tile", { hasText: "Ready" }).locator("strong", { hasText: String(i + 1) }).waitFor();
  }

  await page.getByRole("tab", { name: "Messages" }).click();
  await page.getByLabel("Text in the body").fill("nowhere");
  await button(page, "Browse").click();
  await page.getByText("No message fits.").waitFor();
  await page.getByLabel("Text in the body").fill("order");
  await page.getByText("More filters").click();
  await page.getByLabel("Messages on a page").fill("2");
  await button(page, "Browse").click();
  await page.locator("article.message").nth(1).waitFor();
  assert.equal(await page.locator("article.message").count(), 2);
  await button(page, "More").click();
  await page.locator("article.message").nth(2).waitFor();
  assert.equal(await page.locator("article.message").count(), 3);
  await page.getByLabel("Text in the body").fill("nowhere");
  await button(page, "Browse").click();
  await page.getByText("No message fits.").waitFor();
  await button(page, "Peek").click();
  await page.getByText('"order": 1').first().waitFor();
  assert.equal(await page.locator("article.message").count(), 3);
  await page.getByText("c-7").first().waitFor();
  await page.getByText("north").first().waitFor();
  assert.equal((await queue("work")).messages, 3);

  await page.getByRole("form", { name: "Read messages" }).getByLabel("Messages").fill("1");
  await button(page, "Take").click();
  await page.getByRole("dialog").getByRole("button", { name: "Take" }).click();
  await toast(page, "1 taken.");
  assert.equal((await queue("work")).messages, 2);

  await button(page, "Purge").click();
  await button(page, "Cancel").click();
  assert.equal((await queue("work")).messages, 2);
  await button(page, "Purge").click();
  await page.getByRole("dialog").getByRole("button", { name: "Purge" }).click();
  await toast(page, "Purged.");
  assert.equal((await queue("work")).messages, 0);

  await button(page, "Delete").click();
  await page.getByLabel("Type work to confirm").fill("wok");
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByText("That is another name.").waitFor();
  await page.getByLabel("Type work to confirm").fill("work");
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await heading(page, "Queues");
  assert.equal((await api("GET", "/queues/%2F/work")).status, 404);
});

test("an exchange is made, and a message that no queue takes is told", async (t) => {
  const page = await open(t, { hash: "#/exchanges" });
  await button(page, "New exchange").click();
  await page.getByLabel("Name", { exact: true }).fill("events");
  await page.getByLabel("Type", { exact: true }).selectOption("topic");
  await button(page, "Create").click();
  await page.getByRole("link", { name: "events", exact: true }).click();
  await heading(page, "events");
  await page.getByRole("tab", { name: "Publish" }).click();
  await page.getByRole("textbox", { name: "Routing key" }).fill("a.b");
  await button(page, "Publish").click();
  await page.getByText("no queue took it").waitFor();
  await button(page, "Delete").click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await heading(page, "Exchanges");
});

test("what the broker refuses is told in its words", async (t) => {
  const page = await open(t, { hash: "#/queues", expected: [400] });
  await button(page, "New queue").click();
  await page.getByLabel("Name", { exact: true }).fill("bad");
  await page.getByLabel("Arguments", { exact: true }).fill('{"x-max-length": -1}');
  await button(page, "Create").click();
  await page.getByRole("dialog").getByRole("alert").filter({ hasText: "x-max-length" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
});

test("a user, its permissions, its password and its tags", async (t) => {
  const page = await open(t, { hash: "#/admin/users", expected: [404] });
  await button(page, "New user").click();
  await page.getByLabel("Name", { exact: true }).fill("ada");
  await page.getByLabel("Password", { exact: true }).fill("first");
  await page.getByLabel("monitoring", { exact: true }).check();
  await button(page, "Create").click();
  await toast(page, "User ada is there.");
  assert.deepEqual((await api("GET", "/whoami", undefined, "ada:first")).value.tags, ["monitoring"]);
  assert.equal((await api("GET", "/permissions/%2F/ada")).value.write, ".*");

  await page.getByRole("link", { name: "ada" }).click();
  await heading(page, "ada");
  await page.getByLabel("Write").fill("^mine");
  await button(page, "Set permissions").click();
  await page.getByRole("cell", { name: "^mine" }).waitFor();
  await button(page, "Password").click();
  await page.getByLabel("Password", { exact: true }).fill("second");
  await button(page, "Save").click();
  await toast(page, "The password is saved.");
  await button(page, "Tags").click();
  await page.getByLabel("policymaker", { exact: true }).check();
  await button(page, "Save").click();
  await toast(page, "The tags are saved.");
  assert.deepEqual((await api("GET", "/whoami", undefined, "ada:second")).value.tags.sort(), ["monitoring", "policymaker"]);
  await button(page, "Clear").click();
  await page.getByRole("dialog").getByRole("button", { name: "Clear" }).click();
  await page.getByText("This user can't use any vhost.").waitFor();
  await button(page, "Delete").click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await heading(page, "Users");
  assert.equal((await api("GET", "/users/ada")).status, 404);
});

test("a vhost with a limit, a policy in it, and definitions out and in again", async (t) => {
  const page = await open(t, { hash: "#/admin/vhosts" });
  await button(page, "New vhost").click();
  await page.getByLabel("Name", { exact: true }).fill("shop");
  await page.getByLabel("Description").fill("orders and invoices");
  await button(page, "Create").click();
  await page.getByRole("link", { name: "shop", exact: true }).click();
  await heading(page, "shop");
  await page.getByLabel("At most").fill("3");
  await button(page, "Set limit").click();
  await page.getByText("max-queues").waitFor();
  await api("PUT", "/queues/shop/kept", { durable: true });

  await page.getByRole("link", { name: "Policies" }).click();
  await page.getByLabel("Vhost", { exact: true }).selectOption("shop");
  await button(page, "New policy").click();
  await page.getByLabel("Name", { exact: true }).fill("bounded");
  await page.getByLabel("Pattern").fill("^kept$");
  await page.getByLabel("Definition").fill('{"max-length": 5}');
  await button(page, "Save").click();
  await toast(page, "Policy bounded is saved.");
  assert.equal((await queue("kept", "shop")).policy, "bounded");
  await button(page, "Edit").click();
  await page.getByLabel("Priority").fill("7");
  await button(page, "Save").click();
  await page.getByRole("cell", { name: "7", exact: true }).waitFor();

  await page.getByRole("link", { name: "Definitions" }).click();
  await page.getByLabel("Of", { exact: true }).selectOption("shop");
  const [download] = await Promise.all([page.waitForEvent("download"), button(page, "Export").click()]);
  const file = join(folder, download.suggestedFilename());
  await download.saveAs(file);
  const exported = JSON.parse(await readFile(file, "utf8"));
  assert.deepEqual(exported.queues.map((q) => q.name), ["kept"]);
  await api("DELETE", "/queues/shop/kept");
  await page.getByLabel("Into").selectOption("shop");
  await page.getByLabel("File").setInputFiles(file);
  await button(page, "Import").click();
  await toast(page, "is imported.");
  assert.equal((await queue("kept", "shop")).policy, "bounded");
  const broken = join(folder, "broken.json");
  await writeFile(broken, "{");
  await page.getByLabel("File").setInputFiles(broken);
  await button(page, "Import").click();
  await page.getByText("broken.json is not JSON").waitFor();

  await page.getByRole("link", { name: "Policies" }).click();
  await button(page, "Delete").click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await toast(page, "The policy is deleted.");
  await page.goto(`${base}/#/admin/vhosts/shop`);
  await button(page, "Delete").click();
  await page.getByLabel("Type shop to confirm").fill("shop");
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await heading(page, "Vhosts");
  assert.equal((await api("GET", "/vhosts/shop")).status, 404);
});

test("hostile names and payloads are only text", async (t) => {
  const evil = '<img src=x onerror="alert(1)">\'"&amp;<script>alert(2)</script>';
  const vhost = "a/b?c#d%2F<b>";
  const v = encodeURIComponent(vhost), n = encodeURIComponent(evil);
  await api("PUT", `/vhosts/${v}`, { description: evil, tags: [evil] });
  await api("PUT", `/queues/${v}/${n}`, { durable: true, arguments: { "x-dead-letter-exchange": evil, [evil]: evil } });
  await api("PUT", `/exchanges/${v}/${n}`, { type: "topic", durable: true });
  await api("POST", `/bindings/${v}/e/${n}/q/${n}`, { routing_key: evil });
  await api("PUT", `/policies/${v}/${n}`, { pattern: "<i>", definition: { "max-length": 10 } });
  await api("PUT", `/users/${n}`, { password: "p", tags: evil });
  await api("POST", `/exchanges/${v}/amq.default/publish`, { routing_key: evil, payload: evil, payload_encoding: "string", properties: { content_type: evil, headers: { [evil]: evil } } });
  t.after(async () => {
    await api("DELETE", `/vhosts/${v}`);
    await api("DELETE", `/users/${n}`);
  });

  const page = await open(t, { hash: "#/queues" });
  const elements = () => page.evaluate(() => document.querySelectorAll("#app img:not(.brand img), #app script, #app b:not(.key b, .meter b), #app i:not(.swatch)").length);
  await page.getByRole("link", { name: evil, exact: true }).click();
  await heading(page, evil);
  await page.getByRole("tab", { name: "Bindings" }).click();
  await page.getByRole("cell", { name: evil }).first().waitFor();
  await page.getByRole("tab", { name: "Messages" }).click();
  await button(page, "Peek").click();
  assert.equal(await page.locator("article pre").innerText(), evil);
  assert.equal(await elements(), 0);
  await page.getByRole("tab", { name: "Bindings" }).click();
  await button(page, "Unbind").click();
  await page.getByRole("dialog").getByRole("button", { name: "Unbind" }).click();
  await page.getByText("Only the default exchange leads here").waitFor();
  for (const hash of [`#/exchanges/${v}/${n}`, `#/admin/users/${n}`, `#/admin/vhosts/${v}`, "#/admin/users", "#/admin/vhosts", "#/admin/policies", "#/exchanges"]) {
    await page.goto(`${base}/${hash}`);
    await page.locator("#main").getByText(hash.endsWith(v) ? vhost : evil, { exact: true }).first().waitFor();
    assert.equal(await elements(), 0, hash);
  }
  await page.goto(`${base}/#/queues/${v}/${n}`);
  await button(page, "Delete").click();
  await page.getByRole("dialog").getByLabel(/Type .* to confirm/).fill(evil).catch(() => {});
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await heading(page, "Queues");
  assert.equal((await api("GET", `/queues/${v}/${n}`)).status, 404);
});

test("many queues come in pages, filtered and sorted by the broker", async (t) => {
  await Promise.all(Array.from({ length: 120 }, (_, i) => api("PUT", `/queues/%2F/many-${String(i).padStart(3, "0")}`, { durable: false })));
  await api("POST", "/exchanges/%2F/amq.default/publish", { routing_key: "many-077", payload: "x", payload_encoding: "string", properties: {} });
  t.after(() => Promise.all(Array.from({ length: 120 }, (_, i) => api("DELETE", `/queues/%2F/many-${String(i).padStart(3, "0")}`))));
  const page = await open(t, { hash: "#/queues?name=many&size=50", expected: [400] });
  await page.getByText("1–50 of 120").waitFor();
  await button(page, "Next page").click();
  await page.getByText("51–100 of 120").waitFor();
  await page.getByRole("columnheader", { name: "Ready" }).getByRole("button").click();
  await page.locator("tbody tr").first().getByText("many-077").waitFor();
  assert.equal(await page.getByRole("columnheader", { name: "Ready" }).getAttribute("aria-sort"), "descending");
  await page.reload();
  await page.locator("tbody tr").first().getByText("many-077").waitFor();
  await page.getByLabel("Filter queues by name").fill("many-01[0-4]");
  await page.getByText("None of", { exact: false }).waitFor();
  await page.getByLabel("Regular expression").check();
  await page.getByText("1–5 of 5").waitFor();
  await page.getByLabel("Filter queues by name").fill("many-(");
  await page.getByText("The filter is not a regular expression").waitFor();
});

test("tags decide what is shown", async (t) => {
  await api("PUT", "/users/small", { password: "p", tags: "management" });
  await api("PUT", "/permissions/%2F/small", { configure: "^$", write: ".*", read: ".*" });
  await api("PUT", "/users/rules", { password: "p", tags: "policymaker" });
  await api("PUT", "/permissions/%2F/rules", { configure: ".*", write: ".*", read: ".*" });
  t.after(() => Promise.all([api("DELETE", "/users/small"), api("DELETE", "/users/rules")]));

  const small = await open(t, { user: "small", password: "p", hash: "#/admin/users", expected: [401] });
  await heading(small, "Overview");
  assert.equal(await small.getByRole("link", { name: "Admin" }).count(), 0);
  assert.equal(await small.getByText("Open files").count(), 0);
  await small.getByRole("link", { name: "Queues", exact: true }).first().click();
  await button(small, "New queue").click();
  await small.getByLabel("Name", { exact: true }).fill("forbidden");
  await button(small, "Create").click();
  await small.getByRole("dialog").getByText("Access refused.").waitFor();

  const rules = await open(t, { user: "rules", password: "p", hash: "#/admin" });
  await heading(rules, "Policies");
  await button(rules, "New policy").waitFor();
  assert.equal(await rules.getByRole("link", { name: "Users" }).count(), 0);
  assert.equal(await button(rules, "New operator policy").count(), 0);
});

test("an alarm is a banner", async (t) => {
  const page = await open(t, { url: alarmed, expected: [503] });
  await page.getByRole("alert").filter({ hasText: "Alarm: disk space." }).waitFor();
});

test("a broker that can't be reached is told, and nothing is lost when it is back", async (t) => {
  const page = await open(t, { hash: "#/exchanges" });
  await page.getByRole("columnheader", { name: "Name" }).waitFor();
  page.removeAllListeners("console"); // the browser reports each call that fails
  await page.route("**/api/**", (r) => r.abort());
  await page.getByText("The broker can't be reached.").waitFor();
  await page.unroute("**/api/**");
  await page.getByText("The broker can't be reached.").waitFor({ state: "hidden" });
});

test("the keyboard is enough: focus stays through a refresh, dialogs give it back", async (t) => {
  const page = await open(t, { hash: "#/exchanges" });
  const row = page.getByRole("link", { name: "amq.fanout" });
  await row.focus();
  const [answer] = await Promise.all([page.waitForResponse((r) => r.url().includes("/api/exchanges"))]);
  await answer.finished();
  await page.evaluate(() => new Promise(requestAnimationFrame));
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "amq.fanout");
  await button(page, "New exchange").focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "New exchange");
});

test("pages fit a phone", async (t) => {
  await api("PUT", "/queues/%2F/phone", { durable: true });
  t.after(() => api("DELETE", "/queues/%2F/phone"));
  const page = await open(t, { viewport: { width: 360, height: 740 } });
  for (const hash of ["#/overview", "#/queues", "#/queues/%2F/phone", "#/queues/%2F/phone?tab=publish", "#/exchanges", "#/admin/users", "#/admin/vhosts/%2F", "#/admin/policies", "#/admin/definitions"]) {
    await page.goto(`${base}/${hash}`);
    await page.locator(".content:not(.loading)").waitFor();
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, hash);
  }
});

// filled is a queue with messages of the bodies "a 0", "b 1", "a 2" and so on.
async function filled(t, name, n, args = {}) {
  await api("PUT", `/queues/%2F/${name}`, { durable: false, arguments: args });
  t.after(() => api("DELETE", `/queues/%2F/${name}`));
  for (let i = 0; i < n; i++) await api("POST", "/exchanges/%2F/amq.default/publish", { routing_key: name, payload: `${i % 2 ? "b" : "a"} ${i}`, payload_encoding: "string", properties: {} });
}

const bodies = async (name) => (await api("GET", `/queues/%2F/${name}/messages?count=1000`)).value.messages.map((m) => m.payload);

test("messages are selected and moved, copied and deleted, those that fit a search too", async (t) => {
  await filled(t, "from", 6);
  await filled(t, "parking", 0);
  await filled(t, "small-parking", 0, { "x-max-length": 1, "x-overflow": "reject-publish" });
  const page = await open(t, { hash: "#/queues/%2F/from?tab=messages", expected: [404] });
  const treat = async (name) => {
    await button(page, `${name}…`).click();
    return page.getByRole("dialog", { name: `${name} messages` });
  };
  await button(page, "Browse").click();
  await page.getByText("all that are ready").waitFor();
  // With the keyboard alone.
  await page.getByLabel("Select message 2").focus();
  await page.keyboard.press("Space");
  await page.getByLabel("Select message 3").check();
  await page.getByText("2 selected").waitFor();
  assert.equal(await page.getByLabel("Select all shown").evaluate((b) => b.indeterminate), true);
  let dialog = await treat("Move");
  await dialog.getByText("The 2 messages that are selected.").waitFor();
  await dialog.getByLabel("To the queue").fill("nowhere");
  await page.keyboard.press("Enter");
  await dialog.getByRole("alert").filter({ hasText: "no queue 'nowhere'" }).waitFor();
  await dialog.getByLabel("To the queue").fill("parking");
  await page.keyboard.press("Enter");
  await toast(page, "2 moved.");
  await page.locator("article.message").nth(3).waitFor();
  assert.deepEqual(await bodies("parking"), ["b 1", "a 2"]);
  assert.deepEqual(await bodies("from"), ["a 0", "b 3", "a 4", "b 5"]);
  assert.equal(await page.locator("article.message").count(), 4);

  // One of them is gone meanwhile, and the queue takes but one.
  await page.getByLabel("Select all shown").check();
  await page.getByText("4 selected").waitFor();
  await api("POST", "/queues/%2F/from/messages/delete", { sequences: [1] });
  dialog = await treat("Copy");
  await dialog.getByLabel("To the queue").fill("small-parking");
  await dialog.getByRole("button", { name: "Copy" }).click();
  await dialog.getByRole("alert").filter({ hasText: /1 copied\. 2 stay where they are\..* 1 are no longer there\./ }).waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.deepEqual(await bodies("small-parking"), ["b 3"]);

  // Nothing selected: all that fit.
  await page.getByLabel("Text in the body").fill("b");
  await button(page, "Browse").click();
  await page.getByText("all that fit").waitFor();
  dialog = await treat("Delete");
  await dialog.getByText("Ready messages that fit the search").waitFor();
  await dialog.getByRole("button", { name: "Delete" }).click();
  await toast(page, "2 deleted.");
  await page.getByText("No message fits.").waitFor();
  assert.deepEqual(await bodies("from"), ["a 4"]);
});

test("a cursor goes on where a step ended, and Cancel stops between steps", async (t) => {
  await filled(t, "steps", 5);
  const page = await open(t, { hash: "#/queues/%2F/steps?tab=messages" });
  const asked = [];
  let held, hold = false;
  // As with messages by the ten thousand: the broker is asked for two at a time.
  await page.route("**/messages/delete", async (route) => {
    const body = route.request().postDataJSON();
    asked.push(body.cursor ?? null);
    const answer = await route.fetch({ postData: JSON.stringify({ ...body, limit: Math.min(2, body.limit) }) });
    if (hold) await new Promise((f) => (held = f));
    await route.fulfill({ response: answer });
  });
  await button(page, "Browse").click();
  await button(page, "Delete…").click();
  await page.getByLabel("At most").fill("3");
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await toast(page, "3 deleted.");
  assert.equal(asked.length, 2);
  assert.equal(asked[0], null);
  assert.notEqual(asked[1], null);
  assert.deepEqual(await bodies("steps"), ["b 3", "a 4"]);

  await filled(t, "steps", 4);
  hold = true;
  asked.length = 0;
  await button(page, "Browse").click();
  await page.locator("article.message").nth(5).waitFor();
  await button(page, "Delete…").click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  while (held === undefined) await new Promise((f) => setTimeout(f, 5));
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  hold = false;
  held();
  await toast(page, "2 deleted.");
  assert.equal(asked.length, 1);
  assert.equal((await bodies("steps")).length, 4);
});

test("a dead letter is replayed to where it came from", async (t) => {
  await filled(t, "dead", 1);
  await filled(t, "alive", 1, { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead" });
  await api("POST", "/queues/%2F/alive/get", { count: 1, ackmode: "reject_requeue_false", encoding: "auto" });
  while ((await bodies("dead")).length < 2) await new Promise((f) => setTimeout(f, 5));
  const page = await open(t, { hash: "#/queues/%2F/dead?tab=messages" });
  await button(page, "Browse").click();
  await button(page, "Replay…").click();
  await page.getByRole("dialog").getByRole("button", { name: "Replay" }).click();
  await page.getByRole("dialog").getByRole("alert").filter({ hasText: /1 replayed\. 1 stay where they are\./ }).waitFor();
  await page.keyboard.press("Escape");
  assert.deepEqual(await bodies("alive"), ["a 0"]);
  assert.deepEqual(await bodies("dead"), ["a 0"]);
});

test("nobody holds a message of an empty queue", async (t) => {
  await filled(t, "empty", 0);
  const page = await open(t, { hash: "#/queues/%2F/empty?tab=messages" });
  await button(page, "List").click();
  await page.getByText("Nobody holds a message.").waitFor();
});

test("who holds messages, and how old the oldest one is, beside a consumer that does not acknowledge", async (t) => {
  const page = await open(t, { url: used, hash: "#/queues/%2F/held?tab=messages" });
  await button(page, "List").click();
  const row = page.getByRole("row", { name: /#1 .* ago keeper guest 127\.0\.0\.1:.* \(1\) 1 4 B/ });
  await row.waitFor();
  await page.getByLabel("Messages that are").selectOption("unacked");
  await button(page, "Browse").click();
  await page.getByText("consumer keeper").waitFor();
  assert.equal(await button(page, "Move…").count(), 0);
  await page.getByRole("tab", { name: "State" }).click();
  await page.getByText("Oldest ready message").waitFor();
  await page.getByRole("tab", { name: "Messages" }).click();
  await row.getByRole("link").click();
  await page.getByText("deliveries not settled").waitFor();
});
