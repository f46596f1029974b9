"""⑩ What comes with an exported library: for pkg-config, CMake, and who reads it first."""

from __future__ import annotations

from autotune.network.artifact.numbers import extents_text
from autotune.network.export.interface import LibraryInterface, Tensor
from autotune.network.export.texts import filled

_LIBC = frozenset(
    {
        *("clock_gettime", "memcpy", "memmove", "memset", "pthread_create", "pthread_detach"),
        *("pthread_sigmask", "sched_setaffinity", "sched_yield", "syscall"),
    }
)
"""What code calls of libc itself."""

_EXAMPLE_BEGIN = (
    "  {name}_begin_inputs begun = {{0}};\n",
    "  status = {name}_begin(session, &begun);\n",
)

_LENGTHS = """
Lengths: {text}. Inputs that have some tell theirs in NAME_shape; {name}_shapes gives the shapes of
the results.
"""


def linked_with(interface: LibraryInterface) -> tuple[str, ...]:
    """Options for the parts of the C library that the network calls: libm for doubles alone."""
    is_math = not interface.artifact.image.imports.keys() <= _LIBC
    return ("-lpthread", "-ldl", *(("-lm",) if is_math else ()))


def companions(interface: LibraryInterface, is_separate: bool) -> dict[str, str]:
    """Texts by file name."""
    name, artifact = interface.name, interface.artifact
    known = {
        "name": name,
        "model": " ".join(artifact.name.split()),
        "version": artifact.autotune_version,
        "cpu": interface.cpu,
        "libraries": " ".join(linked_with(interface)),
        "cmake": ";".join(name.removeprefix("-l") for name in linked_with(interface)),
    }
    feed = ", ".join(f'"{t.first.name}": {t.identifier}' for t in interface.inputs)
    weights = f"| `{name}.weights` | the weights, beside the library |\n" if is_separate else ""
    threads = artifact.n_threads
    head = filled("library_head.md", **known, weights=weights)
    found = {
        f"{name}.pc": filled("library.pc", **known),
        f"{name}Config.cmake": filled("library.cmake", **known),
        "example.c": _example(interface),
    }
    if interface.state is not None:
        readme = filled(
            "library_of_state.md", **known, head=head, tensors=table_of(interface), threads=threads
        )
        return {**found, "README.md": readme}
    text = interface.lengths_text
    readme = filled(
        "library.md",
        **known,
        tensors=table_of(interface),
        feed=feed,
        threads=threads,
        head=head,
        lengths=_LENGTHS.format(text=text, name=name) if text else "",
    )
    languages = {"example.rs": _rust(interface), "example.mjs": _node(interface)}
    return {**found, **languages, "README.md": readme}


def _example(interface: LibraryInterface) -> str:
    name, inputs, outputs = interface.name, interface.inputs, interface.outputs
    sides = {"inputs": inputs, "outputs": outputs, "begun": interface.begin}
    arrays = []
    for kind, tensors in sides.items():
        for tensor in tensors:
            count = _count(interface, kind, tensor)
            cast = f"({tensor.kind.c} *)"
            size = f"sizeof({tensor.kind.c})"
            arrays.append(f"  {kind}.{tensor.identifier} = {cast}calloc({count} + 1, {size});")
            if kind == "inputs" and not tensor.is_fixed and interface.is_by_shape:
                arrays += [
                    f"  {kind}.{tensor.identifier}_shape[{n}] = {extent};"
                    for n, extent in enumerate(tensor.first.shape)
                ]
    shown = [
        f'    printf("{t.identifier}: %g\\n", (double)outputs.{t.identifier}[0]);' for t in outputs
    ]
    frees = [f"  free(outputs.{t.identifier});" for t in outputs]
    frees += [f"  free((void *)inputs.{t.identifier});" for t in inputs]
    frees += [f"  free((void *)begun.{t.identifier});" for t in interface.begin]
    body = shown[0] if len(shown) == 1 else "\n".join(["  {", *shown, "  }"])
    file = "example.c" if interface.state is None else "example_of_state.c"
    begin = _EXAMPLE_BEGIN if interface.begin else ("", "")
    return filled(
        file,
        name=name,
        arrays="\n".join(arrays),
        shown=body,
        frees="\n".join(frees),
        record=begin[0].format(name=name),
        begin=begin[1].format(name=name),
    )


def _rust(interface: LibraryInterface) -> str:
    sides = {"inputs": interface.inputs, "outputs": interface.outputs}
    fields = {kind: "".join(_rust_field(t, kind) for t in side) for kind, side in sides.items()}
    arrays = ""
    given: dict[str, list[str]] = {"inputs": [], "outputs": []}
    for kind, side in sides.items():
        mutable, pointer = ("", "as_ptr") if kind == "inputs" else ("mut ", "as_mut_ptr")
        for n, tensor in enumerate(side):
            x, kind_of = f"{kind[:-1]}{n}", tensor.kind.rust
            arrays += f"    let {mutable}{x} = vec![0 as {kind_of}; {tensor.counts[0]}];\n"
            given[kind].append(f"r#{tensor.identifier}: {x}.{pointer}()")
            if kind == "inputs" and not tensor.is_fixed:
                shape = ", ".join(map(str, tensor.first.shape))
                given[kind].append(f"{tensor.identifier}_shape: [{shape}]")
    names = enumerate(interface.outputs)
    shown = [f'    println!("{t.identifier}: {{:?}}", output{n}.first());\n' for n, t in names]
    return filled(
        "example.rs",
        name=interface.name,
        **fields,
        arrays=arrays,
        given=", ".join(given["inputs"]),
        made=", ".join(given["outputs"]),
        shown="".join(shown),
    )


def _rust_field(tensor: Tensor, kind: str) -> str:
    const = "const" if kind == "inputs" else "mut"
    line = f"    r#{tensor.identifier}: *{const} {tensor.kind.rust},\n"
    if kind == "inputs" and not tensor.is_fixed:
        line += f"    {tensor.identifier}_shape: [i64; {max(1, len(tensor.first.shape))}],\n"
    return line


def _node(interface: LibraryInterface) -> str:
    arrays = shown = ""
    given: list[str] = []
    made: list[str] = []
    for n, tensor in enumerate(interface.inputs):
        arrays += f"const input{n} = new {tensor.kind.js}({tensor.counts[0]});\n"
        given += [f"input{n}", *(() if tensor.is_fixed else map(str, tensor.first.shape))]
    for n, tensor in enumerate(interface.outputs):
        arrays += f"const output{n} = new {tensor.kind.js}({tensor.counts[0]});\n"
        made.append(f"output{n}")
        shown += f'console.log("{tensor.identifier}:", output{n}[0]);\n'
    return filled(
        "example.mjs",
        name=interface.name,
        arrays=arrays,
        given=", ".join(given),
        made=", ".join(made),
        shown=shown,
    )


_SIDES = {"inputs": "INPUT", "outputs": "OUTPUT", "begun": "BEGIN"}


def _count(interface: LibraryInterface, kind: str, tensor: Tensor) -> str:
    end = "" if tensor.is_alike or not interface.is_by_shape else "_0"
    side, name = _SIDES[kind], interface.name.upper()
    return f"{name}_{side}_{tensor.identifier.upper()}_COUNT{end}"


def table_of(interface: LibraryInterface) -> str:
    """Inputs and outputs, in Markdown."""
    lines = ["| | type | shape |", "|---|---|---|"]
    for kind, tensors in (("in", interface.inputs), ("out", interface.outputs)):
        for tensor in tensors:
            shapes = ", ".join(dict.fromkeys(f"[{extents_text(end)}]" for end in tensor.ends))
            lines.append(f"| {kind} `{tensor.identifier}` | {tensor.first.dtype} | {shapes} |")
    return "\n".join(lines)
