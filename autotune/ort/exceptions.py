"""⑪ Errors as clients of ONNX Runtime catch them: autotune's, and of onnxruntime's classes too.

    except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument: …
    except autotune.UsageError as error: print(error.hint)

Both catch errors of a session. The classes are onnxruntime's own where it is installed, which is
asked when the first error is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from autotune.errors import AutotuneError, MissingDependency, ModelError, NotCompilable, UsageError
from autotune.ort.names import attribute, installed, listed

P = ParamSpec("P")
T = TypeVar("T")

NAMES = (
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "RuntimeException",
)
_BY_KIND = {
    UsageError: "InvalidArgument",
    NotCompilable: "NotImplemented",
    MissingDependency: "NotImplemented",
    ModelError: "InvalidGraph",
    AutotuneError: "Fail",
}
_BY_CAUSE = {"FileNotFoundError": "NoSuchFile", "DecodeError": "InvalidProtobuf"}
"""Of the exception behind an error; that one says more than the kind of the error."""
_STATE = "onnxruntime_pybind11_state"


@cache
def exception_class(name: str) -> type[Exception]:
    """onnxruntime's exception of that name, of `NAMES`; one of ours where it has none."""
    package = installed()
    found = getattr(getattr(getattr(package, "capi", None), _STATE, None), name, None)
    if found is None:
        found = type(name, (Exception,), {"__module__": f"autotune.capi.{_STATE}"})
    kind: type[Exception] = found
    return kind


def as_client_error(error: AutotuneError, *kinds: type[Exception]) -> AutotuneError:
    """`error`, which is of the class of onnxruntime's that fits as well, and of `kinds`."""
    if not isinstance(error, _ClientError):
        kinds = (*kinds, exception_class(_name_of(error)))
        error.__class__ = _class_of(type(error), kinds)  # type: ignore[arg-type]
    return error


def raises_client_errors(door: Callable[P, T]) -> Callable[P, T]:
    """Every AutotuneError of a function is one that clients of onnxruntime catch."""

    @wraps(door)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return door(*args, **kwargs)
        except AutotuneError as error:
            as_client_error(error)
            raise

    return call


def state_attribute(name: str) -> Any:
    """An attribute of the module `onnxruntime.capi.onnxruntime_pybind11_state`."""
    if name == "__all__":
        return listed_in_state()
    if name in NAMES:
        return exception_class(name)
    if name.startswith("__"):
        raise AttributeError(f"module '{_STATE}' has no attribute '{name}'")
    package = installed()
    return attribute(name) if package is None else getattr(package.capi._pybind_state, name)


def listed_in_state() -> list[str]:
    """Names of that module, for `dir` and star imports."""
    package = installed()
    names = listed() if package is None else dir(package.capi._pybind_state)
    return sorted({*NAMES, *(name for name in names if not name.startswith("_"))})


class _ClientError(AutotuneError):
    """Of two trees of classes."""

    def __reduce__(self) -> tuple[Any, ...]:
        own, *kinds = type(self).__bases__[1:]
        return _restored, (own, kinds, self.args, self.__dict__)


@cache
def _class_of(own: type[AutotuneError], kinds: tuple[type[Exception], ...]) -> Any:
    names = {"__module__": own.__module__, "__doc__": own.__doc__}
    return type(own.__name__, (_ClientError, own, *kinds), names)


def _restored(own: Any, kinds: Any, args: Any, fields: dict[str, Any]) -> AutotuneError:
    error: AutotuneError = _class_of(own, tuple(kinds))(*args)
    error.__dict__.update(fields)
    return error


def _name_of(error: AutotuneError) -> str:
    causes = (name for kind in type(error.__cause__).__mro__ if (name := kind.__name__))
    by_cause = next((_BY_CAUSE[name] for name in causes if name in _BY_CAUSE), None)
    return by_cause or next(_BY_KIND[k] for k in type(error).__mro__ if k in _BY_KIND)
