"""⑪ The drop-in replacement of `onnxruntime`: its names, with autotune's session among them.

    import autotune.ort as ort          # `import autotune as ort` has the same names
    ort.InferenceSession                # compiled networks in the place of ONNX Runtime's
    ort.OrtValue, ort.get_build_info    # onnxruntime's own, where it is installed
    ort.install()                       # third-party code finds all this under `onnxruntime`

Where onnxruntime is not installed, names are those of `alone`. Nothing is imported before it is
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.ort.names import attribute, listed

if TYPE_CHECKING:
    from autotune.ort.stand_in import install as install
    from autotune.ort.stand_in import uninstall as uninstall


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name.startswith("__") and name != "__version__":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return attribute(name, __name__)


def __dir__() -> list[str]:
    return sorted({"install", "uninstall", *listed()})
