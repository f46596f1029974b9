"""① A model's file with the constants that a user has bound: its graph depends on both."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from autotune.cache import FileStore
from autotune.graph.constant_values import Constants
from autotune.graph.operators.user_operators import UserOperators
from autotune.graph.reader.dimensions import Shapes
from autotune.graph.reader.onnx_reader import (
    OnnxModel,
    Parted,
    load_model,
    model_hash,
    read_parted,
)


@dataclass(frozen=True)
class BoundModel:
    """A model's file, and the constants that a user has bound.

    `random_weights`: give a model that comes without weights (each is a ConstantOfShape) random
    ones. `operators`: those of a user, see `user_operators`. `constants`: inputs that have the same
    value in every inference. `store`: where digests of files are kept. `parted`: what was read of
    the file.
    """

    path: Path
    random_weights: bool = False
    operators: UserOperators | None = None
    constants: Constants = field(default_factory=dict)
    store: FileStore | None = None
    parted: Parted | None = field(default=None, compare=False, repr=False)

    @cached_property
    def digest(self) -> str:
        """Identity of the model's files."""
        return model_hash(self.path, self.store)

    def load(self, shapes: Shapes | None, compilable: bool = True) -> OnnxModel:
        """The model at these shapes of its inputs; errors: see `onnx_reader.load_model`."""
        bound = shapes, self.random_weights, self.constants
        return load_model(self.path, *bound, compilable, self.parted)

    def held(self) -> BoundModel:
        """The same, to be loaded at several shapes: the file is read now and no more."""
        return replace(self, parted=read_parted(self.path))
