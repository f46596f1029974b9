"""⑩ What comes with an exported library: for pkg-config, CMake, and who reads it first."""

from __future__ import annotations

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

_README = """\
# {name}

{model}, compiled by autotune {version} for {cpu}. The library needs the C library alone.

| file | |
|---|---|
| `{name}.h` | the interface |
| `lib{name}.so`, `lib{name}.a` | link one of them |
{weights}| `{name}.pc`, `{name}Config.cmake` | for pkg-config and CMake |
| `example.c` | one inference on zeros |

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
        "cpu": interface.target.cpu,
        "libraries": " ".join(linked_with(interface)),
        "cmake": ";".join(name.removeprefix("-l") for name in linked_with(interface)),
    }
    feed = ", ".join(f'"{t.first.name}": {t.identifier}' for t in interface.inputs)
    weights = f"| `{name}.weights` | the weights, beside the library |\n" if is_separate else ""
    threads = artifact.n_threads
    return {
        f"{name}.pc": _PC.format(**known),
        f"{name}Config.cmake": _CMAKE.format(**known),
        "example.c": _example(interface),
        "README.md": _README.format(
            **known, tensors=_tensors(interface), feed=feed, threads=threads, weights=weights
        ),
    }


def _example(interface: LibraryInterface) -> str:
    name, inputs, outputs = interface.name, interface.inputs, interface.outputs
    arrays = []
    for kind, tensors in (("inputs", inputs), ("outputs", outputs)):
        for tensor in tensors:
            count = _count(interface, kind[:-1], tensor)
            cast = f"({tensor.c_type} *)"
            size = f"sizeof({tensor.c_type})"
            arrays.append(f"  {kind}.{tensor.identifier} = {cast}calloc({count} + 1, {size});")
            if kind == "inputs" and not tensor.is_fixed:
                arrays += [
                    f"  {kind}.{tensor.identifier}_shape[{n}] = {extent};"
                    for n, extent in enumerate(tensor.first.shape)
                ]
    shown = [
        f'    printf("{t.identifier}: %g\\n", (double)outputs.{t.identifier}[0]);' for t in outputs
    ]
    frees = [f"  free(outputs.{t.identifier});" for t in outputs]
    frees += [f"  free((void *)inputs.{t.identifier});" for t in inputs]
    body = shown[0] if len(shown) == 1 else "\n".join(["  {", *shown, "  }"])
    return _EXAMPLE.format(name=name, arrays="\n".join(arrays), shown=body, frees="\n".join(frees))


def _count(interface: LibraryInterface, kind: str, tensor: Tensor) -> str:
    end = "" if tensor.is_fixed else "_0"
    return f"{interface.name.upper()}_{kind.upper()}_{tensor.identifier.upper()}_COUNT{end}"


def _tensors(interface: LibraryInterface) -> str:
    lines = ["| | type | shape |", "|---|---|---|"]
    for kind, tensors in (("in", interface.inputs), ("out", interface.outputs)):
        for tensor in tensors:
            shapes = ", ".join(dict.fromkeys(str(list(end.shape)) for end in tensor.ends))
            lines.append(f"| {kind} `{tensor.identifier}` | {tensor.first.dtype} | {shapes} |")
    return "\n".join(lines)
