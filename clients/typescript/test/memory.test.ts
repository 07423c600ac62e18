// Against a service: AVM_URL and AVM_TOKEN name it (tests/http/test_http_typescript.py starts one).

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { bytesOf, Memory, MemoryError } from "../src/index.js";

const url = process.env["AVM_URL"]!;
const memory = new Memory(url, process.env["AVM_TOKEN"]!);
const { methods } = memory;

test("what is written is read and found", async () => {
  const written = await methods.write({ path: "/shared/typed.md", data: "the typed heron\n" });
  assert.equal(written["version"], 1);
  const read = await methods.read({ path: "/shared/typed.md" });
  assert.equal(new TextDecoder().decode(bytesOf(read["data"])), "the typed heron\n");
  const found = await methods.search({ q: "heron" });
  assert.deepEqual(found["hits"].map((hit: { path: string }) => hit.path), ["/memory/shared/typed.md"]);
});

test("bytes that are no text come as they are", async () => {
  await methods.write({ path: "/shared/raw.bin", data: { base64: "/wD+" } });
  const read = await methods.read({ path: "/shared/raw.bin" });
  assert.deepEqual([...bytesOf(read["data"])], [0xff, 0, 0xfe]);
});

test("a refusal is an error with its code and path", async () => {
  await assert.rejects(methods.read({ path: "/shared/none.md" }), (error: unknown) => {
    assert.ok(error instanceof MemoryError);
    assert.deepEqual([error.status, error.code, error.errno], [404, "ENOENT", 2]);
    return true;
  });
  await assert.rejects(new Memory(url, "nobody's").methods.tags(), { status: 401 });
});

test("what stands before a memory and cannot answer is busy", async () => {
  const server = createServer((_, answer) => void answer.writeHead(503, { "content-type": "text/plain" }).end("later"));
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  try {
    const refused = { name: "MemoryError", status: 503, code: "EAGAIN" };
    await assert.rejects(new Memory(`http://127.0.0.1:${port}`, "x").methods.tags(), refused);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test("changes come as events, and a later stream goes on", async () => {
  const until = new AbortController();
  const { seq } = await methods.watch();
  await methods.write({ path: "/shared/told.md", data: "x" });
  for await (const each of memory.events("/shared/told.md", String(seq), until.signal)) {
    assert.equal(each.event, "change");
    assert.equal(each.data.path, "/memory/shared/told.md");
    break;
  }
  until.abort();
});

test("the first event of a stream from now on says where to go on", async () => {
  const until = new AbortController();
  const events = memory.events("/shared/early.md", undefined, until.signal);
  const first = events.next();
  const write = async () => void (await methods.write({ path: "/shared/early.md", data: "x" }));
  let told = await Promise.race([first, write()]);
  while (!told) told = await Promise.race([first, write()]);
  assert.match(told.value.id, /^[0-9]+$/);
  await events.return(undefined);
  until.abort();
});

test("a token is not sent in the clear to another machine", () => {
  assert.throws(() => new Memory("http://192.0.2.1:7654", "x"), /https/);
  assert.throws(() => new Memory("ftp://localhost", "x"), TypeError);
});
