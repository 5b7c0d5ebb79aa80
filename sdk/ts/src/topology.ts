// What a client declared and did not delete, to be declared again on a new connection.
import type { Fields } from "./frames.js";

type Declared<N extends "declare_exchange" | "declare_queue" | "bind"> = Omit<Fields<N>, "rid">;

/** A queue that was declared. The broker may choose another name for it on each connection. */
export interface QueueRecord {
  fields: Declared<"declare_queue">; // with the name "" when the broker chooses it
  readonly first: string; // the name that it was given at first
  name: string; // the name now
}

interface BindingRecord {
  readonly fields: Declared<"bind">;
  readonly queue: QueueRecord | undefined; // when it is to a queue that was declared here
}

export class Topology {
  readonly #exchanges = new Map<string, Declared<"declare_exchange">>();
  readonly #queues = new Map<string, QueueRecord>(); // by first name
  readonly #renamed = new Map<string, QueueRecord>(); // by the name now, if that is another
  readonly #bindings = new Map<string, BindingRecord>();

  exchangeDeclared(fields: Declared<"declare_exchange">): void {
    this.#exchanges.set(fields.name ?? "", fields);
  }

  exchangeDeleted(name: string): void {
    this.#exchanges.delete(name);
    this.#forget((b) => b.fields.exchange === name || b.fields.to_exchange === name);
  }

  queueDeclared(fields: Declared<"declare_queue">, name: string): QueueRecord {
    const known = this.queue(name);
    if (known !== undefined) {
      if (known.fields.name !== "") known.fields = fields; // else it is declared again under the name that it got
      return known;
    }
    const record = { fields, first: name, name };
    this.#queues.set(name, record);
    return record;
  }

  /** The broker chose another name. */
  queueRenamed(record: QueueRecord, name: string): void {
    this.#renamed.delete(record.name);
    record.name = name;
    this.#renamed.set(name, record);
  }

  queueDeleted(name: string): void {
    const record = this.queue(name);
    if (record !== undefined) {
      this.#queues.delete(record.first);
      this.#renamed.delete(record.name);
    }
    this.#forget((b) => b.fields.queue === name || (record !== undefined && b.queue === record));
  }

  /** The queue that has a name, or was given it at first. */
  queue(name: string): QueueRecord | undefined {
    return this.#queues.get(name) ?? this.#renamed.get(name);
  }

  bound(fields: Declared<"bind">): void {
    const queue = fields.queue === undefined ? undefined : this.queue(fields.queue);
    this.#bindings.set(this.#key(fields), { fields, queue });
  }

  unbound(fields: Declared<"bind">): void {
    this.#bindings.delete(this.#key(fields));
  }

  exchanges(): Declared<"declare_exchange">[] {
    return [...this.#exchanges.values()];
  }

  queues(): QueueRecord[] {
    return [...this.#queues.values()];
  }

  bindings(): Declared<"bind">[] {
    return [...this.#bindings.values()].map(({ fields, queue }) => (queue === undefined ? fields : { ...fields, queue: queue.name }));
  }

  #forget(gone: (b: BindingRecord) => boolean): void {
    for (const [key, b] of this.#bindings) if (gone(b)) this.#bindings.delete(key);
  }

  #key({ exchange, queue, to_exchange, key, args }: Declared<"bind">): string {
    const first = queue === undefined ? undefined : (this.queue(queue)?.first ?? queue);
    return JSON.stringify([exchange, first, to_exchange, key, args], (_, v: unknown) => (typeof v === "bigint" ? `${v}n` : v));
  }
}
