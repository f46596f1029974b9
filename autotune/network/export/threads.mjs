// Threads: workers that share the memory of a model -------------------------------------------------

const {team} = network;

// Turns without news after which a thread sleeps: some hundred microseconds.
const SPINS = 100000;

// How threads sleep and are woken. The thread of a page may not sleep: it looks again.
function waiting({buffer}) {
  const words = new Int32Array(buffer), maySleep = typeof document === "undefined";
  return {
    autotune_sleep(at, value) { if (maySleep) Atomics.wait(words, at >>> 2, value); },
    autotune_wake(at, n) { Atomics.notify(words, at >>> 2, n); },
  };
}

// As many as are asked for; one where a page may not share memory.
function threadsOf(asked = network.signature.threads) {
  if (!Number.isInteger(asked) || asked < 1) throw new TypeError(`${asked} is no number of threads`);
  return globalThis.crossOriginIsolated === false ? 1 : asked;
}

// Places of the team, of the job of each variant, and of the stacks of workers.
function roomsOfTeam(room, nThreads) {
  const {bytes} = team, shares = LINE * (nThreads + 1);
  return {
    nThreads, team: room(bytes.team), settings: room(bytes.settings),
    seats: team.kernels.map(() => room(bytes.seat)),
    jobs: team.kernels.map(({n}) => room(bytes.job + shares + n * (bytes.run + shares))),
    stacks: Array.from({length: nThreads - 1}, () => room(STACK_BYTES) + STACK_BYTES),
  };
}

// What the code reads of the team and of the jobs.
function settleTeam({memory, memoryBase, tables, threads}, exports) {
  const {nThreads, settings, seats, jobs} = threads, wanted = nThreads - 1;
  const put = (begin, places, values) => Object.entries(values).forEach(([name, value]) => {
    new BigInt64Array(memory.buffer, begin + places[name], 1)[0] = BigInt(value);
  });
  put(threads.team, team.words, {started: wanted, tried: wanted, capacity: nThreads, spins: SPINS,
                                 ping: team.greetings});  // nobody measures how long a thread sleeps
  put(settings, team.words, {part: team.partNs});
  team.kernels.forEach(({list, n, slot}, k) => {
    put(jobs[k], team.words, {team: threads.team, seat: seats[k], table: tables[k], shares: nThreads,
                              kernels: n, wanted, settings});
    put(tables[k], {slot}, {slot: jobs[k]});
    exports[team.prepare](BigInt(jobs[k]), BigInt(memoryBase + exports[list].value));
  });
}

// Workers that have the code and help from now on.
async function workersOf(module, {memory, memoryBase, threads}, address) {
  const Thread = globalThis.Worker ?? (await import(
      /* webpackIgnore: true */ /* @vite-ignore */ "node:worker_threads")).Worker;
  return Promise.all(threads.stacks.map((stack) => new Promise((done, failed) => {
    const worker = new Thread(address, {type: "module"});
    const on = worker.on?.bind(worker) ?? worker.addEventListener.bind(worker);
    on("message", () => {
      worker.unref?.();  // a process ends without them
      done(worker);
    });
    on("error", (error) => failed(new Error(`${network.name}: no thread: ${error.message ?? address}`)));
    worker.postMessage({module, memory, memoryBase, team: threads.team, stack});
  })));
}

/** The loop of a worker, for ever. `data`: of `workersOf`; `tell` is called when it has begun. */
export async function assist({module, memory, memoryBase, team: at, stack}, tell) {
  const where = {
    memory, memoryBase, tableBase: 1, more: waiting(memory),
    table: new WebAssembly.Table({initial: sizes(module).slots + 1, element: "anyfunc"}),
    stackPointer: new WebAssembly.Global({value: "i32", mutable: true}, stack),
  };
  const instance = await WebAssembly.instantiate(module, imports(module, where));
  const exports = settle(module, instance, where);
  tell();
  exports[team.assist](BigInt(at));
}
