// The driver in Node.js: node dist/conformance/node.js
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

import { connect } from "../src/node.js";
import { Driver } from "./driver.js";

const caFile = process.env["FIREMQ_CA_FILE"];
const tls = caFile === undefined ? {} : { ca: readFileSync(caFile) };

const driver = new Driver((url, options) => connect(url, { ...options, tls }));
for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${await driver.reply(line)}\n`);
}
await driver.close();
