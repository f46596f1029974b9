"""⑩ A compiled network in the measuring program: its check where this CPU cannot run it.

    model = FarModel(connect("qemu-aarch64-static -cpu max", program), artifact)
    outputs = model.run({"input": array})

One thread of that process computes; nothing is timed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from autotune.codegen.team import team_code
from autotune.dtypes import DTYPES
from autotune.errors import UsageError
from autotune.measure.far.program import Connection, FarBlock, FarCode, ProgramEnded
from autotune.measure.timing.executor import SharedBlock
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.numbers import require_numbers
from autotune.network.artifact.table import ARENA, CONSTANTS, RUN, entry_name
from autotune.network.runtime.arguments import Inputs, Outputs, ends_by_name
from autotune.network.runtime.network_call import rounded, window
from autotune.network.runtime.ragged import RaggedPorts
from autotune.network.runtime.runtime import Array, Model

_WORD = 8
_LIMIT_S = 600


class FarModel(Model):
    """`Model` over a connection: `run` alone, of one variant."""

    def __init__(self, connection: Connection, artifact: Artifact) -> None:
        self.n_threads = 1
        self.artifact = artifact
        if artifact.ragged is not None:
            self._ragged = RaggedPorts(artifact, artifact.ragged)
        self._connection = connection
        self._expected = ends_by_name(artifact.own_inputs)
        self._given_numbers: Mapping[int, int] = {}
        halves = [end for end in artifact.outputs if end.stored != end.dtype]
        self._halves = {end.name: end.numpy_dtype for end in halves}
        self._image = FarCode(connection, artifact.image)
        constants = self._block(artifact.constants.nbytes)
        constants.array[:] = artifact.constants
        constants.push()
        self._arena = self._block(artifact.arena_bytes)
        self._table, self._job = self._block(_WORD * (artifact.n_bases + 2)), self._prepared_job()
        table = self._table.array.view(np.int64)
        table[[ARENA, CONSTANTS, artifact.n_bases]] = (
            self._arena.address,
            constants.address,
            self._job[0].address,
        )
        ends = (*artifact.inputs, *artifact.outputs)
        self._arrays = {
            end.base: self._block(_stored_bytes(end)) for end in ends if end.window is None
        }
        for base, block in self._arrays.items():
            table[base] = block.address
        self._table.push()
        self._job[0].array.view(np.int64)[team_code.TABLE // _WORD] = self._table.address
        self._job[0].push()
        self._keep = constants

    def run(self, inputs: Inputs, out: Outputs = None) -> dict[str, Array]:
        """Outputs of one inference by name. Raises UsageError where the program ends."""
        named = self._named(inputs) if self._ragged is None else self._with_places(inputs)
        arrays = self._check(named)
        for end in self.artifact.inputs:
            where = window(self._memory_of(end), end)
            where[...] = arrays[end.name].reshape(where.shape)
        for base, number in self._given_numbers.items():
            self._arrays[base].array.view(np.int64)[0] = number
        for block in (self._arena, *self._arrays.values()):
            block.push()
        entry = self._image.address(entry_name(RUN, self.artifact.entry))
        try:
            self._connection.call(entry, self._table.address, 1, limit_s=_LIMIT_S)
        except ProgramEnded as error:
            raise UsageError(
                f"the network ends the process that runs it: {error}",
                "run it on the CPU that it was compiled for: see `runner`",
            ) from error
        for block in (self._arena, *self._arrays.values()):
            block.pull()
        outputs = {
            end.name: window(self._memory_of(end), end).reshape(end.shape).copy()
            for end in self.artifact.outputs
        }
        return outputs | rounded(outputs, self._halves)

    def sized(self, numbers: Mapping[str, int]) -> FarModel:
        """See `Model`."""
        numbers = self._ragged.numbers(numbers) if self._ragged else numbers
        require_numbers(self.artifact.possible, numbers)
        if not self.artifact.lengths:
            return self
        model = object.__new__(FarModel)  # over the same memory
        model.__dict__.update(self.__dict__)
        bases = {end.name: end.base for end in self.artifact.inputs}
        model._given_numbers = {bases[p]: numbers[n] for n, p in self.artifact.lengths.items()}
        model.artifact = self.artifact.at(numbers)
        model._whole = self, dict(numbers)
        model._expected = ends_by_name(model.artifact.inputs)
        return model

    def spoil(self) -> None:
        """See `Model`."""
        self._arena.array[:] = 0xFF

    def _memory_of(self, end: Endpoint) -> Array:
        block = self._arrays.get(end.base)
        return (self._arena if block is None else block).array

    def _block(self, n_bytes: int) -> SharedBlock:
        return FarBlock(self._connection, n_bytes)

    def _prepared_job(self) -> tuple[SharedBlock, SharedBlock]:
        """A job and a team that nobody but the caller is in."""
        job, team = self._block(team_code.JOB_BYTES), self._block(team_code.TEAM_BYTES)
        job.array.view(np.int64)[team_code.TEAM // _WORD] = team.address
        return job, team


def _stored_bytes(end: Endpoint) -> int:
    return max(1, math.prod(end.shape)) * DTYPES[end.stored].numpy.itemsize
