"""⑩ What comes with an exported library: for pkg-config, CMake, and who reads it first."""

from __future__ import annotations

from autotune.network.artifact.numbers import extents_text
from autotune.network.export.interface import LibraryInterface, Tensor

_LIBC = frozenset(
    {
        *("clock_gettime", "memcpy", "memmove", "memset", "pthread_create", "pthread_detach"),
        *("pthread_sigmask", "sched_setaffinity", "sched_yield", "syscall"),
    }
)
"""What code calls of libc itself."""

_PC = """\
prefix=${{pcfiledir}}

Name: {name}
Description: {model}, compiled by autotune
Version: {version}
Cflags: -I${{prefix}}
Libs: -L${{prefix}} -l{name}
Libs.private: {libraries}
"""

_CMAKE = """\
# find_package({name} REQUIRED PATHS folder NO_DEFAULT_PATH)
# target_link_libraries(program {name}::{name})          shared
# target_link_libraries(program {name}::{name}_static)   static

if(NOT TARGET {name}::{name})
  add_library({name}::{name} SHARED IMPORTED)
  set_target_properties({name}::{name} PROPERTIES
    IMPORTED_LOCATION "${{CMAKE_CURRENT_LIST_DIR}}/lib{name}.so"
    INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_LIST_DIR}}")
  add_library({name}::{name}_static STATIC IMPORTED)
  set_target_properties({name}::{name}_static PROPERTIES
    IMPORTED_LOCATION "${{CMAKE_CURRENT_LIST_DIR}}/lib{name}.a"
    INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_LIST_DIR}}"
    INTERFACE_LINK_LIBRARIES "{cmake}")
endif()
"""

_EXAMPLE = """\
/* cc example.c -I. -L. -l{name} -Wl,-rpath,'$ORIGIN' -o example && ./example */

#include "{name}.h"

#include <stdio.h>
#include <stdlib.h>

int main(void) {{
  {name}_model *model;
  {name}_inputs inputs = {{0}};
  {name}_outputs outputs = {{0}};
  int status = {name}_create(NULL, &model);
  if (status) {{
    fprintf(stderr, "%s\\n", {name}_strerror(status));
    return 1;
  }}
{arrays}
  status = {name}_run(model, &inputs, &outputs);
  if (status)
    fprintf(stderr, "%s\\n", {name}_strerror(status));
  else
{shown}
{frees}
  {name}_destroy(model);
  return status != 0;
}}
"""

_EXAMPLE_OF_STATE = """\
/* cc example.c -I. -L. -l{name} -Wl,-rpath,'$ORIGIN' -o example && ./example */

#include "{name}.h"

#include <stdio.h>
#include <stdlib.h>

int main(void) {{
  {name}_model *model;
  {name}_session *session = NULL;
  {name}_inputs inputs = {{0}};
  {name}_outputs outputs = {{0}};
{record}  int status = {name}_create(NULL, &model);
  if (!status) status = {name}_open(model, &session);
  if (status) {{
    fprintf(stderr, "%s\\n", {name}_strerror(status));
    return 1;
  }}
{arrays}
{begin}  for (int n = 0; n < 3 && !status; n++) status = {name}_step(session, 1, &inputs, &outputs);
  if (status)
    fprintf(stderr, "%s\\n", {name}_strerror(status));
  else
{shown}
{frees}
  {name}_close(session);
  {name}_destroy(model);
  return status != 0;
}}
"""

_EXAMPLE_BEGIN = (
    "  {name}_begin_inputs begun = {{0}};\n",
    "  status = {name}_begin(session, &begun);\n",
)

_RUST = """\
// rustc example.rs -L. -C link-arg=-Wl,-rpath,'$ORIGIN' && ./example

use std::os::raw::{{c_char, c_int, c_void}};

#[repr(C)]
struct Inputs {{
{inputs}}}

#[repr(C)]
struct Outputs {{
{outputs}}}

#[link(name = "{name}")]
extern "C" {{
    fn {name}_create(options: *const c_void, model: *mut *mut c_void) -> c_int;
    fn {name}_run(model: *mut c_void, inputs: *const Inputs, outputs: *const Outputs) -> c_int;
    fn {name}_destroy(model: *mut c_void);
    fn {name}_strerror(status: c_int) -> *const c_char;
}}

fn require(status: c_int) {{
    if status != 0 {{
        let text = unsafe {{ std::ffi::CStr::from_ptr({name}_strerror(status)) }};
        panic!("{{}}", text.to_string_lossy());
    }}
}}

fn main() {{
{arrays}    let mut model = std::ptr::null_mut();
    unsafe {{
        require({name}_create(std::ptr::null(), &mut model));
        require({name}_run(model, &Inputs {{ {given} }}, &Outputs {{ {made} }}));
        {name}_destroy(model);
    }}
{shown}}}
"""

_NODE = """\
// npm install koffi && node example.mjs

import koffi from "koffi";

const library = koffi.load(new URL("lib{name}.so", import.meta.url).pathname);
const create = library.func("int {name}_create(void *options, _Out_ void **model)");
const run = library.func("int {name}_run(void *model, void *inputs, void *outputs)");
const destroy = library.func("void {name}_destroy(void *model)");
const strerror = library.func("const char *{name}_strerror(int status)");

function require(status) {{
  if (status) throw new Error(strerror(status));
}}

// Fields of the records: addresses of arrays, and shapes where variants differ in them.
function record(...fields) {{
  const word = (x) => (ArrayBuffer.isView(x) ? koffi.address(x) : BigInt(x));
  return BigInt64Array.from(fields.map(word));
}}

{arrays}const model = [null];
require(create(null, model));
require(run(model[0], record({given}), record({made})));
{shown}destroy(model[0]);
"""

_README_HEAD = """\
# {name}

{model}, compiled by autotune {version} for {cpu}. The library needs the C library alone.

| file | |
|---|---|
| `{name}.h` | the interface |
| `lib{name}.so`, `lib{name}.a` | link one of them |
{weights}| `{name}.pc`, `{name}Config.cmake` | for pkg-config and CMake |
"""
_README = (
    _README_HEAD
    + """\
| `example.c`, `.rs`, `.mjs` | one inference on zeros, in C, Rust and Node |

{tensors}

C, C++:

    cc example.c -I. -L. -l{name} -Wl,-rpath,'$ORIGIN' -o example && ./example
    cc example.c -I. lib{name}.a {libraries} -o example && ./example

Python, with NumPy and without a compiler:

    model = autotune.ExportedModel("lib{name}.so")
    outputs = model.run({{{feed}}})

A call divides its work among {threads} threads of a team that all libraries of the process share;
`options.threads` says another number. Any number of threads may call a model at once: give
`options.callers` as many places as there are calls at once, others wait. The same inputs give the
same bits on any number of threads. A process may fork; the child can call the model as well.
{lengths}"""
)
_LENGTHS = """
Lengths: {text}. Inputs that have some tell theirs in NAME_shape; {name}_shapes gives the shapes of
the results.
"""


_README_OF_STATE = (
    _README_HEAD
    + """\
| `example.c` | steps on zeros |

The model has a state, which a session keeps: {name}_open, {name}_step for any number of places,
{name}_length, {name}_reset, {name}_close. Shapes are those of the steps that a longer one is made
of.

{tensors}

C, C++:

    cc example.c -I. -L. -l{name} -Wl,-rpath,'$ORIGIN' -o example && ./example
    cc example.c -I. lib{name}.a {libraries} -o example && ./example

A call divides its work among {threads} threads of a team that all libraries of the process share;
`options.threads` says another number. Sessions share the model; each is for one thread at a time.
Give `options.callers` as many places as there are calls at once, others wait.
"""
)


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
    found = {
        f"{name}.pc": _PC.format(**known),
        f"{name}Config.cmake": _CMAKE.format(**known),
        "example.c": _example(interface),
    }
    if interface.state is not None:
        readme = _README_OF_STATE.format(
            **known, tensors=table_of(interface), threads=threads, weights=weights
        )
        return {**found, "README.md": readme}
    text = interface.lengths_text
    readme = _README.format(
        **known,
        tensors=table_of(interface),
        feed=feed,
        threads=threads,
        weights=weights,
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
    text = _EXAMPLE if interface.state is None else _EXAMPLE_OF_STATE
    begin = _EXAMPLE_BEGIN if interface.begin else ("", "")
    return text.format(
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
    return _RUST.format(
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
    return _NODE.format(
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
