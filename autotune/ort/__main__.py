"""⑪ Run a program with autotune in the place of onnxruntime.

    python -m autotune.ort script.py args…
    python -m autotune.ort -m module args…
    python -m autotune.ort -c code args…

The program is not changed. See docs/drop-in.md.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

from autotune.ort.stand_in import install

USAGE = "usage: python -m autotune.ort (script.py | -m module | -c code) [args…]"


def main(argv: list[str]) -> int:
    """Run the program that `argv` names. Its exceptions are raised."""
    match argv:
        case ["-m", module, *args]:
            _begin([module, *args])
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *args]:
            _begin(["-c", *args])
            program = ModuleType("__main__")  # where pickles and dataclasses look for names
            sys.modules["__main__"] = program
            exec(compile(code, "<string>", "exec"), program.__dict__)
        case [script, *args] if not script.startswith("-"):
            if not Path(script).exists():
                return _refused(f"there is no file '{script}'")
            _begin([script, *args])
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")
        case ["-h", *_]:
            sys.stdout.write(f"{__doc__}\n")
        case _:
            return _refused("nothing to run")
    return 0


def _begin(argv: list[str]) -> None:
    sys.argv[:] = argv
    install()


def _refused(message: str) -> int:
    sys.stderr.write(f"error: {message}\n{USAGE}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
