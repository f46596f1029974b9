"""⑩ Validation of the manifest of an artifact.

Types, ranges, and bounds of every part within the whole. `artifact.code_seal` ties code and
manifest together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Annotated, Any, get_type_hints

from autotune.codec import LEFT_OUT, Holds, Misfit, coded
from autotune.codegen.image.elf import Region
from autotune.codegen.image.link import Image
from autotune.codegen.image.relocations import MACHINES, WASM32
from autotune.dtypes import DTYPES, PORT_TYPES, dtype_bytes
from autotune.extent import Length, longest
from autotune.graph.ragged import Ragged
from autotune.graph.state import NO_ROWS, StateInfo
from autotune.graph.texts import NO_TEXTS, Texts
from autotune.network.artifact.artifact import (
    MOST,
    OF_VARIANT,
    OWN,
    Artifact,
    Endpoint,
    Size,
)
from autotune.network.artifact.container import CONSTANTS, IMAGE, Bytes, Damaged, Json, require
from autotune.network.artifact.digests import KINDS
from autotune.network.artifact.table import ARENA, FIRST_BOUND, PROFILE, RUN, entry_name

MOST_VARIANTS = 64
_HEX = set("0123456789abcdef")
_WORD_BYTES = 8

_FIELDS = (
    *("autotune_version", "name", "model_hash", "model_path", "target", "n_threads", "inputs"),
    *("outputs", "kernels", "arena_bytes", "constant_bytes", "n_bases", "entry", "max_error"),
    *("tuned", "tasks", "random_weights"),
)
"""In the order in which they are looked at."""
_SHARED = tuple(name for name in _FIELDS if name not in OF_VARIANT)


def require_manifest(manifest: Json) -> None:
    """Raise Damaged where a field is missing or impossible."""
    require_network(manifest)
    require_shared(manifest)
    require(set(manifest["parts"]) == {CONSTANTS, IMAGE}, "its manifest names other parts")


def require_network(manifest: Json) -> None:
    """`require_manifest` for one network, whatever the code and the parts of its file."""
    found = fields_in(manifest, _FIELDS)
    bound: dict[int, Endpoint] = {}
    for kind in ("inputs", "outputs"):
        ports: Sequence[Endpoint] = found[kind]
        names = {port.name for port in ports}
        require(len(names) == len(ports), f"two of its {kind} have one name")
        own = {p.base: p for p in ports if p.window is None}
        require(len(own) == sum(p.window is None for p in ports), f"its {kind} overlap")
        bound |= own
    is_full = set(bound) == set(range(FIRST_BOUND, found["n_bases"]))
    require(is_full, "its inputs and outputs lie nowhere")
    _require_state(found.get("state"), found["inputs"], found["outputs"])
    lengths: Mapping[str, str] = found.get("lengths", {})
    _require_lengths(lengths, found.get("state"), found["inputs"], found["outputs"])
    _require_written(found.get("written", {}), lengths, found["inputs"], found["outputs"])
    _require_rows(found.get("ragged"), lengths, found["inputs"])
    _require_texts(found.get("texts", NO_TEXTS), found["inputs"], found["outputs"])
    for port in (*found["inputs"], *found["outputs"]):
        if port.window is not None:
            _require_inside(port, found["arena_bytes"], bound)


def require_shared(manifest: Json) -> None:
    """`require_manifest` for the parts that several networks of one file share."""
    found = fields_in(manifest, (*_SHARED, "image", "parts"))
    sizes = {name: part["bytes"] for name, part in found["parts"].items()}
    size = sum(found["image"].regions.values())
    require(sizes.get(CONSTANTS) == found["constant_bytes"], "its constants have another size")
    require(sizes.get(IMAGE) == size, "its code has another size")


def fields_in(manifest: Json, names: Iterable[str]) -> dict[str, Any]:
    """Fields by name, with those that may be missing. Raises Damaged."""
    known = tuple(names)
    missing = next((name for name in known if name not in manifest), None)
    require(missing is None, f"its manifest has no '{missing}'")
    given = (*known, *(name for name in _optional() if name in manifest))
    return {n: read(n, manifest[n], f"'{n}' in its manifest cannot be") for n in given}


def read(name: str, data: Any, reason: str) -> Any:
    """A field of the name. Raises Damaged for `reason`."""
    try:
        return coded(_hints()[name]).read(data)
    except (Misfit, RecursionError) as error:
        raise Damaged(reason) from error


@cache
def _optional() -> tuple[str, ...]:
    """Fields that a file leaves out where they say nothing."""
    hints = _hints().items()
    return tuple(name for name, hint in hints if LEFT_OUT in getattr(hint, "__metadata__", ()))


@cache
def _hints() -> Mapping[str, Any]:
    ports = tuple[Annotated[Endpoint, Holds(_is_plain, "a port of a network")], ...]
    return get_type_hints(Artifact, include_extras=True) | {
        "inputs": ports,
        "outputs": ports,
        "image": Annotated[Image, Holds(is_image, "an image")],
        "constant_bytes": Size,
        "parts": dict[str, Annotated[dict[str, Any], Holds(_is_part, "size and digest")]],
    }


def artifact_of(manifest: Json, image: Image, constants: Bytes) -> Artifact:
    """The artifact of one network, which is as `require_network` says.

    Raises Damaged where the image has no code for it.
    """
    symbols = (RUN,) if image.machine == WASM32.name else (RUN, PROFILE)
    names = {entry_name(symbol, manifest["entry"]) for symbol in symbols}
    require(names <= image.symbols.keys(), "its code has no entry for a network")
    own = {name: read(name, manifest[name], "") for name in OF_VARIANT}
    return Artifact(**common_fields(manifest), **own, image=image, constants=constants)


def common_fields(manifest: Json) -> dict[str, Any]:
    """Fields of an artifact that are the same for all networks of a file."""
    found = fields_in(manifest, _SHARED)
    return {name: value for name, value in found.items() if name != "constant_bytes"}


def separated(manifest: Json) -> list[Json]:
    """A manifest for each shape of one that `joined` made; raises Damaged for any other."""
    variants: Any = manifest.get("variants")
    require(
        isinstance(variants, list) and 1 < len(variants) <= MOST_VARIANTS,
        "its variants cannot be",
    )
    require_fields_of_networks(variants)
    shared = {name: value for name, value in manifest.items() if name != "variants"}
    several: dict[str, list[Json]] = {}
    for variant in variants:
        several.setdefault(repr([variant.get(name) for name in OWN]), []).append(variant)
    for group in several.values():
        _require_different(group)
    return [{**shared, **variant} for variant in variants]


def require_fields_of_networks(variants: Sequence[Json]) -> None:
    """Whether each of `variants` has the fields of one."""
    for variant in variants:
        is_one = isinstance(variant, dict) and variant.keys() - {*OWN} == {*OF_VARIANT}
        require(is_one, "a variant cannot be")


def _require_different(variants: Sequence[Json]) -> None:
    """Whether all variants take the same inputs, and no two of them the same shapes."""
    ports = [read("inputs", v["inputs"], "the inputs of a variant cannot be") for v in variants]
    hidden = [set((variant.get("lengths") or {}).values()) for variant in variants]
    given = [
        [p for p in each if p.name not in own] for each, own in zip(ports, hidden, strict=True)
    ]
    shapes = {tuple((p.name, p.dtype, p.shape, p.extents) for p in found) for found in given}
    require(len(shapes) == len(variants), "two of its variants are for the same shapes")
    kinds = {tuple((p.name, p.dtype) for p in found) for found in given}
    require(len(kinds) == 1, "its variants have other inputs")


def _require_inside(port: Endpoint, arena_bytes: int, bound: Mapping[int, Endpoint]) -> None:
    """Whether the window of a port lies inside of the arena, or of the array of another port."""
    assert port.window is not None
    name, size, (shape, strides) = port.name, dtype_bytes(port.stored), port.window
    require(math.prod(shape) == math.prod(port.shape), f"'{name}' has another number of elements")
    base = bound.get(port.base)
    require(base is not None or port.base == ARENA, f"'{name}' lies nowhere")
    room = arena_bytes if base is None else math.prod(base.shape) * dtype_bytes(base.stored)
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    end = port.offset + (last + 1) * size if 0 not in shape else 0
    require(port.offset % size == 0 and end <= room, f"'{name}' lies outside of its memory")


def _require_state(
    state: StateInfo | None, inputs: Sequence[Endpoint], outputs: Sequence[Endpoint]
) -> None:
    """Whether a state is one of these ports, and rows fit into their buffers."""
    if state is None:
        return
    given, made = ({port.name: port for port in ports} for ports in (inputs, outputs))
    is_held = set(state.held) <= (made if state.begins else given).keys()
    require(is_held, "what its state holds is none of its ports")
    for name, result in (*state.buffers.items(), *state.replaced.items()):
        require(name in given and result in made, "its state is none of its ports")
        old, new = given[name], made[result]
        is_bound = old.window is None and new.window is None
        require(is_bound or name in state.replaced, f"'{name}' lies in working memory")
        require(old.stored == new.stored, f"'{name}' changes its type")
        axis = state.axes.get(name, -1)
        require((axis >= 0) == (name in state.buffers), "its state cannot be")
        others = [_without(port.shape, axis) for port in (old, new)]
        require(others[0] == others[1], f"'{name}' changes its shape")
        is_inside = axis < min(len(old.shape), len(new.shape))
        fits = axis < 0 or (is_inside and old.shape[axis] == state.capacity >= new.shape[axis])
        require(fits, f"'{name}' has not its capacity")
    steps = [*state.steps, *state.steps.values()]
    require(all(name in state.buffers for name in steps), "the steps of its state cannot be")
    n = next((made[rows].shape[state.axes[name]] for name, rows in state.buffers.items()), 0)
    for name, axis in (state.places or {}).items():
        shape = (given.get(name) or made.get(name) or inputs[0]).shape
        if state.filled and not n and 0 <= axis < len(shape):
            n = shape[axis]  # of fixed states alone: the first of them tells it
        has_rows = 0 <= axis < len(shape) and shape[axis] == n and name not in state.ports
        known = name in given or name in made
        require(known and (has_rows or axis == NO_ROWS), f"'{name}' has no row for each place")
    for name, axis in state.last_rows.items():
        shape = made[name].shape if name in made else ()
        is_one = 0 <= axis < len(shape) and shape[axis] in (1, state.sessions)
        require(is_one and name not in state.ports, f"'{name}' has no row of the last place")
    is_told = not (state.buffers or state.filled) or (
        state.filled in given
        and given[state.filled].shape == (state.sessions,)
        and given[state.filled].dtype == "int64"
    )
    require(is_told, "the length of its state is no input")


def _require_lengths(
    lengths: Mapping[str, str],
    state: StateInfo | None,
    inputs: Sequence[Endpoint],
    outputs: Sequence[Endpoint],
) -> None:
    """Whether extents are of shapes, and inputs tell the numbers that they follow."""
    given = {port.name: port for port in inputs}
    hidden = {*lengths.values()}
    is_given = hidden <= given.keys() and len(hidden) == len(lengths)
    require(is_given, "a number of it is no input")
    for name in hidden:
        port = given[name]
        is_number = (port.dtype, port.shape, port.extents) == ("int64", (1,), ())
        require(is_number and port.window is None, f"'{name}' is no number")
    bounds: dict[str, tuple[int, int]] = {}
    for port in (*inputs, *outputs):
        found = [e for e in port.extents if isinstance(e, Length)]
        spans = [(e.name, (e.least, e.most)) for e in found]
        known = all(
            n in lengths and bounds.setdefault(n, s) == s and 1 <= s[0] <= s[1] for n, s in spans
        )
        require(known, f"'{port.name}' follows a number that is not known")
        if port.extents:
            _require_extents(port)
    told = {e.name for p in inputs for e in p.extents if isinstance(e, Length)}
    told |= {name for name, port in lengths.items() if state and port == state.filled}
    require(told >= lengths.keys(), "no input tells a number")


def _require_written(
    written: Mapping[str, str],
    lengths: Mapping[str, str],
    inputs: Sequence[Endpoint],
    outputs: Sequence[Endpoint],
) -> None:
    """Whether outputs tell the numbers that others follow."""
    made = {port.name: port for port in outputs}
    is_apart = written.keys().isdisjoint(lengths) and len({*written.values()}) == len(written)
    require(is_apart and {*written.values()} <= made.keys(), "a number of it is no output")
    for port in (made[name] for name in written.values()):
        is_number = (port.dtype, port.shape, port.extents) == ("int64", (1,), ())
        require(is_number and not port.written, f"'{port.name}' is no number")
    require(not any(port.written for port in inputs), "an input has a length that it writes")
    for port in outputs:
        names = {e.name for e in port.written if isinstance(e, Length)}
        is_so = not port.written or longest(port.written) == port.shape
        require(is_so and names <= {*written, *lengths}, f"'{port.name}' has other lengths")


def _require_rows(
    ragged: Ragged | None, lengths: Mapping[str, str], inputs: Sequence[Endpoint]
) -> None:
    """Whether inputs say which places of rows count, and where their tokens are."""
    if ragged is None:
        return
    shapes = {port.name: port.extents or port.shape for port in inputs}
    known = all(name in shapes for name in (ragged.mask, *ragged.hidden))
    require(known and ragged.number in lengths, "its rows are none of its inputs")
    mask, tokens, slots = (shapes[name] for name in (ragged.mask, *ragged.hidden))
    names = [e.name for e in mask if isinstance(e, Length) and (e.factor, e.offset) == (1, 0)]
    is_so = len(mask) == len({*names} - {ragged.number}) == 2 and slots == mask
    rows = [e.name if isinstance(e, Length) else e for e in tokens]
    require(is_so and rows == [ragged.number, 2], "its rows have other shapes")
    require(min(ragged.work) >= 0, "its rows have no work")


def _require_texts(texts: Texts, inputs: Sequence[Endpoint], outputs: Sequence[Endpoint]) -> None:
    """Whether ports are numbers of strings, and rows of outputs the values of maps."""
    made = {port.name: port for port in outputs}
    known = made | {port.name: port for port in inputs}
    are_numbers = all(n in known and known[n].dtype == "int64" for n in texts.ports)
    require(are_numbers, "a port has no numbers of strings")
    for name, keys in texts.maps.items():
        shape = made[name].shape if name in made else ()
        require(len(shape) == 2 and shape[1] == len(keys.numbers), f"'{name}' has no maps")
        is_known = not keys.are_words or all(0 <= n < len(texts.words) for n in keys.numbers)
        require(is_known, f"'{name}' has other keys")


def _require_extents(port: Endpoint) -> None:
    spans = [e for e in port.extents if isinstance(e, Length)]
    is_so = bool(spans) and longest(port.extents) == port.shape
    is_so &= all(e.at(e.least) >= 0 for e in spans)
    require(is_so, f"'{port.name}' has other extents")
    in_order = port.window is None or port.window[0] == port.shape
    require(in_order, f"'{port.name}' lies in another shape")


def _without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(shape) if d != axis)


def _is_plain(port: Endpoint) -> bool:
    """Whether a network has such a port: `Endpoint` can also be that of a model in parts."""
    is_known = port.dtype in (DTYPES if port.is_native else PORT_TYPES)
    extents = (*port.shape, *(n for part in port.window or () for n in part))
    return is_known and min(extents, default=0) >= 0


def is_image(image: Image) -> bool:
    """Whether regions are whole pages that contain the written words."""
    page, sizes = MACHINES[image.machine].page_bytes, image.regions
    if sizes.keys() != set(Region) or any(size % page for size in sizes.values()):
        return False
    ends = dict(zip(Region, accumulate(sizes[region] for region in Region), strict=True))
    written = [*image.rebases, *(at for places in image.imports.values() for at in places)]
    last = ends[Region.DATA]
    is_inside = all(ends[Region.CONSTANTS] <= at <= last - _WORD_BYTES for at in written)
    are_inside = is_inside and all(at < last for at in image.symbols.values())
    return are_inside and image.n_code_bytes <= ends[Region.CODE]


def _is_part(part: Json) -> bool:
    """Size and digest of a part, of one kind: see `digests`."""
    kinds = part.keys() - {"bytes"}
    if len(kinds) != 1 or not kinds <= KINDS.keys():
        return False
    found, size = part[kinds.pop()], part.get("bytes")
    is_digest = isinstance(found, str) and len(found) == 64 and set(found) <= _HEX
    return is_digest and type(size) is int and 0 <= size <= MOST
