"""⑩ `export` for WebAssembly: an artifact as a module, with a script for browsers and Node.

NAME.wasm  NAME.mjs  NAME.d.mts  NAME.d.ts  example.mjs  README.md  [NAME.weights]

The module is the artifact's image. Embedded weights are a section of it that engines pass over, and
the script takes out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from autotune.codegen.image.wasm import custom_section, placing_script
from autotune.codegen.team import ports_code, team, team_code
from autotune.dtypes import dtype_bytes, plain_dtype
from autotune.errors import ArtifactError
from autotune.extent import Extent, Length
from autotune.files import cannot_write, make_folder, replacing
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.plan import call_plan, halves_of
from autotune.network.artifact.table import ARENA, CONSTANTS, KERNELS, RUN, entry_name
from autotune.network.export.interface import LibraryInterface, Tensor, interface_of
from autotune.network.export.library import Exported, require_whole
from autotune.network.export.packaging import table_of
from autotune.network.export.source import WEIGHTS_HEADER
from autotune.network.export.stateful import StateLayout
from autotune.network.export.texts import filled, text_of
from autotune.pages import CACHE_LINE
from autotune.units import counted

SECTION = "autotune.weights"
"""The section of embedded weights."""
MOST_MODULE_BYTES, MOST_MEMORY_BYTES = 1 << 30, 1 << 32
"""Limits of the engines of today, and of addresses."""
_FUNCTIONS = {
    "numbersOf": "numbers_of",
    "extentsOf": "extents_of",
    "enter": "enter",
    "leave": "leave",
    "widen": "widen",
    "narrow": "narrow",
}
_TEAM_WORDS = {
    **{"started": team_code.STARTED, "tried": team_code.TRIED, "capacity": team_code.CAPACITY},
    **{"spins": team_code.SPINS, "ping": team_code.PING, "part": team_code.SET_PART},
    **{"team": team_code.TEAM, "seat": team_code.SEAT, "table": team_code.TABLE},
    **{"shares": team_code.SHARES, "kernels": team_code.N_KERNELS, "wanted": team_code.WANTED},
    **{"settings": team_code.SETTINGS},
}
_TEAM_BYTES = {
    **{"team": team_code.TEAM_BYTES, "settings": team_code.SETTINGS_BYTES},
    **{"seat": team_code.SEAT_BYTES, "job": team_code.JOB_BYTES, "run": team_code.RUN_BYTES},
}
_NUMBERS = {"ARENA": ARENA, "CONSTANTS": CONSTANTS, "LINE": CACHE_LINE, "PLAIN": ports_code.PLAIN}

_METHODS = """\
  /** One inference. Results are new arrays, or those of `outputs`. */
  run(inputs: Inputs, outputs?: Partial<Outputs>): Outputs;
  /** Shapes of the outputs for `inputs`, by name. */
  dims(inputs: Inputs): {[name in keyof Outputs]: number[]};
"""
_SESSION_METHODS = """\
  /** A sequence with a state of its own. */
  session(): Session;
"""
_STATE = """
A session keeps the state, in memory of the model: `create({sessions: n})` has room for n of them.
`session.step` takes as many places as its inputs have, `reset` forgets them, `close` gives the room
back, `length` is the number of places.
"""
_THREADS = """
Threads are workers: a page that uses them has to be isolated (`crossOriginIsolated`), by headers
`Cross-Origin-Opener-Policy: same-origin` and `Cross-Origin-Embedder-Policy: require-corp`; in
others one thread computes. `create({threads: n})` takes another number, `model.close()` ends them.
"""
_LENGTHS = """
Lengths: {text}. Inputs of any such size are `{{data, dims}}`, or an array where one dimension alone
is open; results are `{{data, dims}}`.
"""


def write_module(artifact: Artifact, name: str, folder: Path, is_separate: bool) -> Exported:
    """Write the module `name` of `artifact` to `folder`; other files there stay.

    Raises ArtifactError for a network that runs only in Python or that no engine can hold,
    OutputError where something cannot be written.
    """
    require_whole(artifact)
    if f"{ports_code.SYMBOLS}narrow" not in artifact.image.symbols:
        raise ArtifactError(
            f"'{artifact.name}' was compiled by an earlier version", "compile the model again"
        )
    interface = interface_of(artifact, name)
    if interface.state and interface.is_by_shape and len(interface.variants) > 1:
        raise ArtifactError(
            f"'{artifact.name}' has a state at several shapes, which modules do not keep",
            "compile it for one shape",
        )
    constants = artifact.constants.data
    files: dict[str, bytes] = {f"{name}.wasm": artifact.image.data}
    if is_separate:
        digest = hashlib.sha256(constants).digest()
        files[f"{name}.weights"] = digest.ljust(WEIGHTS_HEADER, b"\0") + bytes(constants)
    else:
        files[f"{name}.wasm"] += custom_section(SECTION, bytes(constants))
    _require_room(interface, len(files[f"{name}.wasm"]))
    texts = _texts(interface, is_separate)
    files |= {file: text.encode() for file, text in texts.items()}
    make_folder(folder)
    try:
        for file, data in files.items():
            with replacing(folder / file) as out:
                out.write(data)
    except OSError as error:
        raise cannot_write(folder, error) from error
    sizes = {file: len(data) for file, data in files.items()}
    weights, code = artifact.constants.nbytes, len(artifact.image.data)
    return Exported(name, artifact.target.cpu, folder, sizes, weights, code)


def _require_room(interface: LibraryInterface, n_bytes: int) -> None:
    artifact = interface.artifact
    if n_bytes > MOST_MODULE_BYTES:
        raise ArtifactError(
            f"a module of {n_bytes} bytes is more than engines take",
            "give the weights a file of their own: `weights` separate",
        )
    memory = artifact.constants.nbytes + max(v.arena_bytes for v in interface.variants)
    arrays = sum(_array_bytes(interface)) + sum(_room_bytes(interface))
    if memory + arrays > 0.98 * MOST_MEMORY_BYTES:
        raise ArtifactError(
            f"it needs {memory} bytes of memory, and WebAssembly has 4 GiB",
            "compile a smaller model, or with `precision` int8",
        )


def _texts(interface: LibraryInterface, is_separate: bool) -> dict[str, str]:
    name, artifact = interface.name, interface.artifact
    feed = ", ".join(f"{_key(t)}: {t.identifier}" for t in interface.inputs)
    outputs = ", ".join(f"{_key(t)}: {t.identifier}" for t in interface.outputs)
    run = "session.step" if interface.state else "model.run"
    known = {
        "name": name,
        "model": " ".join(artifact.name.split()),
        "version": artifact.autotune_version,
        "session": _begin(interface) if interface.state else "",
        "run": run,
        "call": f"const {{{outputs}}} = {run}({{{feed}}});",
    }
    has_threads = artifact.target.isa.has_threads
    own = [*["weights"] * is_separate, *["worker.mjs"] * has_threads]
    urls = {file: f'new URL("./{name}.{file}", import.meta.url)' for file in own}
    head = filled(
        "module.mjs",
        **known,
        weights=urls.get("weights", "undefined"),
        worker=urls.get("worker.mjs", "undefined"),
        network=_script_data(interface, is_separate),
    )
    placing = placing_script().replace("export ", "")
    parts = ["model.mjs", *["threads.mjs"] * has_threads, *["session.mjs"] * bool(interface.state)]
    worker = {f"{name}.worker.mjs": text_of("worker.mjs").replace("NAME", name)}
    return {
        f"{name}.mjs": "\n".join([head, placing, *map(text_of, parts)]),
        **(worker if has_threads else {}),
        **dict.fromkeys(_declarations(name), _types(interface, known)),
        "example.mjs": filled(
            "example_of_module.mjs",
            **known,
            inputs="".join(map(_zeros, interface.inputs)),
            data="{data}" if interface.lengths_text else "data",
        ),
        "README.md": _readme(interface, known, is_separate),
    }


def _types(interface: LibraryInterface, known: Mapping[str, str]) -> str:
    made = filled(
        "module.d.ts",
        **known,
        inputs="".join(map(_typed, interface.inputs)),
        outputs="".join(f"  {_key(t)}: {_result(interface, t)};\n" for t in interface.outputs),
        methods=_SESSION_METHODS if interface.state else _METHODS,
    )
    if not interface.state:
        return made
    return made + filled("session.d.ts", begin="".join(map(_typed, interface.begin)))


def _typed(tensor: Tensor) -> str:
    return f"  {_key(tensor)}: Input<{_array(tensor.first)}>;\n"


def _begin(interface: LibraryInterface) -> str:
    """Lines that make a session."""
    made = "const session = model.session();\n"
    if not interface.begin:
        return made
    return f"{made}session.begin({{\n{''.join(map(_zeros, interface.begin))}}});\n"


def _readme(interface: LibraryInterface, known: Mapping[str, str], is_separate: bool) -> str:
    name, artifact = interface.name, interface.artifact
    text, has_threads = interface.lengths_text, artifact.target.isa.has_threads
    return filled(
        "module.md",
        **known,
        tensors=table_of(interface),
        weights=f"| `{name}.weights` | the weights |\n" if is_separate else "",
        more=(_LENGTHS.format(text=text) if text else "")
        + (_STATE if interface.state else "")
        + (_THREADS if has_threads else ""),
        threads=counted(artifact.n_threads, "thread"),
        worker=f"| `{name}.worker.mjs` | what its threads run |\n" if has_threads else "",
        embedded="" if is_separate else " and the weights",
        or_weights=", weights" if is_separate else "",
    )


def _result(interface: LibraryInterface, tensor: Tensor) -> str:
    """The type of an output."""
    array = _array(tensor.first)
    return f"{{data: {array}; dims: number[]}}" if interface.lengths_text else array


def _declarations(name: str) -> tuple[str, str]:
    """Files of types: TypeScript reads the second one of a `.mjs`, other tools the first."""
    return f"{name}.d.ts", f"{name}.d.mts"


def _key(tensor: Tensor) -> str:
    """Its name as a key of JavaScript, whatever it is; `__proto__: x` would be no key."""
    name = tensor.first.name
    if name == "__proto__":
        return f'["{name}"]'
    return name if name == tensor.identifier else json.dumps(name)


def _zeros(tensor: Tensor) -> str:
    array = f"new {_array(tensor.first)}({tensor.counts[0]})"
    if not tensor.is_fixed:
        array = f"{{data: {array}, dims: {list(tensor.first.shape)}}}"
    return f"  {_key(tensor)}: {array},\n"


def _array(end: Endpoint, stored: bool = False) -> str:
    kind = plain_dtype(end.stored if stored else end.dtype)
    assert kind is not None, end.dtype
    return kind.js


def _script_data(interface: LibraryInterface, is_separate: bool) -> str:
    """What `model.mjs` knows of the network."""
    artifact = interface.artifact
    digest = list(hashlib.sha256(artifact.constants.data).digest())
    weights = {"digest": digest, "header": WEIGHTS_HEADER, "n": artifact.constants.nbytes}
    data = {
        "name": interface.name,
        "signature": json.loads(interface.signature()),
        "section": SECTION,
        "weights": weights if is_separate else None,
        "arenaBytes": max(v.arena_bytes for v in interface.variants),
        "arrayBytes": _array_bytes(interface),
        "shapeBytes": _most(interface, lambda end: 8 * len(end.shape)),
        "roomBytes": _room_bytes(interface),
        "numbers": _NUMBERS,
        "functions": {name: f"{ports_code.SYMBOLS}{own}" for name, own in _FUNCTIONS.items()},
        "hasLengths": bool(interface.lengths_text),
        "order": interface.order,
        "variants": [_variant(v) for v in interface.variants],
        "state": _state(interface.state) if interface.state else None,
        "team": _team(artifact) if artifact.target.isa.has_threads else None,
    }
    return json.dumps(data)


def _state(layout: StateLayout) -> dict[str, Any]:
    """Where sessions have their ports: see `session.mjs`."""
    parts = {
        "inputs": layout.step_inputs,
        "outputs": layout.step_outputs,
        "begin": layout.begin_outputs,
    }
    told = {name: [asdict(part) for part in each] for name, each in parts.items()}
    own = {"capacity": layout.capacity, "bytes": layout.n_bytes, "joins": layout.joins}
    return {**own, "steps": layout.steps, **told}


def _team(artifact: Artifact) -> dict[str, Any]:
    """What workers share: see `threads.mjs`."""
    kernels = (
        {"list": entry_name(KERNELS, v.entry), "n": len(v.kernels), "slot": 8 * v.n_bases}
        for v in artifact.variants
    )
    return {
        "kernels": list(kernels),
        "words": _TEAM_WORDS,
        "bytes": _TEAM_BYTES,
        "greetings": team_code.GREETINGS,
        "partNs": round(team.PART_S * 1e9),
        "prepare": f"{team.SYMBOLS}prepare",
        "assist": f"{team.SYMBOLS}assist",
    }


def _array_bytes(interface: LibraryInterface) -> list[int]:
    """Room for each input and output in any variant, dense."""
    return _most(interface, lambda end: math.prod(end.shape) * dtype_bytes(end.stored))


def _room_bytes(interface: LibraryInterface) -> list[int]:
    """Room for the longest of each output in any variant: see `CallPlan`."""
    rooms = (call_plan(variant).rooms for variant in interface.variants)
    return [max(sizes) for sizes in zip_longest(*rooms, fillvalue=0)]


def _most(interface: LibraryInterface, size: Callable[[Endpoint], int]) -> list[int]:
    """The largest of the ends at each place of any variant; one that begins a state has others."""
    each = ([size(end) for end in _ends(variant)] for variant in interface.variants)
    return [max(sizes) for sizes in zip_longest(*each, fillvalue=0)]


def _ends(variant: Artifact) -> tuple[Endpoint, ...]:
    return (*variant.own_inputs, *variant.outputs)


def _variant(variant: Artifact) -> dict[str, Any]:
    plan = call_plan(variant)
    places = {"numbers": plan.table_words, "arrays": plan.arrays, "shapes": plan.shapes}
    return {
        "run": entry_name(RUN, variant.entry),
        "slots": plan.all_words,
        "nLengths": plan.n_lengths,
        "plan": plan.words,
        "places": {**places, "rooms": plan.first_room},
        "inputs": list(map(_port, plan.inputs)),
        "outputs": list(map(_port, plan.outputs)),
    }


def _port(end: Endpoint) -> dict[str, Any]:
    """An input or output; with lengths `dims` and `count` are of the longest."""
    return {
        "name": end.name,
        "kind": halves_of(end),
        "array": _array(end),
        "stored": _array(end, stored=True),
        "dims": end.shape,
        "count": math.prod(end.shape),
        "extents": [_extent(extent) for extent in end.extents or end.shape],
    }


def _extent(extent: Extent) -> Any:
    if not isinstance(extent, Length):
        return extent
    bounds = {"least": extent.at(extent.least), "most": extent.longest, "step": extent.factor}
    return {"text": str(extent), **bounds}
