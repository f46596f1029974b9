"""Messages name arguments to programs and options on the command line, out of one text."""

from __future__ import annotations

import ast
import inspect
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import click
import onnx
import pytest

import autotune
from autotune.cli import bench, compile, export, quantise, report, tune
from autotune.cli.main import run
from autotune.cli.wording import _NAMES, as_options
from autotune.wording import VALUE, arguments

PACKAGE = Path(autotune.__file__).parent
OF_COMMANDS_ALONE = {"cli", "api/te/workloads.py", "measure/fleet/address.py"}
"""What no Python program reaches."""
OF_OTHERS = {"toolchain.py"}
"""With options of other programs."""


def strings(path: Path) -> Iterator[str]:
    """The strings of a module but for docstrings; {} stands for values in them."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(value) for value in node.values}
            pieces = (v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
            yield "".join(map(str, pieces))
    for node in nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in left_out:
            yield node.value


def modules() -> Iterator[Path]:
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if not {place.parts[0], str(place)} & OF_COMMANDS_ALONE:
            yield path


def test_no_message_for_programs_names_an_option() -> None:
    for path in modules():
        for text in strings(path) if path.name not in OF_OTHERS else ():
            of_command = re.sub("autotune [a-z].*", "", text)
            assert not re.search(r"(^|[ (,])--[a-z]", of_command), f"{path}: {text}"


def test_every_setting_that_a_message_names_has_an_option() -> None:
    for path in modules():
        for text in strings(path):
            for code in re.findall("`[^`]+`", text):
                name = re.match(r"`(\w+)(=|`)", code)
                if name and name[1] in _NAMES:
                    assert as_options(code).startswith("--"), f"{path}: {code}"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "arguments":
                assert {k.arg for k in node.keywords} <= {*_NAMES, None}, path


def test_settings_are_arguments_of_python_and_options_of_commands() -> None:
    functions = (
        *(autotune.tune, autotune.compile, autotune.bench),
        *(autotune.export, autotune.quantise, autotune.report),
    )
    known = {name for function in functions for name in inspect.signature(function).parameters}
    options = {
        word
        for command in (tune, compile, bench, export, quantise, report)
        for param in command.command.params
        if isinstance(param, click.Option)
        for word in (*param.opts, *param.secondary_opts)
    }
    for name, word in _NAMES.items():
        assert name in known
        assert f"--{word}" in options


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (arguments(dims={"n": 4}), "--dim n=4"),
        (arguments(dims={"n": [1, 4, 8]}, log="l"), "--dim n=1,4,8 --log l"),
        (arguments(dims={"n": {16: 0.5, 128: 0.5}}), "--dim n=16:0.5,128:0.5"),
        (arguments(dims={"a b": 1, "c": 2}), "--dim 'a b=1' --dim c=2"),
        (arguments(shapes={"x": (1, 3, 224, 224)}), "--shape x:1x3x224x224"),
        (arguments(constants={"sr": VALUE}), "--const sr=VALUE"),
        ("`constants={NAME: VALUE}`", "--const NAME=VALUE"),
        ("`fallback=False` or `check=False`", "--no-fallback or --no-check"),
        ("`keep_cut=True`", "--keep-cut"),
        ("`check_inputs=ARRAYS`", "--check-input x.npz"),
        ("leave out `log`", "leave out --log"),
        (arguments(against="openvino:default"), "--against openvino:default"),
        (arguments(max_error=1e-6), "--max-error 1e-06"),
        ("`autotune.compile(MODEL, log=LOG)`", "autotune compile MODEL --log LOG"),
        ("`autotune.tune`", "autotune tune"),
        ("the output of `autotune tasks --dag`", "the output of `autotune tasks --dag`"),
        ("a tensor `x`, `y=3`, `f(x)` or `lambda`", "a tensor `x`, `y=3`, `f(x)` or `lambda`"),
    ],
)
def test_arguments_become_options(text: str, told: str) -> None:
    assert as_options(text) == told


def test_each_door_tells_of_open_dimensions_in_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = '<ir_version: 9, opset_import: ["" : 17]> g (float[rows, 4] x) => (float[7919, 4] y)'
    mixed = "s = Constant <value = int64[2] {7919, 4}> () a = Reshape (x, s) y = Abs (a)"
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f"{head} {{ {mixed} }}"), path)
    with pytest.raises(autotune.DynamicShape) as caught:
        autotune.compile(path)
    told = "".join(traceback.format_exception_only(caught.value))
    sizes = "give their sizes: `dims={'rows': SIZE}`; or an input that has them: `like=ARRAYS`"
    assert "one artifact for all sizes is not possible: " in told
    assert told.endswith(f"\nhint: {sizes}\n")
    assert run(["compile", str(path)]) == 2
    assert (
        "hint: give their sizes: --dim rows=SIZE; or an input that has them: --like x.npy\n"
        in capsys.readouterr().err
    )
    with pytest.raises(autotune.UsageError, match="any extent") as caught_at:
        autotune.Model(autotune.compile(path, dims={"rows": 7919}, check=False).artifact).at({})
    assert caught_at.value.hint == "compile it with some: `dims={'batch': '..32'}`"
    assert run(["compile", str(path), "--split", "rows"]) == 2
    assert "hint: any size up to a most is one artifact: --dim rows=..32" in capsys.readouterr().err
