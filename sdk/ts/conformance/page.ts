// The driver in a page: it asks chromium.ts for commands, and posts its replies.
import { connect } from "../src/browser.js";
import { Driver } from "./driver.js";

const driver = new Driver(connect);
for (;;) {
  const command = await fetch("/command");
  if (command.status !== 200) break; // there are no more
  await fetch("/reply", { method: "POST", body: await driver.reply(await command.text()) });
}
await driver.close();
await fetch("/closed", { method: "POST" });
