// The driver in a page: chromium.ts passes it the lines.
import { connect } from "../src/browser.js";
import { Driver } from "./driver.js";

const driver = new Driver(connect);

Object.assign(globalThis, {
  reply: (line: string) => driver.reply(line),
  close: () => driver.close(),
});
