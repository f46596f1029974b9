"""⑩ What a manifest says, looked at before anybody believes it.

Types, ranges, and that everything lies inside of what it is a part of. That code and manifest
belong together is for `Artifact.sealed_objects` to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from autotune.codec import Misfit
from autotune.codegen.elf import Region
from autotune.codegen.link import MOST_IMAGE_BYTES
from autotune.codegen.relocations import MACHINES
from autotune.config import MOST_THREADS, PRECISION_NAMES
from autotune.dtypes import DTYPES, PORT_TYPES, dtype_bytes, stored_dtype
from autotune.graph.constant_values import constants_from_json
from autotune.network.container import CONSTANTS, IMAGE, require
from autotune.network.entry import ARENA, FIRST_BOUND
from autotune.target import Target

_MOST = 1 << 48
"""Bytes, elements, iterations: more than any memory."""
_MOST_DIMENSIONS = 64
MOST_PARTS = 1 << 20
_HEX = set("0123456789abcdef")

Json = Mapping[str, Any]


def require_manifest(manifest: Json) -> None:
    """Raise Damaged where a field is missing, or says what cannot be."""
    require_network(manifest)
    require_shared(manifest)
    require(set(manifest["parts"]) == {CONSTANTS, IMAGE}, "its manifest names other parts")


def require_network(manifest: Json) -> None:
    """`require_manifest` for one network, whatever the code and the parts of its file."""
    _require_fields(manifest, _FIELDS)
    bound: dict[int, Json] = {}
    for kind in ("inputs", "outputs"):
        ports = manifest[kind]
        names = {port["name"] for port in ports}
        require(len(names) == len(ports), f"two of its {kind} have one name")
        own = {p["base"]: p for p in ports if p["window"] is None}
        require(len(own) == sum(p["window"] is None for p in ports), f"its {kind} overlap")
        bound |= own
    require(
        set(bound) == set(range(FIRST_BOUND, manifest["n_bases"])),
        "its inputs and outputs lie nowhere",
    )
    for port in (*manifest["inputs"], *manifest["outputs"]):
        if port["window"] is not None:
            _require_inside(port, manifest["arena_bytes"], bound)
    axes = manifest["split"]["axes"] if "split" in manifest else {}
    for port in (*manifest["inputs"], *manifest["outputs"]):
        axis, inner = axes.get(port["name"], (-1, 1))
        require(axis < len(port["shape"]), f"'{port['name']}' has not the dimension of samples")
        require(axis < 0 or port["shape"][axis] % inner == 0, f"'{port['name']}' has part of one")


def require_shared(manifest: Json) -> None:
    """`require_manifest` for what several networks of one file share."""
    fields = {name: holds for name, holds in _FIELDS.items() if name not in OF_VARIANT}
    _require_fields(manifest, fields | {"image": is_image, "parts": are_parts})
    sizes = {name: part["bytes"] for name, part in manifest["parts"].items()}
    size = sum(manifest["image"]["regions"].values())
    require(sizes.get(CONSTANTS) == manifest["constant_bytes"], "its constants have another size")
    require(sizes.get(IMAGE) == size, "its code has another size")


def _require_fields(manifest: Json, fields: Mapping[str, Callable[[Any], bool]]) -> None:
    for name, holds in fields.items():
        require(name in manifest, f"its manifest has no '{name}'")
        require(holds(manifest[name]), f"'{name}' in its manifest cannot be")
    require(are_constants(manifest.get("constant_inputs", {})), "its constant inputs cannot be")
    require(manifest.get("precision", "f32") in PRECISION_NAMES, "its precision cannot be")
    require(_split(manifest.get("split")), "the dimension that it splits cannot be")


OF_VARIANT = ("inputs", "outputs", "kernels", "arena_bytes", "n_bases", "max_error", "entry")
"""What is another for every shape; all else is the same."""
MOST_VARIANTS = 64


def joined(manifests: Sequence[Json]) -> dict[str, Any]:
    """One manifest of several shapes.

    [{name, inputs, …}, {name, inputs, …}]  ->  {name, variants: [{inputs, …}, {inputs, …}]}
    """
    shared = {name: value for name, value in manifests[0].items() if name not in OF_VARIANT}
    variants = [{name: manifest[name] for name in OF_VARIANT} for manifest in manifests]
    return shared | {"variants": variants}


def separated(manifest: Json) -> list[Json]:
    """A manifest for each shape of one that `joined` made; raises Damaged for any other."""
    variants: Any = manifest.get("variants")
    require(
        isinstance(variants, list) and 1 < len(variants) <= MOST_VARIANTS,
        "its variants cannot be",
    )
    require_fields_of_networks(variants)
    shared = {name: value for name, value in manifest.items() if name != "variants"}
    _require_different(variants)
    return [{**shared, **variant} for variant in variants]


def require_fields_of_networks(variants: Sequence[Json]) -> None:
    """Whether each of `variants` has the fields of one."""
    for variant in variants:
        is_one = isinstance(variant, dict) and variant.keys() == {*OF_VARIANT}
        require(is_one, "a variant cannot be")


def _require_different(variants: Sequence[Json]) -> None:
    """Whether all variants take the same inputs, and no two of them the same shapes."""
    ports = [v["inputs"] for v in variants]
    require(all(is_list_of(_port)(found) for found in ports), "the inputs of a variant cannot be")
    shapes = {tuple((p["name"], p["dtype"], tuple(p["shape"])) for p in found) for found in ports}
    require(len(shapes) == len(variants), "two of its variants are for the same shapes")
    kinds = {tuple((p["name"], p["dtype"]) for p in found) for found in ports}
    require(len(kinds) == 1, "its variants have other inputs")


def _require_inside(port: Json, arena_bytes: int, bound: Mapping[int, Json]) -> None:
    """Whether the window of a port lies inside of the arena, or of the array of another port."""
    name, size = port["name"], _element_bytes(port)
    shape, strides = port["window"]
    require(
        math.prod(shape) == math.prod(port["shape"]), f"'{name}' has another number of elements"
    )
    base = bound.get(port["base"])
    require(base is not None or port["base"] == ARENA, f"'{name}' lies nowhere")
    room = arena_bytes if base is None else math.prod(base["shape"]) * _element_bytes(base)
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    end = port["offset"] + (last + 1) * size if 0 not in shape else 0
    require(port["offset"] % size == 0 and end <= room, f"'{name}' lies outside of its memory")


def _element_bytes(port: Json) -> int:
    dtype: str = port["dtype"]
    is_native = port.get("is_native") and dtype in DTYPES
    return dtype_bytes(dtype if is_native else stored_dtype(dtype))


# --- types and ranges -------------------------------------------------------------------------


def is_number(low: int, high: int = _MOST) -> Callable[[Any], bool]:
    """An integer from `low` to `high`."""
    return lambda x: type(x) is int and low <= x <= high


_RAW_BYTES = frozenset(map(chr, range(0xDC80, 0xDD00)))


def is_text(value: Any) -> bool:
    """A string that can be written, which half a surrogate pair cannot."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _path_text(value: Any) -> bool:
    """A string that can come from a path, whose bytes need not be UTF-8: see `os.fsdecode`."""
    return isinstance(value, str) and is_text("".join(c for c in value if c not in _RAW_BYTES))


def is_list_of(holds: Callable[[Any], bool], most: int = MOST_PARTS) -> Callable[[Any], bool]:
    """A list of at most so many items, all of which hold."""
    return lambda x: isinstance(x, list) and len(x) <= most and all(map(holds, x))


def is_record(**holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """An object of just these fields."""
    return lambda x: (
        isinstance(x, dict)
        and x.keys() == holds.keys()
        and all(check(x[name]) for name, check in holds.items())
    )


def is_map_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """An object whose values all hold."""
    return lambda x: isinstance(x, dict) and all(map(holds, x.values()))


def is_error(value: Any) -> bool:
    """The error that a check found, or None."""
    is_number = type(value) in (int, float)
    return value is None or (is_number and 0 <= value < math.inf)


def is_image(value: Any) -> bool:
    """What an image says of itself: its regions are whole pages, and what is written is in it."""
    if not _image(value):
        return False
    page, sizes = MACHINES[value["machine"]].page_bytes, value["regions"]
    ends = dict(zip(Region, accumulate(sizes[region] for region in Region), strict=True))
    if any(size % page for size in sizes.values()) or value["n_code_bytes"] > ends[Region.CODE]:
        return False
    written = [*value["rebases"], *(at for places in value["imports"].values() for at in places)]
    last = ends[Region.DATA]
    return all(ends[Region.CONSTANTS] <= at <= last - _WORD_BYTES for at in written) and all(
        at < last for at in value["symbols"].values()
    )


def _latency(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= _HEX


def _part(value: Any) -> bool:
    """Size and digest of a part, of one of two kinds (see `container`)."""
    size = is_number(0)
    kinds = is_record(bytes=size, sha256=_digest), is_record(bytes=size, sums=_digest)
    return any(is_kind(value) for is_kind in kinds)


are_parts = is_map_of(_part)
"""Sizes and digests by the names of parts."""
_extents = is_list_of(is_number(0), _MOST_DIMENSIONS)
_image = is_record(
    machine=lambda x: isinstance(x, str) and x in MACHINES,
    regions=is_record(**dict.fromkeys(Region, is_number(0, MOST_IMAGE_BYTES))),
    symbols=is_map_of(is_number(0, MOST_IMAGE_BYTES)),
    imports=is_map_of(is_list_of(is_number(0, MOST_IMAGE_BYTES))),
    rebases=is_list_of(is_number(0, MOST_IMAGE_BYTES)),
    n_code_bytes=is_number(0, MOST_IMAGE_BYTES),
)
_WORD_BYTES = 8


def _window(value: Any) -> bool:
    if value is None:
        return True
    is_pair = isinstance(value, list) and len(value) == 2 and all(map(_extents, value))
    return is_pair and len(value[0]) == len(value[1])


def are_constants(value: Any) -> bool:
    """Arrays of numbers by name: see `constants_to_json`."""
    try:
        constants_from_json(value)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return False
    return all(map(is_text, value))


_axes = is_map_of(lambda x: isinstance(x, list) and len(x) == 2 and _is_axis(*x))


def _is_axis(axis: Any, inner: Any) -> bool:
    return is_number(0, _MOST_DIMENSIONS)(axis) and is_number(1)(inner)


def _split(value: Any) -> bool:
    return value is None or is_record(dimension=is_text, axes=_axes)(value)


def _target(value: Any) -> bool:
    """Whether all fields are there, with their types, and name a CPU that there is code for."""
    try:
        return Target.from_json(value) is not None and "n_cores" in value
    except Misfit:
        return False


_plain_port = is_record(
    name=is_text,
    shape=_extents,
    dtype=lambda x: isinstance(x, str) and x in PORT_TYPES,
    base=is_number(0),
    offset=is_number(0),
    window=_window,
    limit=is_number(1),
)

_kernel = is_record(task=is_text, label=is_text, symbol=is_text, extent=is_number(0))


def _port(x: Any) -> bool:
    """A port; `is_native` where half precision is read and written as it is."""
    if not isinstance(x, dict) or x.get("is_native", True) is not True:
        return False
    return _plain_port({name: value for name, value in x.items() if name != "is_native"})


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "autotune_version": is_text,
    "name": _path_text,
    "model_hash": is_text,
    "model_path": _path_text,
    "target": _target,
    "n_threads": is_number(1, MOST_THREADS),
    "inputs": is_list_of(_port),
    "outputs": is_list_of(_port),
    "kernels": is_list_of(_kernel),
    "arena_bytes": is_number(0),
    "constant_bytes": is_number(0),
    "n_bases": is_number(FIRST_BOUND, MOST_PARTS),
    "entry": is_number(0, MOST_PARTS),
    "max_error": is_error,
    "tuned": is_map_of(is_record(latency_s=_latency, n_threads=is_number(1, MOST_THREADS))),
    "tasks": is_list_of(is_text),
    "random_weights": lambda x: x is None or type(x) is bool,
}
