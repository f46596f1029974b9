"""⑪ ONNX Runtime's options of a session, which say whether they replace something of the model.

noted_options(onnxruntime) ─► the class SessionOptions, a subclass of onnxruntime's own
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

_REPLACING = (
    "add_external_initializers",
    "add_external_initializers_from_files_in_memory",
    "add_free_dimension_override_by_denotation",
    "add_initializer",
    "register_custom_ops_library",
)
"""Methods after which the file of a model no longer defines the computation."""


@cache
def noted_options(package: Any) -> type:
    """The class of options over a package `onnxruntime`."""
    base: Any = package.SessionOptions

    class SessionOptions(base):  # type: ignore[misc]
        """ONNX Runtime's options. `replaces_model`: whether they give weights or operators.

        `dims`: dimensions that are bound by name.
        """

        __slots__ = ("dims", "replaces_model")

        def __init__(self) -> None:
            super().__init__()
            self.replaces_model = False
            self.dims: dict[str, int] = {}

        def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
            """See ONNX Runtime's."""
            super().add_free_dimension_override_by_name(name, extent)
            self.dims[name] = extent

    for name in _REPLACING:
        if hasattr(base, name):
            setattr(SessionOptions, name, _noting(getattr(base, name)))
    SessionOptions.__module__ = "autotune.ort"  # where a pickle finds it
    SessionOptions.__qualname__ = "SessionOptions"
    return SessionOptions


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.replaces_model = True
        return method(self, *args, **kwargs)

    return noted
