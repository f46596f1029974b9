"""⑩ The run time of an exported network: its tables, and the texts that are the same for all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from autotune.codegen.team import ports_code, team, team_code
from autotune.dtypes import dtype_bytes
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.plan import call_plan, halves_of
from autotune.network.artifact.steps import begin_of, steps_of
from autotune.network.artifact.table import ARENA, CONSTANTS, KERNELS, RUN, entry_name
from autotune.network.export.assembly import TEAM_SYMBOL
from autotune.network.export.description import description, quoted
from autotune.network.export.header import TOO_LONG, plain_text
from autotune.network.export.interface import LibraryInterface, Tensor
from autotune.network.export.stateful import of_state, state_tables
from autotune.network.export.texts import filled, text_of
from autotune.pages import CACHE_LINE, LARGE_FROM, LARGE_PAGE
from autotune.target import Target, cpuid, needed_features
from autotune.target.isa import Architecture
from autotune.target.tiles import FEATURE

WEIGHTS_HEADER = 4096
"""Bytes of a file of weights before the constants: a page, which begins with their digest."""

_IS_HERE = 56
"""A word of the team that nothing else uses: 1 in the process that its threads are of."""
_TEAM = ("TEAM_BYTES", "SEAT_BYTES", "SETTINGS_BYTES", "JOB_BYTES", "RUN_BYTES", "LINE")
_SETTINGS = ("SET_CAPACITY", "SET_PATIENCE", "SET_ASSIST", "SET_PART")
_JOB = ("TEAM", "SEAT", "TABLE", "SHARES", "N_KERNELS", "WANTED", "SETTINGS", "WAITERS")
_PLAN = ("NUMBERS", "ARRAYS", "SHAPES", "ROOMS")
_ROUTINES = {"prepare": 2, "make": 3, "leave": 1, "assist": 1}
"""Functions of the team that the run time calls, and how many words each takes."""
_PORTS = {"numbers_of": 3, "extents_of": 4, "enter": 3, "leave": 3, "widen": 4, "narrow": 4}
"""Those of calls: see `codegen.ports_code`."""


def source(interface: LibraryInterface, digest: bytes, is_separate: bool) -> str:
    """The text of NAME.c. `digest`: of the constants, which are a file where `is_separate`."""
    probe = interface.target.architecture.probe
    calls = ["session.c" if interface.state else "call.c"]
    if interface.is_by_shape:
        calls.insert(0, "shapes.c")
    if interface.tells_shapes:
        calls.append("results.c")
    parts = [
        _head(interface, is_separate),
        *([text_of("library.h")] if interface.state is None else ()),
        *_tables(interface),
        _constants(interface, digest, is_separate),
        _arrays(interface),
        *state_tables(interface.state),
        *(text_of(file) for file in ("linux.c", probe, "runtime.c", *calls)),
        description(interface),
    ]
    return "\n".join(parts)


def symbols(interface: LibraryInterface) -> dict[str, str]:
    """Functions of the image, and what the run time calls them."""
    name = interface.image
    found = {f"{team.SYMBOLS}{routine}": f"{name}_team_{routine}" for routine in _ROUTINES}
    found |= {f"{ports_code.SYMBOLS}{routine}": f"{name}_ports_{routine}" for routine in _PORTS}
    for variant in interface.of_all_cpus:
        for symbol, short in ((RUN, "run"), (KERNELS, "kernels")):
            own = entry_name(symbol, variant.entry)
            found[own] = f"{name}_image_{short}_{variant.entry}"
    return found


def _head(interface: LibraryInterface, is_separate: bool) -> str:
    architecture = interface.target.architecture
    numbers = {
        "N_CPUS": len(interface.targets),
        "N_VARIANTS": len(interface.variants),
        "N_INPUTS": max(len(v.own_inputs) for v in interface.variants),
        "N_OUTPUTS": max(len(v.outputs) for v in interface.variants),
        "N_THREADS": interface.artifact.n_threads,
        "N_LENGTHS": max(len(v.lengths) for v in interface.variants),
        "ARENA": ARENA,
        "CONSTANTS": CONSTANTS,
        "LARGE_PAGE": LARGE_PAGE,
        "LARGE_FROM": LARGE_FROM,
        "WEIGHTS_HEADER": WEIGHTS_HEADER,
        "BLOCK_BYTES": team.BLOCK_BYTES,
        "IS_HERE": _IS_HERE,
        "PATIENCE_NS": round(team.PATIENCE_S * 1e9),
        "PART_NS": round(team.PART_S * 1e9),
        **{name: getattr(team_code, name) for name in (*_TEAM, *_SETTINGS)},
        **{f"JOB_{name}": getattr(team_code, name) for name in _JOB},
        **{f"PLAN_{name}": getattr(ports_code, name) for name in _PLAN},
        **{name: getattr(ports_code, name) for name in ("OTHER", "REASONS", "PLAIN")},
        "AFTER_SHAPES": TOO_LONG - ports_code.ABOVE,
    }
    lines = [f"  {name} = {value}," for name, value in numbers.items()]
    text = filled(
        "head.c",
        name=interface.name,
        guard=interface.name.upper(),
        team=TEAM_SYMBOL,
        features=quoted(" ".join(needed_features(interface.target))),
        needed_fields=_WORDS if architecture.capabilities else _REGISTERS,
        numbers="\n".join(lines).rstrip(","),
    )
    sizes = {
        "ARENA_BYTES": _aligned(max(v.arena_bytes for v in interface.of_all_cpus)),
        "STAGING_BYTES": max(_staging(v)[1] for v in interface.of_all_cpus),
        "CONSTANTS_BYTES": interface.artifact.constants.nbytes,
    }
    words = [f"#define {name} ((size_t){value})" for name, value in sizes.items()]
    if interface.lengths_text:
        words.append(f"#define LENGTHS_TEXT {quoted(plain_text(interface.lengths_text))}")
    return "\n".join([text, *words, f"#define SEPARATE_WEIGHTS {int(is_separate)}", ""])


def _vector_bytes(target: Target) -> int:
    """Of a vector whose length is not the same on all CPUs of its architecture; else 0."""
    return target.vector_bits // 8 if target.isa.is_scalable else 0


_REGISTERS = """uint32_t leaf, subleaf, at, bits;
  uint64_t saved; /* registers that the system saves, as bits of XCR0 */"""
_WORDS = "unsigned long word, bits; /* a word of the auxiliary vector, and bits of it */"


def _bits(architecture: Architecture, features: Iterable[str]) -> list[str]:
    """Rows of what the probe asks for: bits of registers that tell a CPU, or of Linux' words."""
    if architecture.capabilities:
        words: dict[str, int] = {}
        told = architecture.capabilities
        for word, bit in (told[name] for name in features if name in told):
            words[word] = words.get(word, 0) | 1 << bit
        return [f"{{{word}, {bits:#x}}}" for word, bits in words.items()]
    rows = cpuid.bits_of(features).items()
    return [
        f"{{{leaf:#x}, {subleaf}, {register}, {bits:#x}, {saved:#x}}}"
        for (leaf, subleaf, register, saved), bits in rows
    ]


def _cpus(targets: Sequence[Target]) -> Iterator[str]:
    """The CPUs that there is code for, the first that fits counts."""
    rows = []
    for n, target in enumerate(targets):
        features = needed_features(target)
        bits = _bits(target.architecture, features)
        yield f"static const Needed needed_{n}[] = {{{', '.join(bits) or '{0}'}}};"
        told = f"{len(bits)}, {_vector_bytes(target)}, {int(FEATURE in features)}"
        rows.append(f"{{needed_{n}, {told}}}")
    yield f"static const Cpu cpus[] = {{{', '.join(rows)}}};"


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // CACHE_LINE) * CACHE_LINE


def _staging(variant: Artifact) -> tuple[list[str], int]:
    """The `Port` of each input and output, and bytes of all that they are kept in meanwhile."""
    rows, at = [], 0
    own = of_state(variant)  # as they are stored
    rooms = [0] * len(variant.own_inputs) + [*call_plan(variant).rooms]
    for end, room in zip((*variant.own_inputs, *variant.outputs), rooms, strict=True):
        kind = ports_code.PLAIN if end.name in own else halves_of(end)
        is_staged = kind != ports_code.PLAIN
        staging = _aligned(math.prod(end.shape) * dtype_bytes(end.stored)) * is_staged
        rows.append(f"{{{kind}, {at}, {at + staging}}}")
        at += staging + _aligned(room)
    return rows, at


def _tables(interface: LibraryInterface) -> Iterator[str]:
    """Functions of the image, and the ports of each variant."""
    name = interface.image
    functions = symbols(interface)
    for symbol, known in functions.items():
        if symbol.startswith(KERNELS):
            yield f"extern const char {known}[];"
        elif symbol.startswith(RUN):
            yield f"extern void {known}(void *table, int64_t n_threads);"
    for kind, routines in (("team", _ROUTINES), ("ports", _PORTS)):
        for routine, n in routines.items():
            yield f"extern int64_t {name}_{kind}_{routine}({', '.join(['int64_t'] * n)});"
            yield f"#define {kind}_{routine} {name}_{kind}_{routine}"
    yield f"static const int order[] = {{{', '.join(map(str, interface.order))}}};"
    yield from _cpus(interface.targets)
    rows = []
    for k, variant in enumerate(interface.of_all_cpus):
        plan, (ports, _) = call_plan(variant), _staging(variant)
        yield f"static const int64_t plan_{k}[] = {{{', '.join(map(str, plan.words))}}};"
        yield f"static const Port ports_{k}[] = {{{', '.join(ports) or '{0}'}}};"
        kernels = functions[entry_name(KERNELS, variant.entry)]
        run = functions[entry_name(RUN, variant.entry)]
        rows.append(
            f"  {{plan_{k}, ports_{k}, {len(plan.inputs)}, {len(plan.outputs)}, {variant.n_bases}, "
            f"{plan.all_words}, {plan.n_lengths}, {len(variant.kernels)}, {kernels}, {run}}}"
        )
    yield "static const Variant all_variants[] = {\n" + ",\n".join(rows) + "\n};"
    yield "static const Variant *variants = all_variants; /* for this CPU */"


def _constants(interface: LibraryInterface, digest: bytes, is_separate: bool) -> str:
    signature = f"static const char signature[] = {quoted(interface.signature())};"
    if not is_separate:
        return (
            f"{signature}\nextern const char {interface.image}_constants[];\n"
            f"#define embedded_constants {interface.image}_constants"
        )
    values = ", ".join(map(str, digest))
    return (
        f'{signature}\n#define WEIGHTS_NAME "{interface.image}.weights"\n'
        f"static const unsigned char weights_digest[] = {{{values}}};"
    )


def _arrays(interface: LibraryInterface) -> str:
    """Functions that list the fields of a call's records."""
    name = interface.name
    step = steps_of(interface.artifact)[0]
    given = _fields(interface.inputs, step.own_inputs, "inputs", "in")
    made = _fields(interface.outputs, step.outputs, "outputs", "out")
    text = [
        f"static void arrays_of(const {name}_inputs *in, const {name}_outputs *out,",
        "                      void **inputs, void **outputs) {",
        "  (void)in, (void)out, (void)inputs, (void)outputs;",
        *given,
        *made,
        "}",
    ]
    if interface.is_by_shape:
        told = {t.first.name: t.identifier for t in interface.inputs if not t.is_fixed}
        names = [told.get(end.name) for end in step.own_inputs]
        shapes = (f"in->{name}_shape" if name else "NULL" for name in names)
        text += [
            f"static void shapes_of(const {name}_inputs *in, const int64_t **shapes) {{",
            "  (void)in, (void)shapes;",
            *(f"  shapes[{n}] = {shape};" for n, shape in enumerate(shapes)),
            "}",
        ]
    if interface.tells_shapes:
        text += [
            f"static void results_of({name}_result_shapes *out, int64_t **shapes) {{",
            *(
                f"  shapes[{n}] = {'NULL' if t.is_fixed else f'out->{t.identifier}'};"
                for n, t in enumerate(interface.outputs)
            ),
            "}",
        ]
    begin = begin_of(interface.artifact)
    if begin is not None:
        text += [
            f"static void begin_arrays_of(const {name}_begin_inputs *in, void **inputs) {{",
            *_fields(interface.begin, begin.inputs, "inputs", "in"),
            "}",
        ]
    return "\n".join([*text, ""])


def _fields(
    tensors: Iterable[Tensor], ends: tuple[Endpoint, ...], arrays: str, record: str
) -> Iterator[str]:
    """The address of each port, of a field of the caller's; NULL for those of a session."""
    fields = {tensor.first.name: tensor.identifier for tensor in tensors}
    for n, end in enumerate(ends):
        field = fields.get(end.name)
        yield f"  {arrays}[{n}] = {f'(void *){record}->{field}' if field else 'NULL'};"
