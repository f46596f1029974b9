"""⑩ The header of an exported network, in C99 and C++."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.network.export.interface import LibraryInterface, Tensor

_HEADER = """\
/* {name}: {model}, compiled by autotune {version} for {cpu}.
 *
 * A model may be called by any number of threads at once, and in the child of a fork. Outputs may
 * not overlap inputs. {name}_run allocates nothing. */

#ifndef {guard}_H
#define {guard}_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define {guard}_API __attribute__((visibility("default")))
#else
#define {guard}_API
#endif

#ifdef __cplusplus
extern "C" {{
#endif

{sizes}

/* Status of {name}_create and {name}_run: {name}_strerror tells them as text. */
enum {{
  {guard}_OK = 0,
  {guard}_OTHER_CPU = 1,   /* this CPU lacks instructions that the network was compiled for */
  {guard}_NO_MEMORY = 2,
  {guard}_NO_ARGUMENT = 3, /* a pointer is null, or a number below zero */
  {guard}_OTHER_SHAPE = 4, /* no variant is for inputs of these shapes */
  {guard}_NO_WEIGHTS = 5   /* the file of weights cannot be read, or is of another network */
}};

/* All zeros are the defaults. */
typedef struct {{
  int threads;         /* that divide an inference; 0: {threads}, or fewer where fewer can run */
  int callers;         /* calls at once, each with memory of its own; others wait; 0: 1 */
  int any_cpu;         /* 1: do not look whether this CPU has the instructions */
  const char *weights; /* the file of weights; NULL: {weights} */
}} {name}_options;

typedef struct {name}_model {name}_model;

{inputs}
{outputs}
/* Make a model; `options` may be NULL. `*model` is NULL where the status is not {guard}_OK. */
{guard}_API int {name}_create(const {name}_options *options, {name}_model **model);

/* One inference. */
{guard}_API int {name}_run({name}_model *model, const {name}_inputs *inputs,
{indent}const {name}_outputs *outputs);

/* Free a model that no thread is in a call of; NULL is none. */
{guard}_API void {name}_destroy({name}_model *model);

/* Names, types and shapes of inputs and outputs, as JSON. */
{guard}_API const char *{name}_signature(void);

{guard}_API const char *{name}_strerror(int status);

#ifdef __cplusplus
}}
#endif

#endif
"""


def header(interface: LibraryInterface, is_separate: bool) -> str:
    """The text of NAME.h; `is_separate`: constants are a file of their own."""
    name, artifact = interface.name, interface.artifact
    n = artifact.n_threads
    return _HEADER.format(
        name=name,
        guard=name.upper(),
        model=_comment(artifact.name),
        version=artifact.autotune_version,
        cpu=interface.target.cpu,
        sizes="\n".join(_sizes(interface)),
        threads=f"{n} thread" if n == 1 else f"{n} threads",
        weights="beside the library" if is_separate else "none is needed",
        inputs=_record(interface, "inputs", interface.inputs, "const "),
        indent=" " * (2 * len(name) + 14),
        outputs=_record(interface, "outputs", interface.outputs, ""),
    )


def _sizes(interface: LibraryInterface) -> Iterator[str]:
    """Numbers of elements, for each variant where they differ."""
    for tensor in (*interface.inputs, *interface.outputs):
        kind = "INPUT" if tensor in interface.inputs else "OUTPUT"
        macro = f"{interface.name.upper()}_{kind}_{tensor.identifier.upper()}_COUNT"
        shapes = [" x ".join(map(str, end.shape)) or "scalar" for end in tensor.ends]
        if tensor.is_fixed:
            yield f"#define {macro} {tensor.counts[0]} /* {shapes[0]} */"
            continue
        for n, (count, shape) in enumerate(zip(tensor.counts, shapes, strict=True)):
            yield f"#define {macro}_{n} {count} /* {shape} */"


def _record(interface: LibraryInterface, kind: str, tensors: tuple[Tensor, ...], const: str) -> str:
    """A struct of pointers, and of the shapes that tell variants apart."""
    fields = []
    for tensor in tensors:
        end = tensor.first
        what = f"{_comment(end.name)}: {end.dtype}"
        fields.append(f"  {const}{tensor.c_type} *{tensor.identifier}; /* {what} */")
        if const and not tensor.is_fixed:
            fields.append(f"  int64_t {tensor.identifier}_shape[{max(len(end.shape), 1)}];")
    lines = fields or ["  char none;"]
    return "\n".join(["typedef struct {", *lines, f"}} {interface.name}_{kind};", ""])


def _comment(text: str) -> str:
    """Text that ends no comment, and is plain ASCII on one line."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *")
