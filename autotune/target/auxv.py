"""Floor 0: features of this CPU as Linux tells every process, where no instruction tells them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

_WORDS = {"AT_HWCAP": 16, "AT_HWCAP2": 26}
_GET_VECTOR_LENGTH, _LENGTH = 51, 0xFFFF


def features(capabilities: Mapping[str, tuple[str, int]]) -> dict[str, bool]:
    """Whether this process may use each feature; `capabilities`: see `Architecture`."""
    libc = ctypes.CDLL(None)
    libc.getauxval.restype, libc.getauxval.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    words = {name: int(libc.getauxval(number)) for name, number in _WORDS.items()}
    return {name: bool(words[word] >> bit & 1) for name, (word, bit) in capabilities.items()}


def scalable_bits() -> int:
    """Bits of a scalable vector in this process; 0 where there is none, or it cannot be asked."""
    found = int(ctypes.CDLL(None).prctl(_GET_VECTOR_LENGTH))
    return 8 * (found & _LENGTH) if found > 0 else 0
