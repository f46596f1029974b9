"""Labels of classes: whole numbers; strings are refused here (`classes_of`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.graph.ir import Array
from autotune.graph.rewriter import Rewriter


@dataclass(frozen=True)
class Classes:
    """Labels by number of the class."""

    labels: Array

    @property
    def size(self) -> int:
        """How many classes there are."""
        return self.labels.size

    def emit(self, rw: Rewriter, chosen: str) -> None:
        """The labels of rows, given the numbers of their classes, as the first result."""
        rw.result("Gather", rw.array(self.labels), chosen)


def classes_of(rw: Rewriter, integers: str) -> Classes:
    """The classes that attributes list. Raises UnsupportedOperator for strings."""
    if rw.attr("classlabels_strings", ()):
        raise rw.refuse("labels that are strings")
    return Classes(np.array(rw.attr(integers, ()), np.int64))
