"""① Weights in another order, converted once for all readings of a model.

A model with lengths or with a state is read at a dozen sizes, each time with all of its weights.
Whoever holds a converted array, a graph or a network, owns it: nothing is kept alive here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from weakref import WeakValueDictionary

import numpy as np

from autotune.graph.ir import Array

_KNOWN: WeakValueDictionary[tuple[str, str], Array] = WeakValueDictionary()


def converted(make: Callable[[], Array], form: str, key: str) -> Array:
    """What `make` makes of the weights of `key` in order `form`; read-only, where there is a key.

    The same array as before, as long as anybody has it.
    """
    if not key:
        return make()
    found = _KNOWN.get((form, key))
    if found is None:
        found = make()
        if found.base is not None:  # others hold views of what owns the elements, not this one
            found = found.copy()
        found.flags.writeable = False
        _KNOWN[form, key] = found
    return found


def key_of_weights(packed: Array, *others: object) -> str:
    """A digest of weights as a file has them, and of all else that their order depends on."""
    digest = hashlib.sha256(np.ascontiguousarray(packed).data)
    for other in others:
        text = other.tobytes() if isinstance(other, np.ndarray) else repr(other).encode()
        digest.update(text + b";")
    return digest.hexdigest()
