"""⑩ The header of an exported network, in C99 and C++."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.network.export.description import quoted
from autotune.network.export.interface import LibraryInterface, Tensor
from autotune.network.export.texts import filled

_CALL = """\
/* One inference. */
{guard}_API int {name}_run({name}_model *model, const {name}_inputs *inputs,
{indent}const {name}_outputs *outputs);
"""

_STATUSES = """\
  {guard}_FULL = 6,        /* the state has no room for so many places */
  {guard}_NOT_BEGUN = 7    /* the model takes something once for a sequence, and has not got it */
"""

_LENGTHS = """\
/* Lengths: {text}.
 * Inputs that have some tell theirs in NAME_shape; arrays are dense, COUNT is of the longest. */

"""

_LENGTH_STATUSES = """\
  {guard}_TOO_LONG = 8,    /* a dimension is longer than the network was compiled for */
  {guard}_TOO_SHORT = 9,   /* a dimension is shorter than the network can have */
  {guard}_BETWEEN = 10,    /* a dimension is between two steps */
  {guard}_DISAGREE = 11    /* inputs disagree about a length */
"""
TOO_LONG = 8
"""The first status of lengths; others follow in the order of `codegen.ports_code`."""

_SHAPES = """
/* Shapes of results that are not the same in all calls. */
{record}
/* The shapes of results for inputs of these shapes, whose arrays may be NULL. */
{guard}_API int {name}_shapes(const {name}_inputs *inputs, {name}_result_shapes *shapes);
"""

_SESSION = """\
/* A state of the model, which stays in place. Each is for one thread at a time, any number share
 * the model, which is destroyed after them. */
typedef struct {name}_session {name}_session;

{guard}_API int {name}_open({name}_model *model, {name}_session **session);
{guard}_API void {name}_close({name}_session *session);
{begin}
/* Advance by n places. What has a row for each place has n of them. Where the status is not
 * {guard}_OK the state is as it was. */
{guard}_API int {name}_step({name}_session *session, int64_t n, const {name}_inputs *inputs,
{indent}const {name}_outputs *outputs);

/* The number of filled places, of {guard}_CAPACITY. */
{guard}_API int64_t {name}_length(const {name}_session *session);

/* Forget all places. */
{guard}_API void {name}_reset({name}_session *session);
"""

_BEGIN = """
{record}
/* Begin a sequence with what stays for it; no place is filled then. */
{guard}_API int {name}_begin({name}_session *session, const {name}_begin_inputs *inputs);
"""


def header(interface: LibraryInterface, is_separate: bool) -> str:
    """The text of NAME.h; `is_separate`: constants are a file of their own."""
    name, artifact = interface.name, interface.artifact
    n, guard = artifact.n_threads, name.upper()
    known = {"name": name, "guard": guard}
    is_stateful = interface.state is not None
    begin = ""
    if interface.begin:
        record = _record(interface, "begin_inputs", interface.begin, "const ")
        begin = _BEGIN.format(**known, record=record)
    known["indent"] = " " * (2 * len(name) + 14)
    lengths, text = interface.lengths_text, _SESSION if is_stateful else _CALL
    statuses = _STATUSES if is_stateful else _LENGTH_STATUSES if lengths else ""
    shapes = ""
    if interface.tells_shapes:
        shapes = _SHAPES.format(**known, record=_result_shapes(interface))
    return filled(
        "header.h",
        **known,
        call="step" if is_stateful else "run",
        more="," if statuses else "",
        lengths=_LENGTHS.format(text=_comment(lengths)) if lengths else "",
        statuses=statuses.format(**known),
        calls=text.format(**known, begin=begin) + shapes,
        model=_comment(artifact.name),
        version=artifact.autotune_version,
        cpu=interface.cpu,
        sizes="\n".join([*_sizes(interface), *_texts(interface)]),
        threads=f"{n} thread" if n == 1 else f"{n} threads",
        weights="beside the library" if is_separate else "none is needed",
        inputs=_record(interface, "inputs", interface.inputs, "const "),
        outputs=_record(interface, "outputs", interface.outputs, ""),
    )


def _sizes(interface: LibraryInterface) -> Iterator[str]:
    """Numbers of elements, for each variant where they differ; of a step for each place."""
    if interface.state is not None:
        yield f"#define {interface.name.upper()}_CAPACITY {interface.state.capacity}"
    sides = {"INPUT": interface.inputs, "OUTPUT": interface.outputs, "BEGIN": interface.begin}
    for kind, tensor in ((kind, tensor) for kind, side in sides.items() for tensor in side):
        macro = f"{interface.name.upper()}_{kind}_{tensor.identifier.upper()}_COUNT"
        shapes = [" x ".join(map(str, end.extents or end.shape)) for end in tensor.ends]
        shapes = [_comment(shape) or "scalar" for shape in shapes]
        if not interface.is_by_shape and not tensor.is_fixed:
            last = min(zip(tensor.counts, shapes, strict=True))
            yield f"#define {macro} {last[0]} /* for each place: {last[1]} */"
            continue
        if tensor.is_alike:
            yield f"#define {macro} {tensor.counts[0]} /* {shapes[0]} */"
            continue
        for n, (count, shape) in enumerate(zip(tensor.counts, shapes, strict=True)):
            yield f"#define {macro}_{n} {count} /* {shape} */"


def _texts(interface: LibraryInterface) -> Iterator[str]:
    """Initialisers of arrays: strings by their number, and keys of maps."""
    texts, name = interface.artifact.texts, interface.name.upper()
    if texts.ports:
        yield ""
        yield "/* Strings by number; what is none of them has any number behind theirs. */"
        yield f"#define {name}_WORDS_COUNT {len(texts.words)}"
        yield f"#define {name}_WORDS {{{', '.join(map(quoted, texts.words))}}}"
    for tensor in (t for t in interface.outputs if t.first.name in texts.maps):
        keys = (quoted(k) if isinstance(k, str) else str(k) for k in texts.keys(tensor.first.name))
        yield f"#define {name}_KEYS_{tensor.identifier.upper()} {{{', '.join(keys)}}}"


def _record(interface: LibraryInterface, kind: str, tensors: tuple[Tensor, ...], const: str) -> str:
    """A struct of pointers, and of the shapes that tell variants apart."""
    fields = []
    for tensor in tensors:
        end = tensor.first
        is_text = end.name in interface.artifact.texts.ports
        what = f"{_comment(end.name)}: {'numbers of WORDS' if is_text else end.dtype}"
        fields.append(f"  {const}{tensor.kind.c} *{tensor.identifier}; /* {what} */")
        if const and not tensor.is_fixed and interface.is_by_shape:
            fields.append(f"  int64_t {tensor.identifier}_shape[{max(len(end.shape), 1)}];")
    lines = fields or ["  char none;"]
    return "\n".join(["typedef struct {", *lines, f"}} {interface.name}_{kind};", ""])


def _result_shapes(interface: LibraryInterface) -> str:
    """A struct of the shapes that calls decide."""
    changing = (tensor for tensor in interface.outputs if not tensor.is_fixed)
    fields = [f"  int64_t {t.identifier}[{max(len(t.first.shape), 1)}];" for t in changing]
    return "\n".join(["typedef struct {", *fields, f"}} {interface.name}_result_shapes;", ""])


def _comment(text: str) -> str:
    """Text that ends no comment, and is plain ASCII on one line."""
    return plain_text(text).replace("*/", "* /").replace("/*", "/ *")


def plain_text(text: str) -> str:
    """Plain ASCII on one line."""
    return "".join(c if " " <= c <= "~" else "?" for c in text.replace("·", "*"))
