// The driver in a headless Chromium: node dist/conformance/chromium.js
//
// It serves the modules as they are to a page, in which the SDK and the driver run, and passes the lines
// of stdin and stdout on to it and back.
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";

import { chromium } from "playwright-core";

const root = new URL("..", import.meta.url);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
let closed!: () => void;
const over = new Promise<void>((resolve) => (closed = resolve));

const server = createServer(async (request, response) => {
  const path = request.url ?? "";
  if (path === "/") {
    response.setHeader("content-type", "text/html").end('<!doctype html><script type="module" src="/conformance/page.js"></script>');
  } else if (/^\/[\w/-]+\.js$/.test(path)) {
    response.setHeader("content-type", "text/javascript").end(await readFile(new URL(`.${path}`, root)));
  } else if (path === "/command") {
    const { done, value } = await lines.next();
    response.writeHead(done === true ? 204 : 200).end(value);
  } else if (path === "/reply") {
    process.stdout.write(`${await text(request)}\n`);
    response.end();
  } else {
    if (path === "/closed") closed();
    response.writeHead(404).end();
  }
}).listen(0, "127.0.0.1");
await once(server, "listening");

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  // The sandbox can't be had as root, and there is nothing out there that the browser has to talk to.
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const page = await browser.newPage();
page.on("console", (m) => process.stderr.write(`${m.type()}: ${m.text()}\n`));
page.on("pageerror", (e) => process.stderr.write(`${e.stack ?? e.message}\n`));
await page.goto(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
await over;
await browser.close();
server.close();
