// The driver in a headless Chromium: node dist/conformance/chromium.js
//
// It passes lines between stdin, stdout and a page, in which the SDK and the driver run as they are. The
// modules are given to the browser as it asks for them: there is no server and no bundle.
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

import { chromium } from "playwright-core";

const origin = "http://firemq.test";
const root = new URL("..", import.meta.url);

const browser = await chromium.launch({
  executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium",
  // The sandbox can't be had as root. Pages of a made-up host are to reach the loopback address.
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-features=LocalNetworkAccessChecks"],
  ignoreDefaultArgs: ["--disable-dev-shm-usage"],
});
const page = await browser.newPage();
page.on("console", (m) => process.stderr.write(`${m.type()}: ${m.text()}\n`));
page.on("pageerror", (e) => process.stderr.write(`${e.stack ?? e.message}\n`));
await page.route("**/*", async (route) => {
  const { pathname } = new URL(route.request().url());
  if (pathname === "/") return route.fulfill({ contentType: "text/html", body: '<!doctype html><script type="module" src="/conformance/page.js"></script>' });
  if (!pathname.endsWith(".js")) return route.fulfill({ status: 404 });
  return route.fulfill({ contentType: "text/javascript", body: await readFile(fileURLToPath(new URL(`.${pathname}`, root))) });
});
await page.goto(origin);
await page.waitForFunction("globalThis.reply !== undefined");

interface Page {
  reply(line: string): Promise<string>;
  close(): Promise<void>;
}
for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${await page.evaluate((l) => (globalThis as unknown as Page).reply(l), line)}\n`);
}
await page.evaluate(() => (globalThis as unknown as Page).close());
await browser.close();
