"""⑩ Batches of rows of given lengths, for measuring: their lengths as text, and padded arrays.

lengths_in("12,7,30")   [12, 7, 30]
lengths_in("32~12")     32 lengths around a median of 12
lengths_in("rows.txt")  one a line
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.network.runtime.runtime import Model, random_inputs

Array = NDArray[Any]

SPREAD = 0.8
"""Standard deviation of the logarithm of lengths that are drawn: the mean is 1.38 medians, one of
40 rows is longer than five."""
_MOST = 1 << 20
_FORM = "write lengths (12,7,30), how many around a median (32~12), or a file with one a line"


def lengths_in(text: str) -> list[int]:
    """Lengths of rows. Raises UsageError for a text that tells none."""
    drawn = re.fullmatch(r"(\d+)~(\d+)", text.strip())
    if drawn is not None:
        n, median = map(int, drawn.groups())
        if not 0 < n <= _MOST or not 0 < median <= _MOST:
            raise UsageError(f"'{text}' is no batch of rows", _FORM)
        draws = np.random.default_rng(0).lognormal(math.log(median), SPREAD, n)
        return [max(1, round(float(x))) for x in draws]
    if re.fullmatch(r"[\d,\s]+", text) is None:
        path = Path(text)
        if not path.is_file():
            raise UsageError(f"'{text}' is no batch of rows", _FORM)
        text = path.read_text(errors="replace")
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() and 0 < int(word) <= _MOST for word in words):
        raise UsageError(f"'{text.strip()[:40]}' has no lengths of rows", _FORM)
    return [int(word) for word in words]


def batch_of(model: Model, lengths: Sequence[int], seed: int = 0) -> dict[str, Array]:
    """Padded arrays of random tokens, in rows of these lengths; longer ones are cut.

    Raises UsageError for a model that is not over tokens, and for more rows than it takes.
    """
    ports = model.ragged_ports
    if ports is None:
        raise UsageError("the model is not over tokens", "compile it with `ragged`")
    if not 0 < len(lengths) <= ports.batch.most:
        raise UsageError(
            f"{len(lengths)} rows are no batch of 1 to {ports.batch.most}", "give fewer rows"
        )
    counts = np.minimum(lengths, ports.sequence.most)
    whole = ports.mask_of(counts)
    numbers = {ports.batch.name: len(counts), ports.sequence.name: int(counts.max())}
    ends = tuple(port.at(numbers) for port in ports.inputs)
    return {**random_inputs(ends, seed), ports.ragged.mask: whole}
