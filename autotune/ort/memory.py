"""⑪ Memory locations in the words of ONNX Runtime's programs: always the memory of this CPU."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from autotune.errors import UsageError


class OrtAllocatorType(IntEnum):
    """Kind of allocator."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(IntEnum):
    """Kind of memory, by its readers and writers."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


@dataclass(frozen=True, slots=True)
class OrtDevice:
    """A device."""

    index: int = 0

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """The CPU. Raises UsageError for another one."""
        require_cpu(ort_device_name)
        return OrtDevice(device_id)

    def device_id(self) -> int:
        """Its number."""
        return self.index

    def device_type(self) -> int:
        """0: a CPU."""
        return 0

    def device_mem_type(self) -> int:
        """0: its own."""
        return 0

    def device_vendor_id(self) -> int:
        """0: not said."""
        return 0


@dataclass(frozen=True, slots=True)
class OrtMemoryInfo:
    """Memory of a device."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType


def require_cpu(device_type: str) -> None:
    """Raise UsageError for the memory of another device."""
    if device_type.lower() != "cpu":
        raise UsageError(f"there is no device '{device_type}' here", "use 'cpu'")
