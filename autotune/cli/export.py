"""⑪ `autotune export`: a compiled model as a library of C."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.console import common_options, put_json, put_path, say
from autotune.cli.option_types import FILE
from autotune.cli.options import force_option, format_option
from autotune.units import format_bytes


@click.command("export")
@click.argument("artifact", metavar="OUT", type=FILE)
@click.option("-o", "--output", type=FILE, help="Folder to write.  [the library's name]")
@force_option
@click.option("--name", help="Of the library; its functions begin with it.  [OUT without .atn]")
@click.option(
    "--weights",
    type=click.Choice(["embedded", "separate"]),
    default="embedded",
    help="In the library, or in a file of their own that processes share.",
)
@click.option("--onnx", is_flag=True, help="Write a model that ONNX Runtime runs by the library.")
@click.option(
    "--original", metavar="MODEL", type=FILE, help="Copied beside it, for where it does not fit."
)
@click.option("--cc", metavar="COMMAND", help="Compiler of C.  [cc, else ziglang's]")
@format_option
@common_options
def command(
    artifact: Path,
    output: Path | None,
    force: bool,
    name: str | None,
    weights: str,
    onnx: bool,
    original: Path | None,
    cc: str | None,
    style: str,
) -> None:
    """Write OUT, a file that `autotune compile` wrote, to a folder as a library of C.

    The library needs libc alone: no Python, no LLVM, no ONNX Runtime. The folder has libNAME.so,
    libNAME.a, NAME.h, files for pkg-config and CMake, an example and a README.

    With --onnx it writes NAME_ctx.onnx as well, a model whose one node is the library, and the
    provider by which any ONNX Runtime from 1.23 on runs it.

    Of OUT for wasm32 it writes NAME.wasm, NAME.mjs and NAME.d.ts, for browsers and Node.
    """
    from autotune.api.exporting import export

    done = export(artifact, output, name, weights, cc, force, onnx, original)
    code, constants = format_bytes(done.code_bytes), format_bytes(done.weights_bytes)
    say(f"code {code}, weights {constants} ({weights}), for {done.cpu}")
    if style == "json":
        put_json(
            {
                "name": done.name,
                "folder": str(done.folder),
                "files": dict(done.sizes),
                "code_bytes": done.code_bytes,
                "weights_bytes": done.weights_bytes,
            }
        )
    else:
        put_path(done.folder)
