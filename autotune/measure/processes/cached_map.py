"""⑦ Parallel map with a memory: results that a store keeps are not computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from autotune.cache import FileStore
from autotune.measure.processes.parallel_map import OnProgress, parallel_map

A = TypeVar("A")
B = TypeVar("B")


def cached_map(
    function: Callable[[A], B],
    arguments: Sequence[A],
    keys: Sequence[str],
    store: FileStore | None,
    encode: Callable[[B], bytes],
    decode: Callable[[bytes], B],
    tell: OnProgress = lambda n_done, n_all: None,
    is_apart: bool = False,
) -> list[B]:
    """`[function(a) for a in arguments]`, as far as `store` does not know them by `keys`.

    `keys[n]` is a digest of all that `function(arguments[n])` depends on (`cache.key_of`). `decode`
    raises ValueError for what `encode` has not written, which is then computed. Without a store it
    is `parallel_map`, which says what else may be raised and what is apart.
    """
    if store is None:
        return parallel_map(function, arguments, tell, is_apart=is_apart)
    found = {n: known for n, key in enumerate(keys) if (known := _known(store, key, decode))}
    missing = [n for n in range(len(arguments)) if n not in found]

    def tell_all(n_done: int, n_all: int) -> None:
        tell(len(arguments) - n_all + n_done, len(arguments))

    given = [arguments[n] for n in missing]
    computed = parallel_map(function, given, tell_all, is_apart=is_apart)
    for n, result in zip(missing, computed, strict=True):
        store.put(keys[n], encode(result))
        found[n] = [result]
    return [found[n][0] for n in range(len(arguments))]


def _known(store: FileStore, key: str, decode: Callable[[bytes], B]) -> list[B]:
    content = store.get(key)
    if content is None:
        return []
    try:
        return [decode(content)]
    except ValueError:  # of a format that this is not
        return []
