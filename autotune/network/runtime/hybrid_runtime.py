"""⑩ Run an artifact of which a part is ONNX Runtime's: segment by segment, over named tensors.

    model = HybridModel(artifact)
    outputs = model.run({"image": array})

Tensors go from one segment to the next without a copy where their shape is static; see
`onnx_session` for other values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.machine import require_threads
from autotune.measure.threads import default_threads
from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.hybrid import HybridArtifact, leaves
from autotune.network.runtime.arguments import (
    Inputs,
    Outputs,
    in_order,
    outputs_given,
    require_input,
    require_names,
)
from autotune.network.runtime.hybrid_steps import HybridSteps, Seconds, StepSetting, as_passed
from autotune.network.runtime.kernel_time import KernelTime
from autotune.network.runtime.network_call import rounded
from autotune.network.runtime.onnx_session import as_array
from autotune.network.runtime.runtime import Model, needed_choice
from autotune.network.runtime.working_memory import Memory

Array = NDArray[Any]


class HybridModel(Model):
    """`Model` for a hybrid artifact: the same methods; outputs may be lists where ONNX has them.

    `is_apart`: ONNX Runtime is in a process of its own, which is slower, and may die of the model.
    Unlike other models, one that was loaded before a fork does not work in the child: ONNX
    Runtime's threads do not live there.
    """

    def __init__(
        self,
        artifact: HybridArtifact,
        threads: int | None = None,
        memory: Memory | None = None,
        is_apart: bool = False,
    ) -> None:
        require_threads(threads, are_here=False)
        self._asked = threads
        self.n_threads = threads or default_threads(artifact.n_threads)
        self.artifact = artifact
        self.segments = artifact.segments
        self._memory = memory or Memory(artifact)
        self._expected = {e.name: (as_passed(e), e.numpy_dtype) for e in artifact.inputs}
        is_alone = all(leaf.network is None for leaf in leaves(self.segments))
        setting = StepSetting(self.n_threads, self._memory, is_alone, is_apart)
        self.steps = HybridSteps(self.segments, setting)
        self._results = {end.name: (end, end.numpy_dtype) for end in artifact.outputs}
        halves = [end for end in artifact.outputs if end.stored != end.dtype]
        self._halves = {end.name: end.numpy_dtype for end in halves}
        variants: Sequence[Any] = artifact.others
        self._others = tuple(
            HybridModel(v, self.n_threads, self._memory, is_apart) for v in variants
        )
        self._choice = needed_choice(artifact)

    def __reduce__(self) -> tuple[Any, ...]:
        return HybridModel, (self.artifact, self._asked)

    def run(self, inputs: Inputs, out: Outputs = None) -> dict[str, Array]:
        """Outputs of one inference by name: see `Model.run`. `out`: for outputs of static shape.

        Raises ModelError where ONNX Runtime fails.
        """
        named = inputs if isinstance(inputs, Mapping) else in_order(self.artifact.inputs, inputs)
        variant: Any = self.variant(named)
        given = {} if out is None else outputs_given(variant._results, out)
        found: dict[str, Array] = variant._inference(named, None)
        for name, array in given.items():
            array[...] = found[name]
        return found | given

    def profile(self, inputs: Mapping[str, Array]) -> list[KernelTime]:
        """Time every kernel of one inference, and every segment of ONNX Runtime's.

        Those of branches that are not taken take no time; of a body, all iterations are added up.
        """
        variant: Any = self.variant(inputs)
        seconds = np.zeros(len(variant.artifact.kernels))
        variant._inference(inputs, seconds)
        pairs = zip(variant.artifact.kernels, seconds.tolist(), strict=True)
        return [KernelTime(kernel, time_s) for kernel, time_s in pairs]

    def untaken(self) -> tuple[str, ...]:
        """The branches and bodies that no inference has run so far, in words."""
        return tuple(self.steps.untaken())

    def _inference(self, inputs: Mapping[str, Array], seconds: Seconds) -> dict[str, Array]:
        """One inference; to `seconds` it adds the time of every kernel."""
        given = self._taken(inputs)
        tensors: dict[str, Any] = dict(given)
        self.steps.run(tensors, seconds)
        outputs: dict[str, Array] = {}
        taken = set(map(id, given.values()))
        for end in self.artifact.outputs:
            found = as_array(tensors[end.name])
            outputs[end.name] = found.copy() if id(found) in taken else found
            taken.add(id(found))
        if self._halves:
            outputs |= rounded(outputs, self._halves)
        return outputs

    def _taken(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Inputs as segments read them. Raises UsageError."""
        if inputs.keys() != self._expected.keys():
            require_names(self.artifact.inputs, inputs)
        texts = {e.name: _texts(inputs[e.name]) for e in self.artifact.inputs if _is_text(e)}
        given = {**inputs, **texts}
        return {
            name: require_input(end, dtype, given[name]) if end.dtype else given[name]
            for name, (end, dtype) in self._expected.items()
        }


def _is_text(end: Endpoint) -> bool:
    return end.dtype == "string"


def _texts(array: Any) -> Any:
    """Strings as Python has them, whatever way NumPy keeps them."""
    kind = array.dtype.kind if isinstance(array, np.ndarray) else ""
    if kind == "S":
        return np.char.decode(array).astype(object)
    return array.astype(object) if kind in ("U", "T") else array
