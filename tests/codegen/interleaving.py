"""Run functions of `autotune.codegen.team.native` step by step, the threads' steps in any order.

Every operation on memory is one step. Plain and releasing stores wait in a buffer of their thread:
any of them may become visible next, but a releasing one only after all before it, and two to one
word in their order; operations that are sequentially consistent empty the buffer first. That is
what x86 does (which keeps all of them in order) and ARM may do to stores. Loads are in order.
"""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from autotune.codegen.team import native

Steps = Generator[tuple[Any, ...], int, int]

OPERATIONS = [
    name
    for name, value in vars(native).items()
    if inspect.isfunction(value) and value.__module__ == native.__name__ and name != "native_ir"
    if not name.startswith("_")
]


class _AsSteps(ast.NodeTransformer):
    """`f(x)` of the module becomes `(yield from f(x))`, an operation `(yield (name, x))`."""

    def __init__(self, functions: set[str]) -> None:
        self.functions = functions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.body += ast.parse("return (yield ('nothing',))").body
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        assert isinstance(node.func, ast.Name)
        if node.func.id in self.functions:
            return ast.YieldFrom(node)
        assert node.func.id in OPERATIONS, node.func.id
        return ast.Yield(ast.Tuple([ast.Constant(node.func.id), *node.args], ast.Load()))


def as_steps(module: ModuleType, change: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """The functions of `module` as generators of steps, by name; with a change of the text."""
    text = inspect.getsource(module)
    assert change[0] in text
    body = ast.parse(text.replace(*change)).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    found = dict(vars(module))
    names = {function.name for function in functions}
    tree = ast.Module([_AsSteps(names).visit(f) for f in functions], [])
    exec(compile(ast.fix_missing_locations(tree), module.__name__, "exec"), found)
    return found


@dataclass
class Thread:
    """`steps` with the answer that its last one gets; `stores`: (at, value, is a release)."""

    name: str
    steps: Steps
    answer: int | None = None
    stores: list[tuple[int, int, bool]] = field(default_factory=list)
    asleep_at: int | None = None
    is_over: bool = False


class Machine:
    """Memory of words, and threads of which a seeded draw chooses who does the next step.

    Now and then some of them do nothing for long, as those that have lost their core.
    """

    def __init__(self, seed: int, kernel: Callable[[int, int, int, int], Steps]) -> None:
        self.rng = random.Random(seed)
        self.memory: dict[int, int] = {}
        self.threads: list[Thread] = []
        self.kernel = kernel
        self.time = 0
        self.restlessness = self.rng.choice([0.02, 0.1, 0.5, 1.0])
        self.n_sleeps = 0
        self.frozen: set[str] = set()
        self.thaw_at = 0
        self.freed: list[range] = []
        self.wrong: list[str] = []

    def start(self, name: str, steps: Steps) -> None:
        """One more thread."""
        self.threads.append(Thread(name, steps))

    def run(self, names: set[str], n_steps: int) -> str:
        """Until the threads of `names` are over; "" or what went wrong."""
        current: Thread | None = None
        for self.time in range(n_steps):
            wanted = [t for t in self.threads if t.name in names]
            if all(t.is_over for t in wanted):
                return ""
            able = [t for t in self.threads if not t.is_over and t.asleep_at is None]
            if self.time >= self.thaw_at:
                self.thaw_at += self.rng.choice([20, 200, 1000])
                self.frozen = {t.name for t in self.threads if self.rng.random() < 0.3}
            able = [t for t in able if t.name not in self.frozen] or able
            if not able:
                return f"all sleep, and {[t.name for t in wanted if not t.is_over]} wait for ever"
            if current not in able or self.rng.random() < self.restlessness:
                current = self.rng.choice(able)
            assert current is not None
            for thread in self.threads:
                if thread.stores and self.rng.random() < 0.3:
                    self._show_one(thread)
            self._step(current)
        return f"not over after {n_steps} steps"

    def read(self, at: int) -> int:
        """A word as it is in memory."""
        if any(at in each for each in self.freed):
            self.wrong.append("memory that was freed is read or written")
        return self.memory.get(at, 0)

    def _step(self, thread: Thread) -> None:
        try:
            name, *values = thread.steps.send(thread.answer)
        except StopIteration:
            self._show(thread)
            thread.is_over = True
            return
        thread.answer = getattr(self, f"_{name}")(thread, *values)

    def _seen(self, thread: Thread, at: int) -> int:
        own = [value for where, value, _ in thread.stores if where == at]
        return own[-1] if own else self.read(at)

    def _show_one(self, thread: Thread) -> None:
        able = [
            n
            for n, (at, _, is_release) in enumerate(thread.stores)
            if (n == 0 or not is_release) and all(at != other for other, _, _ in thread.stores[:n])
        ]
        at, value, _ = thread.stores.pop(self.rng.choice(able))
        self.memory[at] = value

    def _show(self, thread: Thread) -> None:
        while thread.stores:
            at, value, _ = thread.stores.pop(0)
            self.memory[at] = value

    def _nothing(self, thread: Thread) -> int:
        return 0

    def _load(self, thread: Thread, at: int) -> int:
        return self._seen(thread, at)

    _load_acquire = _load

    def _load_sequential(self, thread: Thread, at: int) -> int:
        self._show(thread)
        return self.read(at)

    def _store(self, thread: Thread, at: int, value: int) -> int:
        thread.stores.append((at, value, False))
        return 0

    def _store_release(self, thread: Thread, at: int, value: int) -> int:
        thread.stores.append((at, value, True))
        return 0

    def _add(self, thread: Thread, at: int, amount: int) -> int:
        self._show(thread)
        before = self.read(at)
        self.memory[at] = before + amount
        return before

    def _compare_exchange(self, thread: Thread, at: int, old: int, new: int) -> int:
        self._show(thread)
        before = self.read(at)
        if before == old:
            self.memory[at] = new
        return before

    def _pause(self, thread: Thread) -> int:
        return 0

    _give_way = _flush_denormals = _pause

    def _sleep_while(self, thread: Thread, at: int, value: int) -> int:
        self._show(thread)
        if self.read(at) & 0xFFFFFFFF == value & 0xFFFFFFFF:
            thread.asleep_at = at
            self.n_sleeps += 1
        return 0

    def _wake(self, thread: Thread, at: int, count: int) -> int:
        asleep = [t for t in self.threads if t.asleep_at == at]
        for other in self.rng.sample(asleep, min(count, len(asleep))):
            other.asleep_at = None
        return 0

    def _invoke(self, thread: Thread, code: int, table: int, begin: int, end: int) -> None:
        thread.steps = _first(self.kernel(code, table, begin, end), thread.steps)
        # no answer: a generator that begins is sent None

    def _start_thread(self, thread: Thread, function: Any, argument: int) -> int:
        self._show(thread)
        self.start(f"helper {len(self.threads)}", function(argument))
        return 0

    def _restore_denormals(self, thread: Thread, former: int) -> int:
        return 0

    def _bind_thread(self, thread: Thread, mask: int, n_bytes: int) -> int:
        return 0

    def _nanoseconds(self, thread: Thread) -> int:
        return self.time


def _first(inner: Steps, outer: Steps) -> Steps:
    """The steps of `inner`, then those of `outer`, which waits for an answer."""
    yield from inner
    answer: int = 0
    while True:
        try:
            step = outer.send(answer)
        except StopIteration:
            return 0
        answer = yield step
