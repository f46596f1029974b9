"""⑩ The variant of a model that is for inputs of some shapes: one choice, wherever it is called.

    choice_of(artifact).number({"ids": array of (1, 128)})  ─►  1

Libraries of C and modules compare the shapes of the same inputs with the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from autotune.errors import UsageError
from autotune.network.artifact.artifact import Artifact

Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"


class VariantChoice:
    """Which of several networks takes inputs of some shapes.

    `shapes`: of the inputs of each.
    """

    def __init__(self, shapes: Sequence[Shapes]) -> None:
        names = [n for n in shapes[0] if len({one[n] for one in shapes}) > 1]
        self._shapes = [{n: one[n] for n in names} for one in shapes]
        self._key, self._numbers = _table(self._shapes)

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that tell; none where there is one network."""
        return tuple(self._shapes[0])

    def number(self, inputs: Mapping[str, Any]) -> int | None:
        """Number of the network with the shapes of `inputs`; None where none has them."""
        try:
            return self._numbers.get(self._key(inputs))
        except (KeyError, AttributeError, TypeError):
            return None

    def error(self, inputs: Mapping[str, Any]) -> UsageError:
        """The error for inputs of other shapes; it lists those that there are."""
        given = {n: getattr(inputs[n], "shape", ()) for n in self.names}
        return UsageError(
            f"no variant is for inputs of shape {_text(given)}",
            f"there are {'; '.join(map(_text, self._shapes))}: "
            "compile the model for more with `dims`",
        )


def choice_of(artifact: Artifact) -> VariantChoice:
    """The choice of a variant of an artifact by all of its inputs."""
    shapes = [
        {end.name: end.shape for end in one.own_inputs} for one in (artifact, *artifact.others)
    ]
    return VariantChoice(shapes)


def _table(
    shapes: Sequence[Shapes],
) -> tuple[Callable[[Mapping[str, Any]], object], dict[object, int]]:
    """What of inputs tells the number of a network, and the number by it.

    One input where that is enough, else all whose shapes differ.
    """
    alone = [n for n in shapes[0] if len({one[n] for one in shapes}) == len(shapes)]
    if alone:
        name = alone[0]
        return (lambda x: x[name].shape), {one[name]: k for k, one in enumerate(shapes)}
    names = tuple(shapes[0])
    found: dict[object, int] = {tuple(one[n] for n in names): k for k, one in enumerate(shapes)}
    return (lambda x: tuple([x[n].shape for n in names])), found


def _text(shapes: Shapes) -> str:
    return ", ".join(f"{n} {'x'.join(map(str, s)) or 'scalar'}" for n, s in shapes.items())
