// What a call can fail with. Every error of this package is a FireError; its kind tells them apart where
// instanceof can't, such as across two copies of the package.

export type ErrorKind = "server" | "unroutable" | "nacked" | "cancelled" | "closed" | "timeout" | "full" | "invalid";

export abstract class FireError extends Error {
  abstract readonly kind: ErrorKind;
  /** The AMQP reply code, 0 when there is none. */
  readonly code: number;

  constructor(message: string, code = 0, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** The broker refused a request or, when fatal, the whole connection. */
export class ServerError extends FireError {
  readonly kind = "server";
  readonly fatal: boolean;

  constructor(message: string, code: number, fatal = false) {
    super(message, code);
    this.fatal = fatal;
  }
}

/** No queue received a mandatory message. */
export class UnroutableError extends FireError {
  readonly kind = "unroutable";
}

/**
 * The broker refused a message: with code 506 a queue is full, with 404 or 403 the exchange is missing or
 * may not be written to, with 406 a property is not accepted.
 */
export class NackedError extends FireError {
  readonly kind = "nacked";
}

/** The broker ended a subscription, for example because its queue was deleted. */
export class CancelledError extends FireError {
  readonly kind = "cancelled";
}

/** The client is closed, or its connection was lost for longer than calls wait. cause says why. */
export class ClosedError extends FireError {
  readonly kind = "closed";

  constructor(message = "the client is closed", cause?: unknown) {
    super(message, 0, cause === undefined ? undefined : { cause });
  }
}

/** The broker did not answer in time while connecting. */
export class TimeoutError extends FireError {
  readonly kind = "timeout";
}

/** Too much waits already: await some of it first. Nothing was sent. */
export class FullError extends FireError {
  readonly kind = "full";
}

/** An argument or a URL can't be used. Nothing was sent. */
export class InvalidError extends FireError {
  readonly kind = "invalid";
}
