// The measuring program of WebAssembly, in JavaScript: requests and answers are those of `program.c`.
// Addresses are those of one memory; a function's is its slot in one table. Instead of PROTECT and
// SYMBOL, which it does not have, code comes by
//
//   9 PLACE n, n bytes of a module   -> slot of its first function, 0 where it is refused
//  10 REMOVE slot                       (no answer)
//
// A trap ends it with exit code 1, a call that takes too long with SIGALRM.

import fs from "node:fs";
import os from "node:os";
import v8 from "node:v8";
import {Worker} from "node:worker_threads";

const PAGE = 1 << 16, MOST_SLOTS = 1e7, MOST_BYTES = 1 << 30;
const CACHES = "/sys/devices/system/cpu/cpu0/cache/index";

// All code is optimised before it runs for the first time.
v8.setFlagsFromString("--no-liftoff");
v8.setFlagsFromString("--no-wasm-lazy-compilation");

// f32x4.relaxed_madd, which older engines know behind a flag
const RELAXED = Uint8Array.of(
    0, 97, 115, 109, 1, 0, 0, 0, 1, 8, 1, 96, 3, 123, 123, 123, 1, 123, 3, 2, 1, 0,
    10, 13, 1, 11, 0, 32, 0, 32, 1, 32, 2, 253, 133, 2, 11);
if (!WebAssembly.validate(RELAXED)) v8.setFlagsFromString("--experimental-wasm-relaxed-simd");

// A range of numbers, parts of which are taken and given back; it ends at `most`.
class Space {
  constructor(begin, most, grow) {
    this.free = [];  // [begin, end) in order, apart from one another
    this.end = begin;
    this.most = most;
    this.grow = grow;
  }

  // Begin of `n` in a row, 0 without room
  take(n) {
    for (const range of this.free)
      if (range[1] - range[0] >= n) {
        range[0] += n;
        if (range[0] === range[1]) this.free.splice(this.free.indexOf(range), 1);
        return range[0] - n;
      }
    if (this.end + n > this.most || !this.grow(this.end + n)) return 0;
    this.end += n;
    return this.end - n;
  }

  give(begin, n) {
    const at = this.free.findIndex(([other]) => other > begin);
    this.free.splice(at < 0 ? this.free.length : at, 0, [begin, begin + n]);
    this.free = this.free.reduce((kept, range) => {
      const last = kept.at(-1);
      if (last?.[1] === range[0]) last[1] = range[1];
      else kept.push(range);
      return kept;
    }, []);
  }
}

const memory = new WebAssembly.Memory({initial: STACK_BYTES / PAGE, maximum: PAGE});
const table = new WebAssembly.Table({element: "anyfunc", initial: 1});
// The stack begins the memory: what overflows it traps.
const stackPointer = new WebAssembly.Global({value: "i32", mutable: true}, STACK_BYTES);
const bytes = new Space(STACK_BYTES, PAGE * PAGE, growMemory);
const slots = new Space(1, MOST_SLOTS, growTable);
const placed = new Map();
let words = new Int32Array(memory.buffer);
const more = {
  sched_setaffinity: () => 0,
  sched_yield: () => 0,
  clock_gettime(clock, at) {
    const ms = performance.now(), s = Math.floor(ms / 1e3), first = at >> 2;
    words[first] = s;
    words[first + 1] = 0;
    words[first + 2] = (ms - s * 1e3) * 1e6;
    words[first + 3] = 0;
    return 0;
  },
};

function growMemory(end) {
  const n = Math.ceil(end / PAGE) - memory.buffer.byteLength / PAGE;
  try {
    if (n > 0) memory.grow(n);
    words = new Int32Array(memory.buffer);
    return true;
  } catch {
    return false;
  }
}

function growTable(end) {
  if (end > table.length) table.grow(end - table.length);
  return true;
}

const pages = (n) => Math.ceil(n / 4096) * 4096;

function map(n) {
  const begin = bytes.take(pages(n));
  if (begin) new Uint8Array(memory.buffer, begin, n).fill(0);
  return begin;
}

function placeModule(data) {
  const module = new WebAssembly.Module(data);
  const needs = sizes(module);
  const n = needs.bytes + needs.alignment;
  const begin = map(n), tableBase = slots.take(needs.slots);
  if (!begin) throw new RangeError("no memory for a module");
  placed.set(tableBase, [begin, pages(n), needs.slots]);
  const memoryBase = Math.ceil(begin / needs.alignment) * needs.alignment;
  place(module, {memory, table, memoryBase, tableBase, stackPointer, more});
  return tableBase;
}

function remove(slot) {
  const [begin, n, count] = placed.get(slot);
  placed.delete(slot);
  bytes.give(begin, n);
  for (let k = 0; k < count; k++) table.set(slot + k, null);
  slots.give(slot, count);
}

// A thread which ends the process when a call takes more than the seconds of word 1. Word 0 is odd
// while one runs; it is looked at now and then, so that the thread takes no time from what is timed.
const calls = new Int32Array(new SharedArrayBuffer(8));
let watch = null;
const WATCHING = `
  const {workerData: calls} = require("node:worker_threads");
  const pause = new Int32Array(new SharedArrayBuffer(4));
  for (let seen = 0, since = 0;;) {
    Atomics.wait(pause, 0, 0, 200);
    const now = Atomics.load(calls, 0), limit = Atomics.load(calls, 1) * 1e3;
    if (now !== seen) [seen, since] = [now, performance.now()];
    else if (now % 2 && performance.now() - since > limit) process.kill(process.pid, "SIGALRM");
  }`;

function call(slot, seconds, a, ...others) {
  watch ??= new Worker(WATCHING, {eval: true, workerData: calls, stdout: true});
  Atomics.store(calls, 1, Number(seconds));
  Atomics.add(calls, 0, 1);
  const result = table.get(Number(slot))(Number(a), ...others);
  Atomics.add(calls, 0, 1);
  return BigInt(result ?? 0);
}

function readFact(path) {
  try {
    return fs.readFileSync(path, "utf8").trim();
  } catch {
    return null;
  }
}

function facts() {
  const lines = ["cpu 0"];
  for (let index = 0; index < 8; index++)
    for (const name of ["level", "type", "size"]) {
      const value = readFact(`${CACHES}${index}/${name}`);
      if (value !== null) lines.push(`${name} ${value}`);
    }
  lines.push(`model ${os.cpus()[0]?.model ?? "unknown"}`);
  lines.push(`engine node ${process.versions.node}, V8 ${process.versions.v8}`);
  return Buffer.from(lines.join("\n") + "\n");
}

// `transfer`, again and again where a parent has made the pipe one that does not wait.
function patiently(transfer) {
  for (;;)
    try {
      return transfer();
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
}

function get(to) {
  for (let at = 0; at < to.length;) {
    const n = patiently(() => fs.readSync(0, to, at, Math.min(to.length - at, MOST_BYTES)));
    if (n === 0) process.exit(0);
    at += n;
  }
  return to;
}

function put(from) {
  for (let at = 0; at < from.length;)
    at += patiently(() => fs.writeSync(1, from, at, Math.min(from.length - at, MOST_BYTES)));
}

const word = new DataView(new ArrayBuffer(8));

function answer(value) {
  word.setBigUint64(0, BigInt.asUintN(64, BigInt(value)), true);
  put(new Uint8Array(word.buffer));
}

const request = new BigUint64Array(8), requestBytes = new Uint8Array(request.buffer);
const part = (address, n) => new Uint8Array(memory.buffer, Number(address), Number(n));
const handlers = {
  [FACTS]: () => {
    const text = facts();
    answer(text.length);
    put(text);
  },
  [MAP]: (n) => answer(map(Number(n))),
  [UNMAP]: (address, n) => bytes.give(Number(address), pages(Number(n))),
  [WRITE]: (address, n) => get(part(address, n)),
  [READ]: (address, n) => {
    answer(n);
    put(part(address, n));
  },
  [CALL]: (slot, seconds, ...others) => answer(call(slot, seconds, ...others)),
  [PLACE]: (n) => {
    const data = get(new Uint8Array(Number(n)));
    let slot = 0;
    try {
      slot = placeModule(data);
    } catch (error) {
      fs.writeSync(2, `${error}\n`);
    }
    answer(slot);
  },
  [REMOVE]: (slot) => remove(Number(slot)),
};

if (process.argv[2] === "unlink") fs.unlinkSync(process.argv[1]);
try {
  put(Buffer.from("autotune")); // what a shell has greeted with comes before
  for (;;) {
    get(requestBytes);
    const [what, ...arguments_] = request;
    handlers[what](...arguments_);
  }
} catch (error) {
  fs.writeSync(2, `${error}\n`);
  process.exit(1);
}
