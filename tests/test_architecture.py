"""Imports point down only: every package stands on a floor, and sees only floors below its own."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import autotune

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "autotune"

FLOORS = {
    "array_program": 0,
    "brief": 0,
    "printable": 0,
    "work_folders": 0,
    "cache": 0,
    "codec": 0,
    "conditions": 0,
    "dtypes": 0,
    "extent": 0,
    "strides": 0,
    "errors": 0,
    "target": 0,
    "config": 0,
    "files": 0,
    "file_kinds": 0,
    "json_schema": 0,
    "machine": 0,
    "names": 0,
    "calls": 0,
    "former_names": 0,
    "telemetry": 0,
    "pages": 0,
    "platforms": 0,
    "threads": 0,
    "toolchain": 0,
    "topology": 0,
    "result": 0,
    "units": 0,
    "version": 0,
    "wording": 0,
    "te": 1,
    "graph": 2,
    "schedule": 2,
    "loopir": 3,
    "codegen": 4,
    "search": 4,
    "records": 4,
    "measure": 5,
    "tuner": 6,
    "display": 7,
    "network": 7,
    "reporting": 7,
    "api": 8,
    "ort": 9,
    "cli": 9,
    "dynamo": 10,
    "gpu": 10,
    "rules": 9,
    "__init__": 9,
    "__main__": 9,
}
INDEPENDENT = {"codegen", "search", "records"}  # one floor, without imports between them
# Only `cli` has a console, an environment, or a clock of its own; `cache` asks where caches are,
# `machine` for the number of threads of sessions that other libraries make; `telemetry` tells other
# packages in it.
ENVIRONMENT_READERS = {"cli", "cache", "machine", "telemetry"}
CLI_ONLY_CALLS = {"print", "input"}
THIRD_PARTY_HOMES = {
    "click": {"cli"},
    "rich": {"cli", "display"},
    "lightgbm": {"search", "cli"},
    "orjson": {"records"},
    "onnx": {"graph", "cli", "network", "dynamo"},
    "onnxruntime": set(),  # these three send telemetry, so `telemetry.imported` alone imports them
    "onnxruntime_genai": set(),
    "openvino": set(),
    "dask": {"measure"},
    "distributed": {"measure"},
    "vl_convert": {"reporting"},
    "onnxscript": {"dynamo"},
    "torch": {"dynamo", "ort"},
    "llvmlite": {"codegen", "target", "measure", "network", "cli", "gpu"},
}
RUNTIME_DEPENDENCIES = {
    "click",
    "llvmlite",
    "ml_dtypes",
    "numpy",
    "onnx",
    "orjson",
    "rich",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(module: str) -> str:
    """`autotune.te.dag` -> `te`; `autotune` itself -> `__init__`."""
    return [*module.split("."), "__init__"][1]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


NAMES = {name_of(path) for path in modules()}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import; of `from package import module`, the module."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield node.lineno, name if name in NAMES else node.module or ""


def test_imports_point_down() -> None:
    for path in modules():
        here = part_of(name_of(path))
        for line, module in imports(path):
            if module.split(".")[0] != "autotune":
                continue
            there = part_of(module)
            allowed = (
                here == there
                or FLOORS[there] < FLOORS[here]
                or (FLOORS[here] == FLOORS[there] and not {here, there} <= INDEPENDENT)
            )
            assert allowed, f"{path.relative_to(ROOT)}:{line}: {here} imports {module}"


def test_no_imports_go_in_circles() -> None:
    """Not even those inside of functions, or for types alone."""
    graph = {name_of(path): {module for _, module in imports(path)} for path in modules()}
    TopologicalSorter({name: graph[name] - {name} for name in graph}).prepare()


@dataclass(frozen=True, slots=True)
class Satellite:
    """A feature around the compiler: it sees `api` and floor 0, and only `cli` imports it.

    `doors`: what else imports it; `beneath`: wings that it sees beside these. Each has its reason,
    and neither is to grow: a satellite that needs more asks `api`.
    """

    beneath: Mapping[str, str]
    doors: Mapping[str, str] = field(default_factory=dict)


_NAMES = {"autotune.__init__": "public names, which are imported when they are asked for"}
_PICTURES = "what a result looks like in a notebook, imported when a notebook asks"
SATELLITES = {
    "autotune_operators": Satellite(
        {
            "graph": "compositions are written with the rewriter, as those of users are",
            "graph.operators": "coupling takes the operators of a user's file",
            "graph.reader": "the import engine tells what an operator is called with",
        }
    ),
    "autotune.dynamo": Satellite(
        {
            "graph.reader": "graphs of PyTorch's are files of ONNX, whose ports it names",
            "network.check": "outputs beside PyTorch's",
            "network.runtime": "it runs what was compiled",
            "ort": "it compiles in the process beside, as sessions do",
        }
    ),
    "autotune.gpu": Satellite(
        {
            "codegen": "the emitter and the passes are those of CPUs",
            "codegen.emission": "the same",
            "loopir": "its input is a program",
        },
    ),
    "autotune.network.export": Satellite(
        {
            "codegen.image": "a library is the image of an artifact",
            "codegen.team": "numbers of the run time, which C and JavaScript get from there",
            "graph": "words of a state",
            "network.artifact": "its input is an artifact",
        },
        {
            "autotune.api.exporting": "`api` is above all of `network`, and calls it",
            "autotune.network.provider": "a provider holds libraries",
        },
    ),
    "autotune.network.provider": Satellite(
        {
            "codegen.image": "the architecture that ONNX Runtime loads it on",
            "graph.reader": "the model that it stands for",
            "network.artifact": "its input is an artifact",
            "network.export": "a provider holds libraries",
        },
        {"autotune.api.exporting": "`api` is above all of `network`, and calls it"} | _NAMES,
    ),
    "autotune.network.quantise": Satellite(
        {
            "graph.reader": "files of ONNX are its input and output",
            "network.check": "outputs beside those in float32",
            "network.runtime": "ONNX Runtime's quantiser and its sessions",
        },
        {"autotune.api.quantising": "`api` is above all of `network`, and calls it"},
    ),
    "autotune.network.serving": Satellite(
        {"network.runtime": "turns are steps of sessions"}, _NAMES
    ),
    "autotune.ort": Satellite(
        {
            "api.compile": "artifacts are made as by `compile`, and kept by the same keys",
            "graph": "constants of a call are bound as by `compile`",
            "graph.fallback": "inputs that decide what is computed",
            "graph.reader": "what a file declares: ports, sizes, caches",
            "measure": "the default number of threads",
            "measure.processes": "the process beside",
            "network.artifact": "what the process beside gives",
            "network.check": "outputs beside ONNX Runtime's",
            "network.runtime": "it runs what was compiled",
            "records": "the log beside a model",
        },
        {"autotune.dynamo": "it compiles in the process beside, as sessions do"} | _NAMES,
    ),
    "autotune.reporting": Satellite(
        {
            "display": "the same words as of a live table",
            "measure.timing": "noise and peaks of a log",
            "network.bench": "times of kernels",
            "records": "its input is a log",
            "schedule": "programs of a log",
            "search.cost": "what the cost model says of them",
            "te": "their tasks",
            "tuner": "the shares of tasks",
        },
        {
            "autotune.api.reporting": "`report` is a function of the library",
            "autotune.api.te": _PICTURES,
            "autotune.network.bench.bench": _PICTURES,
        }
        | _NAMES,
    ),
}


@pytest.mark.parametrize("satellite", SATELLITES)
def test_nothing_but_its_doors_imports_a_satellite(satellite: str) -> None:
    known, met, seen = SATELLITES[satellite], set(), set()
    for path in (*modules(), *sorted((ROOT / "autotune_operators").glob("*.py"))):
        here = name_of(path)
        is_inside = _within(here, satellite)
        for line, module in imports(path):
            if is_inside and module.split(".")[0] == "autotune" and not _within(module, satellite):
                seen |= {wing_of(module)} if FLOORS[part_of(module)] else set()
            elif not is_inside and _within(module, satellite) and part_of(here) != "cli":
                found = {door for door in known.doors if _within(here, door)}
                assert found, f"{path.relative_to(ROOT)}:{line}: {module}"
                met |= found
    assert met == known.doors.keys(), "a door that nobody takes"
    assert seen - {"api", "__init__"} == known.beneath.keys()


PACKAGES = {name for name in NAMES if (PACKAGE / "/".join(name.split(".")[1:])).is_dir()}


def wing_of(module: str) -> str:
    """`graph.reader` of `autotune.graph.reader.growth`, `graph` of `autotune.graph.ir`."""
    _, part, *more = module.split(".")
    wing = f"{part}.{more[0]}" if more else part
    return wing if f"autotune.{wing}" in PACKAGES else part


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


CORE = (
    "te", "schedule", "loopir", "search", "codegen/emission", "tuner", "records",
    "graph/operators", "graph/passes", "graph/tasks",
)  # fmt: skip
"""The compiler proper, which a newcomer reads first."""
MOST_LINES_OF_CORE = 39_700
"""Who adds to the core takes as much out of it, or raises this in a commit of its own, whose
message says what the core does now that it did not; features belong into satellites."""


def test_the_core_is_within_its_budget_of_lines() -> None:
    paths = (path for folder in CORE for path in (PACKAGE / folder).rglob("*.py"))
    assert sum(len(path.read_text().splitlines()) for path in paths) <= MOST_LINES_OF_CORE


MOST_LINES_OF_FILE, MOST_LINES_OF_FUNCTION, MOST_LINES_OF_CLASS = 500, 49, 250
"""Of a function or a class, those behind its docstring."""
LONGER = {
    "autotune/codegen/team/team_code.py": 516,
    "autotune/codegen/team/ports_code.py direct": 53,
    "autotune/graph/lengths/lifter.py Lifter": 268,
    "autotune/graph/passes/layout.py _Layout": 334,
    "autotune/graph/reader/attention.py _group_query_attention": 51,
    "autotune/graph/reader/growing.py Growing": 264,
    "autotune/graph/reader/unfolding.py Unfolding": 254,
    "autotune/graph/together.py together": 50,
    "autotune/loopir/nests.py _Nest": 269,
    "autotune/api/opening.py _Search": 367,
    "autotune/network/runtime/runtime.py Model": 372,
    "autotune/network/runtime/session.py ModelSession": 396,
    "autotune/ort/programs.py Programs": 373,
    "autotune/ort/session.py InferenceSession": 258,
    "autotune/search/cost/stage_facts.py StageFacts": 321,
    "autotune/search/policy.py SketchPolicy": 279,
    "autotune/tuner/session.py Session": 360,
}
"""What is longer, and how long it may be: entries go, none comes. `native` compiles one module with
its constants, and one function where a call would be made."""


def sizes() -> Iterator[tuple[str, int, int]]:
    """What there is, its lines, and how many it may have."""
    for path in (*modules(), *sorted((ROOT / "autotune_operators").rglob("*.py"))):
        name = str(path.relative_to(ROOT))
        yield name, len(path.read_text(encoding="utf-8").splitlines()), MOST_LINES_OF_FILE
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                is_class = isinstance(node, ast.ClassDef)
                first = node.body[1:] if ast.get_docstring(node) else node.body
                n_lines = (node.end_lineno or 0) - first[0].lineno + 1 if first else 0
                most = MOST_LINES_OF_CLASS if is_class else MOST_LINES_OF_FUNCTION
                yield f"{name} {node.name}", n_lines, most


def test_files_functions_and_classes_are_read_on_their_own() -> None:
    found = {name: n_lines for name, n_lines, most in sizes() if n_lines > most}
    assert {name: n for name, n in found.items() if n > LONGER.get(name, 0)} == {}
    assert LONGER.keys() - found.keys() == set(), "these are short now"


MOST_PARAMETERS = 8


def _is_command(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith("click.command(")


def parameters(path: Path) -> Iterator[tuple[str, ast.FunctionDef, list[str]]]:
    """Functions of a file that are no commands, with what they belong to, and their parameters."""
    tree = parsed(path)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    methods = {id(child): node.name for node in classes for child in node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not any(map(_is_command, node.decorator_list)):
            args = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            names = [arg.arg for arg in args if arg.arg not in ("self", "cls")]
            yield methods.get(id(node), node.name), node, names


def test_functions_below_the_facade_take_records() -> None:
    """A new option then is a field of a record, not a parameter of all that pass it on."""
    for path in modules():
        for owner, node, names in parameters(path):
            is_facade = owner in autotune.__all__
            assert is_facade or len(names) <= MOST_PARAMETERS, f"{path}:{node.lineno}: {names}"


ABOVE_RUNTIME = ("compile", "check", "bench", "quantise", "serving")
ABOVE_ARTIFACTS = ("compile", "runtime", "check", "bench", "quantise", "serving")
WINGS = {
    "autotune.codegen.emission": {"autotune.codegen.image", "autotune.codegen.team"},
    "autotune.codegen.image": {"autotune.codegen.emission", "autotune.codegen.team"},
    "autotune.codegen.team": {"autotune.codegen.emission"},
    "autotune.measure.timing": {
        "autotune.measure.processes",
        "autotune.measure.far",
        "autotune.measure.fleet",
    },
    "autotune.measure.processes": {"autotune.measure.fleet"},
    "autotune.measure.far": {"autotune.measure.fleet"},
    "autotune.graph.tasks": {"autotune.graph.fallback", "autotune.graph.lengths"},
    "autotune.graph.operators": {
        "autotune.graph.reader",
        "autotune.graph.passes",
        "autotune.graph.lengths",
    },
    "autotune.graph.reader": {
        "autotune.graph.passes",
        "autotune.graph.network",
        "autotune.graph.lengths",
    },
    "autotune.graph.passes": {
        "autotune.graph.reader",
        "autotune.graph.network",
        "autotune.graph.lengths",
    },
    "autotune.network.artifact": {f"autotune.network.{wing}" for wing in ABOVE_ARTIFACTS},
    "autotune.network.compile": {f"autotune.network.{wing}" for wing in ABOVE_ARTIFACTS[1:]},
    "autotune.network.runtime": {f"autotune.network.{wing}" for wing in ABOVE_RUNTIME},
    "autotune.network.check": {"autotune.network.bench", "autotune.network.quantise"},
    "autotune.network.bench": {"autotune.network.quantise"},
    "autotune.network.quantise": {"autotune.network.bench"},
    "autotune.api.compile": {"autotune.api.tune", "autotune.api.te"},
    "autotune.api.tune": {"autotune.api.te"},
    "autotune.search.cost": {"autotune.search.rules", "autotune.search.policy"},
    "autotune.search.rules": {"autotune.search.cost", "autotune.search.policy"},
}
"""Wings of a package, and what each does not know."""


@pytest.mark.parametrize("wing", WINGS)
def test_wings_do_not_know_one_another(wing: str) -> None:
    for path in modules():
        if name_of(path).startswith(f"{wing}."):
            for line, module in imports(path):
                assert not any(
                    module == other or module.startswith(f"{other}.") for other in WINGS[wing]
                ), f"{path.relative_to(ROOT)}:{line}: {wing} imports {module}"


def test_libraries_stay_in_their_packages() -> None:
    for path in modules():
        here = part_of(name_of(path))
        for line, module in imports(path):
            homes = THIRD_PARTY_HOMES.get(module.split(".")[0])
            assert homes is None or here in homes, f"{path.relative_to(ROOT)}:{line}: {module}"


def test_only_cli_has_a_console_and_an_environment() -> None:
    for path in modules():
        here = part_of(name_of(path))
        if here == "cli":
            continue
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Call(func=ast.Name(id=name)):
                    assert name not in CLI_ONLY_CALLS, f"{path}:{node.lineno}: {name}()"
                case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv"):
                    assert here in ENVIRONMENT_READERS, f"{path}:{node.lineno}"


def test_a_module_says_which_arrow_it_is() -> None:
    for path in modules():
        text = ast.get_docstring(parsed(path)) or ""
        if path.stat().st_size == 0 or name_of(path) == "autotune.__init__":
            continue
        assert text[:1] in set("①②③④⑤⑥⑦⑧⑨⑩⑪") or text.startswith("Floor 0"), name_of(path)


def test_every_package_is_on_a_floor_and_is_installed() -> None:
    packages = {name_of(p) for p in PACKAGE.rglob("*/__init__.py")}
    assert {part_of(name) for name in packages} <= set(FLOORS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    expected = {"autotune", "autotune.presets", "autotune_operators"} | packages
    assert set(project["tool"]["setuptools"]["packages"]) == expected


def test_dependencies_are_these_and_have_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert all(">=" in d and "<" in d for d in project["dependencies"])
    names = {d.split(">")[0] for d in project["dependencies"]}
    assert names == RUNTIME_DEPENDENCIES


def test_versions_of_development_are_pinned_once() -> None:
    """constraints.txt has all that `dev` asks for, and hooks run the same ruff."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    asked = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert {d.split(">")[0].lower() for d in asked} <= pinned.keys()
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert f"rev: v{pinned['ruff']} " in hooks


def test_test_files_are_named_for_their_folder() -> None:
    """`tests/te/test_te_arith.py`: a failure then names the place, and names never collide."""
    files = (path for path in Path(__file__).parent.glob("*/**/test_*.py"))
    assert not [p.name for p in files if not p.name.startswith(f"test_{p.parent.name}")]


def test_no_two_tests_draw_from_one_generator() -> None:
    """A generator of a module fills its constants; what a test draws is the fixture's, `rng`."""
    for path in Path(__file__).parent.rglob("*.py"):
        tree = parsed(path)
        shared = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            and ast.unparse(node.value.func if isinstance(node.value, ast.Call) else node.value)
            in ("np.random.default_rng", "random.Random")
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        for node in (n for f in functions for line in f.body for n in ast.walk(line)):
            assert not (isinstance(node, ast.Name) and node.id in shared), f"{path}:{node.lineno}"


NAMED_TWICE = {"SessionOptions", "Tensor"}
"""ONNX Runtime's, imitated with and without it; a user's tensor wraps the compiler's."""


def test_no_two_public_classes_have_one_name() -> None:
    names = Counter(
        node.name
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, n in names.items() if n > 1} == NAMED_TWICE
