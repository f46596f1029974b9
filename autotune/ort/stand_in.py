"""⑪ Third-party code finds autotune where it says `onnxruntime`, until `uninstall`.

    autotune.install()
    import rapidocr_onnxruntime         # its `import onnxruntime` finds `autotune.ort`

autotune itself and the package's own modules go on to use the installed package:
`onnxruntime.quantization` calibrates with ONNX Runtime.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.network.runtime.onnxruntime_package import NAME
from autotune.ort import names

SUBMODULES = str(Path(__file__).with_name("submodules"))
"""Folder of the submodules that are there without onnxruntime."""


class StandIn(ModuleType):
    """The module `onnxruntime` of a program: names of `autotune.ort`.

    Its submodules are those of the installed package.
    """

    def __init__(self, package: ModuleType | None, replaced: ModuleType | None) -> None:
        super().__init__(NAME, names.__doc__)
        spec = ModuleSpec(NAME, None, is_package=True)
        path = [SUBMODULES]
        if package is not None:
            spec, path = package.__spec__ or spec, list(package.__path__)
            self.__file__ = package.__file__
        self.__spec__, self.__path__ = spec, path
        self.__package__, self.__loader__ = NAME, spec.loader
        self._package, self.replaced = package, replaced

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return names.listed()
        if name.startswith("__") and name != "__version__":
            known = vars(self._package) if self._package is not None else {}
            if name in known:
                return known[name]
            raise AttributeError(f"module '{NAME}' has no attribute '{name}'")
        asking = sys._getframe(1).f_globals.get("__name__", "")
        if self._package is not None and asking.partition(".")[0] == NAME:
            return getattr(self._package, name)
        return names.attribute(name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        package = self.__dict__.get("_package")
        if package is not None and isinstance(value, ModuleType):
            setattr(package, name, value)  # a submodule is there after `uninstall` as well

    def __dir__(self) -> list[str]:
        names = dir(import_module("autotune.ort.alone") if self._package is None else self._package)
        return sorted({"install", "uninstall", *names, *super().__dir__()})


def install() -> None:
    """Put autotune where `import onnxruntime` looks.

    What a module has imported from onnxruntime before, as by `from onnxruntime import …`, it keeps.
    """
    package = names.users_own()
    found = sys.modules.get(NAME)
    if not isinstance(found, StandIn):
        sys.modules[NAME] = StandIn(package, found)


def uninstall() -> None:
    """Take it away again: `import onnxruntime` finds the same as before `install`."""
    found = sys.modules.get(NAME)
    if isinstance(found, StandIn):
        del sys.modules[NAME]
        if found.replaced is not None:
            sys.modules[NAME] = found.replaced
