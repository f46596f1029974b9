"""⑪ What a session knows of the calls of one network: of one shape, or of all sizes.

`NEXT` has all states that may follow one, which docs/drop-in.md draws. Each transition is one
method of `Entry`, called under the lock of its session. `AFTER` is the same of a session, whose
transitions are those of `Programs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from autotune.ort.contest import Contest
from autotune.ort.request import Feed, Run, SessionRequest
from autotune.ort.sizes import AllSizes

if TYPE_CHECKING:
    from autotune.network.runtime.ragged import RaggedPorts
    from autotune.network.runtime.runtime import Model

Arrays: TypeAlias = "Mapping[str, NDArray[Any]]"
Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"


class ShapeState(StrEnum):
    """Of the calls of one shape."""

    WAITING = "waiting"
    COMPILING = "compiling"
    LOADED = "loaded"
    COMPILED = "compiled"
    ONNXRUNTIME = "onnxruntime"


_WAITING, _COMPILING, _LOADED, _COMPILED, _ONNXRUNTIME = ShapeState
NEXT: Mapping[ShapeState, tuple[ShapeState, ...]] = {
    _WAITING: (_COMPILING, _LOADED, _ONNXRUNTIME),
    _COMPILING: (_WAITING, _LOADED, _ONNXRUNTIME),
    _LOADED: (_COMPILED, _ONNXRUNTIME),
    _COMPILED: (_WAITING, _LOADED, _ONNXRUNTIME),
    _ONNXRUNTIME: (),
}
"""Other states that may follow each: docs/drop-in.md says when."""


class SessionState(StrEnum):
    """Of a session: what it has compiled next."""

    READING = "reading"
    """Nothing: facts of its model are not known."""
    NAMED = "named"
    """Shapes that are named before a call."""
    CALLED = "called"
    """What is called."""
    ENDED = "ended"
    """Nothing any more."""


_READING, _NAMED, _CALLED, _ENDED = SessionState
AFTER: Mapping[SessionState, tuple[SessionState, ...]] = {
    _READING: (_NAMED, _CALLED, _ENDED),
    _NAMED: (_CALLED, _ENDED),
    _CALLED: (_ENDED,),
    _ENDED: (),
}
"""Other states that may follow each."""


@dataclass(slots=True)
class Entry:
    """Calls of one network: of one shape, or of all `sizes`. `values`: of the inputs that decide.

    `n_calls`: that it did not answer. `contests`: with ONNX Runtime, by kinds of sizes; None of a
    kind that is lost. `is_growing`: a network for larger sizes, or for padding, is wanted. `rows`:
    of a network over tokens. `n_bytes`: of memory.
    `used`: how many networks had been adopted when it was last seen to have been called, and how
    often until then; `left`: of its contests at that time.
    """

    shapes: Shapes
    values: Arrays = field(default_factory=dict)
    sizes: AllSizes | None = None
    state: ShapeState = _WAITING
    n_calls: int = 0
    reason: str = ""
    example: Arrays | None = None
    run: Run | None = None
    contests: dict[tuple[int, ...], Contest | None] = field(default_factory=dict)
    is_growing: bool = False
    rows: RaggedPorts | None = None
    n_bytes: int = 0
    used: tuple[int, int] = (0, 0)
    left: int = 0

    def begin(self) -> None:
        """A network is being compiled; one that grows goes on to answer."""
        if not self.is_growing:
            self._to(_COMPILING)

    def wait(self) -> None:
        """Another network is to be compiled, with sizes that are held."""
        self._to(_WAITING)

    def load(self, model: Model, n_bytes: int) -> None:
        """A network is there, and waits for a call to be compared with ONNX Runtime."""
        self._to(_LOADED)
        self.run = run_of_some(model) if self.values else model.run
        self.rows, self.n_bytes, self.is_growing = model.ragged_ports, n_bytes, False
        if self.sizes is not None:
            self.sizes.adopt(model.input_info)

    def adopt(self) -> None:
        """It agrees with ONNX Runtime, and answers."""
        self._to(_COMPILED)
        self.example, self.n_calls = None, 0

    def refuse(self, reason: str) -> None:
        """ONNX Runtime answers from now on."""
        self._to(_ONNXRUNTIME)
        self.reason, self.is_growing = reason, False
        self.example = self.run = None

    def _to(self, state: ShapeState) -> None:
        assert state in (self.state, *NEXT[self.state]), f"{self.state} is not followed by {state}"
        self.state = state

    @property
    def live(self) -> list[Contest]:
        """Contests that are not lost."""
        return [contest for contest in self.contests.values() if contest is not None]

    def takes(self, shapes: Shapes) -> bool:
        """Whether what is compiled takes calls of these shapes."""
        return self.sizes is None or self.sizes.takes(shapes)

    def contest(self, shapes: Shapes, is_held: bool) -> Contest | None:
        """That of calls of these shapes; None where it is lost."""
        kind = () if self.sizes is None else self.sizes.kind(shapes)
        if kind not in self.contests:
            assert self.run is not None
            self.contests[kind] = Contest(self.run, is_held)
        return self.contests[kind]

    def request(self, model: SessionRequest) -> SessionRequest:
        """What is asked for these calls of a model."""
        example = {n: a for n, a in (self.example or {}).items() if n not in self.values}
        return replace(
            model,
            shapes=self.shapes if self.sizes is None else {},
            mosts=None if self.sizes is None else self.sizes.wanted,
            held={} if self.sizes is None else self.sizes.held,
            dims={},
            constants={**model.constants, **self.values},
            check_inputs=example or None,
            ragged=self.sizes is not None and model.is_packed(self.sizes),
        )


def run_of_some(model: Model) -> Run:
    """Inferences of a model that has fewer inputs than the session's."""
    names = [end.name for end in model.input_info]

    def run(feed: Feed, out: Any = None) -> dict[str, NDArray[Any]]:
        return model.run({name: feed[name] for name in names}, out)

    return run
