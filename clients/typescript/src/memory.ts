// One connection to a memory's HTTP service. What its methods take is in methods.ts, which is generated.

import { methodsOf, type Methods } from "./methods.js";

/** Text stands for its UTF-8. */
export type Bytes = string | { base64: string };

/** A change of a file, or mail, as the service tells of it. `id`: pass it as `since` to go on from there. */
export interface MemoryEvent {
  event: "change" | "more" | "mail";
  data: any;
  id: string;
}

/** What the memory refused. `code` is the name of an errno (ENOENT: no such thing, or none that you may see). */
export class MemoryError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly errno: number,
    readonly path: string | null,
    reason: string,
  ) {
    super(path === null ? reason : `${path}: ${reason}`);
    this.name = "MemoryError";
  }
}

export class Memory {
  /** Unread urgent mail, as of the last answer. */
  urgent = "";
  readonly #url: URL;
  readonly #token: string;

  /** `url`: https://HOST:PORT, or http:// for this machine alone. `token`: an API key, or a session's. */
  constructor(url: string, token: string) {
    this.#url = new URL(url);
    const here = ["localhost", "127.0.0.1", "[::1]"].includes(this.#url.hostname);
    if (this.#url.protocol !== "https:" && !(this.#url.protocol === "http:" && here))
      throw new TypeError("https:// is needed beyond this machine: http:// would show the token to the network");
    this.#token = token;
  }

  /** The memory's methods, by their names. */
  readonly methods: Methods = methodsOf(this);

  /** A method's result. Throws MemoryError for what the memory refuses. */
  async call(method: string, given: object = {}, signal?: AbortSignal): Promise<any> {
    const answer = await this.#ask(`/api/${encodeURIComponent(method)}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(given),
      ...(signal && { signal }),
    });
    const told = (await answer.json()) as { result: unknown; urgent: string };
    this.urgent = told.urgent;
    return told.result;
  }

  /** Changes and mail as they happen, until `signal` ends it. */
  async *events(pattern = "/memory/*", since?: string, signal?: AbortSignal): AsyncGenerator<MemoryEvent> {
    const query = new URLSearchParams({ pattern, ...(since !== undefined && { since }) });
    const answer = await this.#ask(`/events?${query}`, signal ? { signal } : {});
    let id = since ?? "";
    for await (const block of blocks(answer.body!)) {
      const fields = new Map(block.split("\n").map((line) => line.split(/: (.*)/s, 2) as [string, string]));
      id = fields.get("id") ?? id;
      const data = fields.get("data");
      if (data !== undefined) yield { event: fields.get("event") as MemoryEvent["event"], data: JSON.parse(data), id };
    }
  }

  async #ask(path: string, init: RequestInit): Promise<Response> {
    const headers = { ...init.headers, authorization: `Bearer ${this.#token}` };
    const answer = await fetch(new URL(path, this.#url), { ...init, headers, redirect: "error" });
    if (answer.ok) return answer;
    const error = refusal(await answer.text());
    if (error) throw new MemoryError(answer.status, error.code, error.errno, error.path, error.reason);
    const [code, errno] = answer.status === 429 || answer.status >= 500 ? (["EAGAIN", 11] as const) : (["ENOENT", 2] as const);
    throw new MemoryError(answer.status, code, errno, null, `no memory answers at that address (status ${answer.status})`);
  }
}

/** What the service says of an error; none where it is a proxy's own, or a full service's. */
function refusal(text: string): { code: string; errno: number; path: string | null; reason: string } | undefined {
  try {
    const { error } = JSON.parse(text);
    return error?.reason === undefined ? undefined : error;
  } catch {
    return undefined;
  }
}

/** The bytes of an answer's value; text is its UTF-8. */
export function bytesOf(value: Bytes): Uint8Array {
  return typeof value === "string" ? new TextEncoder().encode(value) : Uint8Array.from(atob(value.base64), (c) => c.charCodeAt(0));
}

async function* blocks(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let left = "";
  for await (const piece of body as unknown as AsyncIterable<Uint8Array>) {
    const found = (left + decoder.decode(piece, { stream: true })).split("\n\n");
    left = found.pop()!;
    yield* found;
  }
}
