// What both entry points export beside connect.
export {
  type BindOptions,
  Client,
  type ConnectOptions,
  type ExchangeOptions,
  type Got,
  type Queue,
  type QueueOptions,
  type ReconnectOptions,
} from "./client.js";
export {
  CancelledError,
  ClosedError,
  type ErrorKind,
  FireError,
  FullError,
  InvalidError,
  NackedError,
  ServerError,
  TimeoutError,
  UnroutableError,
} from "./errors.js";
export { type Body, Delivery, type Message, type Properties, type PublishOptions } from "./message.js";
export type { Value, ValueMap } from "./msgpack.js";
export { type SubscribeOptions, Subscription } from "./subscription.js";
export { type Address, parseURL } from "./url.js";
export { version } from "./version.js";
