"""⑩ Artifacts of former versions: relocatable objects, which are linked while they are loaded.

    read_former(manifest, parts) -> the artifact as if it had been written today

Versions 2 (one shape), 3 (several), 4 (with parts for ONNX Runtime) and 5 (branches or bodies that
data decide). Every network names its objects. The last one of these has the network's functions,
and a digest of the manifest that all of them were compiled for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from autotune.codec import BAD, coded, to_json, within
from autotune.codegen.image.link import Image, Part, link
from autotune.errors import CodegenError
from autotune.network.artifact.artifact import MOST_PARTS, Artifact, joined_variants, read_parts
from autotune.network.artifact.container import (
    CONSTANTS,
    IMAGE,
    MANIFEST,
    SEAL,
    Bytes,
    Container,
    Damaged,
    Json,
    bytes_of,
    require,
)
from autotune.network.artifact.digests import described, digest, kind_of
from autotune.network.artifact.hybrid_manifest import require_hybrid
from autotune.network.artifact.manifest import (
    artifact_of,
    read,
    require_manifest,
    require_network,
    separated,
)
from autotune.network.artifact.table import entry_name
from autotune.target import Target

_VARIANTS_VERSION, _HYBRID_VERSION = 3, 4
_MAGIC = b"autotune seal: \0"
_UNSEALED = _MAGIC + bytes(32)
_BOUND = ("target", "inputs", "outputs", "arena_bytes", "n_bases", "constant_bytes")
"""Fields in the digest of the code, beside kernels and parts."""


def read_former(manifest: Json, parts: Container, source: Path, is_shared: bool) -> Artifact:
    """The artifact of an open file, whose manifest is as its seal says.

    Raises Damaged, and ArtifactError where this CPU lacks a feature of the code.
    """
    version = manifest["version"]
    list_name = "networks" if version >= _HYBRID_VERSION else "variants"
    former: Any = manifest.get(list_name) if version >= _VARIANTS_VERSION else [manifest]
    require(isinstance(former, list), f"its {list_name} cannot be")
    names = _names_of_objects(manifest, former, version)
    bare = _without_objects(manifest, list_name, version)
    several = _networks(bare, version)
    read("target", manifest.get("target"), "'target' in its manifest cannot be")
    own = {*manifest["parts"], MANIFEST, SEAL}
    data, constants = read_parts(parts, manifest, own, is_shared)
    unsealed = [
        _unsealed(one, used, data, manifest["parts"][CONSTANTS])
        for one, used in zip(several, names, strict=True)
    ]
    image = _linked(unsealed)
    whole = {**bare, "image": to_json(image), "parts": _parts(manifest, image)}
    return _artifact(whole, data, image, constants, version)


def _artifact(
    manifest: Json, data: Mapping[str, bytes], image: Image, constants: Bytes, version: int
) -> Artifact:
    """As that of a file of today."""
    if version >= _HYBRID_VERSION:
        from autotune.network.artifact.hybrid import networks_in, read_hybrid

        require_hybrid(manifest)
        networks = networks_in(manifest, image, constants)
        return read_hybrid(manifest, networks, data, image, constants)
    several = separated(manifest) if version == _VARIANTS_VERSION else [manifest]
    for one in several:
        require_manifest(one)
    return joined_variants([artifact_of(one, image, constants) for one in several])


def _names_of_objects(manifest: Json, former: Sequence[Any], version: int) -> list[list[str]]:
    """The objects of each network, by their parts; together they are all that there are."""
    n_objects, parts = manifest.get("n_objects"), manifest.get("parts")
    least = 0 if version >= _HYBRID_VERSION else 1
    is_number = type(n_objects) is int and least <= n_objects <= MOST_PARTS
    require(is_number, "'n_objects' in its manifest cannot be")
    assert isinstance(n_objects, int)
    all_names = [f"objects/{n:03d}.o" for n in range(n_objects)]
    require(isinstance(parts, dict) and {CONSTANTS, *all_names} <= parts.keys(), "it lacks parts")
    assert isinstance(parts, dict)
    read("parts", parts, "'parts' in its manifest cannot be")
    others = {name for name in parts if name.startswith("onnx/")}
    allowed = {CONSTANTS, *all_names, *(others if version >= _HYBRID_VERSION else ())}
    require(parts.keys() == allowed, "its manifest names other parts")
    if version < _VARIANTS_VERSION:
        return [all_names]
    numbers = coded(tuple[Annotated[int, within(0, n_objects - 1)], ...])
    found: list[list[str]] = []
    for one in former:
        try:
            used = numbers.read(one["objects"])
        except BAD as error:
            raise Damaged("the code of a network cannot be") from error
        require(len({*used}) == len(used) > 0, "the code of a network cannot be")
        found.append([all_names[n] for n in used])
    require({name for names in found for name in names} == set(all_names), "it has more code")
    return found


def _without_objects(manifest: Json, list_name: str, version: int) -> dict[str, Any]:
    """The manifest with the number of its entry for every network, in place of objects."""
    bare = {name: value for name, value in manifest.items() if name not in ("n_objects", "objects")}
    if version < _VARIANTS_VERSION:
        return bare | {"entry": 0}
    found = [
        {name: value for name, value in one.items() if name != "objects"} | {"entry": n}
        for n, one in enumerate(manifest[list_name])
    ]
    return bare | {list_name: found}


def _networks(bare: Json, version: int) -> list[Json]:
    """A manifest for each network. Raises Damaged for one that cannot be."""
    if version == _VARIANTS_VERSION:
        several = separated(bare)
    elif version >= _HYBRID_VERSION:
        several = [{**bare, **one} for one in bare["networks"]]
    else:
        several = [bare]
    for one in several:
        require_network(one)
    return several


def _unsealed(
    manifest: Json, names: Sequence[str], data: Mapping[str, bytes], constants: Json
) -> list[bytes]:
    """The objects of a network, if they were compiled for just this manifest.

    The last of them says so: it contains a digest of all that they rely on, which was computed when
    there were zeros in its place.
    """
    objects = [data[name] for name in names]
    entry = objects[-1]
    require(entry.count(_MAGIC) == 1, "its code has no seal")
    at = entry.index(_MAGIC)
    objects[-1] = entry[:at] + _UNSEALED + entry[at + len(_UNSEALED) :]
    kinds = [kind_of(manifest["parts"][name]) for name in names]
    of_objects = zip(objects, kinds, strict=True)
    numbered = {
        f"objects/{n:03d}.o": described(bytes_of(x), kind) for n, (x, kind) in enumerate(of_objects)
    }
    facts = {name: manifest[name] for name in _BOUND}
    facts["target"] = Target.from_json(manifest["target"]).to_json()
    facts["kernels"] = [(kernel["symbol"], kernel["extent"]) for kernel in manifest["kernels"]]
    facts["parts"] = {**numbered, CONSTANTS: constants}
    text = json.dumps(facts, sort_keys=True).encode()
    seal = _MAGIC + bytes.fromhex(digest(bytes_of(text)))
    is_right = entry[at : at + len(seal)] == seal
    require(is_right, "its code was compiled for another manifest")
    return objects


def _linked(networks: Sequence[Sequence[bytes]]) -> Image:
    shared = dict.fromkeys(data for objects in networks for data in objects[:-1])
    entries = [Part(objects[-1], entry_name("", n)) for n, objects in enumerate(networks)]
    try:
        return link([*map(Part, shared), *entries])
    except CodegenError as error:
        raise Damaged(error.message) from error


def _parts(manifest: Json, image: Image) -> dict[str, Json]:
    kept = {n: part for n, part in manifest["parts"].items() if not n.startswith("objects/")}
    return {**kept, IMAGE: described(bytes_of(image.data))}
