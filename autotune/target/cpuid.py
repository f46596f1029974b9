"""Floor 0: features of this CPU, by LLVM's names: read by `cpuid`, without LLVM.

A feature counts only where the system saves the registers that it needs, which `xgetbv` tells. The
kernel's list (`/proc/cpuinfo`) has other names, and lacks features younger than the kernel.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

import numpy as np

from autotune.pages import EXECUTE, READ, private_pages, protect

_PAGE = 4096
_CPUID = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
"""push rbx; mov r8, rdx; mov eax, edi; mov ecx, esi; cpuid; four stores to [r8]; pop rbx; ret"""
_XGETBV = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")
"""xor ecx, ecx; xgetbv; shl rdx, 32; or rax, rdx; ret"""

EAX, EBX, ECX, EDX = range(4)
_EXTENDED = 0x80000000
_OSXSAVE, _AVX = 27, 28

_STATES: Mapping[str, int] = {"": 0, "avx": 0x6, "avx512": 0xE6, "amx": 0x60000, "apx": 0x80000}
"""State that the system has to save on a context switch, as bits of XCR0."""

_Bits = dict[int, str]
_TABLE: tuple[tuple[int, int, int, str, _Bits], ...] = (
    (1, 0, EDX, "", {8: "cx8", 15: "cmov", 23: "mmx", 24: "fxsr", 25: "sse", 26: "sse2"}),
    (1, 0, ECX, "", {0: "sse3", 1: "pclmul", 9: "ssse3", 13: "cx16", 19: "sse4.1"}),
    (1, 0, ECX, "", {20: "sse4.2 crc32", 22: "movbe", 23: "popcnt", 25: "aes", 30: "rdrnd"}),
    (1, 0, ECX, "avx", {12: "fma", 26: "xsave", 28: "avx", 29: "f16c"}),
    (_EXTENDED + 1, 0, ECX, "", {0: "sahf", 5: "lzcnt", 6: "sse4a", 8: "prfchw", 15: "lwp"}),
    (_EXTENDED + 1, 0, ECX, "", {21: "tbm", 29: "mwaitx"}),
    (_EXTENDED + 1, 0, ECX, "avx", {11: "xop", 16: "fma4"}),
    (_EXTENDED + 1, 0, EDX, "", {29: "64bit"}),
    (_EXTENDED + 8, 0, EBX, "", {0: "clzero", 4: "rdpru", 9: "wbnoinvd"}),
    (7, 0, EBX, "", {0: "fsgsbase", 2: "sgx", 3: "bmi", 8: "bmi2", 10: "invpcid", 11: "rtm"}),
    (7, 0, EBX, "", {18: "rdseed", 19: "adx", 23: "clflushopt", 24: "clwb", 29: "sha"}),
    (7, 0, EBX, "avx", {5: "avx2"}),
    (7, 0, EBX, "avx512", {16: "avx512f", 17: "avx512dq", 21: "avx512ifma", 28: "avx512cd"}),
    (7, 0, EBX, "avx512", {30: "avx512bw", 31: "avx512vl"}),
    (7, 0, ECX, "", {4: "pku", 5: "waitpkg", 7: "shstk", 8: "gfni", 22: "rdpid", 23: "kl"}),
    (7, 0, ECX, "", {25: "cldemote", 27: "movdiri", 28: "movdir64b", 29: "enqcmd"}),
    (7, 0, ECX, "avx", {9: "vaes", 10: "vpclmulqdq"}),
    (7, 0, ECX, "avx512", {1: "avx512vbmi", 6: "avx512vbmi2", 11: "avx512vnni"}),
    (7, 0, ECX, "avx512", {12: "avx512bitalg", 14: "avx512vpopcntdq"}),
    (7, 0, EDX, "", {5: "uintr", 14: "serialize", 16: "tsxldtrk", 18: "pconfig"}),
    (7, 0, EDX, "avx512", {8: "avx512vp2intersect", 23: "avx512fp16"}),
    (7, 0, EDX, "amx", {22: "amx-bf16", 24: "amx-tile", 25: "amx-int8"}),
    (7, 1, EAX, "", {0: "sha512", 1: "sm3", 2: "sm4", 3: "raoint", 7: "cmpccxadd"}),
    (7, 1, EAX, "", {22: "hreset", 31: "movrs"}),
    (7, 1, EAX, "avx", {4: "avxvnni", 23: "avxifma"}),
    (7, 1, EAX, "avx512", {5: "avx512bf16"}),
    (7, 1, EAX, "amx", {21: "amx-fp16"}),
    (7, 1, EDX, "", {14: "prefetchi", 15: "usermsr"}),
    (7, 1, EDX, "avx", {4: "avxvnniint8", 5: "avxneconvert", 10: "avxvnniint16"}),
    (7, 1, EDX, "amx", {8: "amx-complex"}),
    (7, 1, EDX, "apx", {21: "egpr push2pop2 ppx ndd ccmp nf cf zu"}),
    (13, 1, EAX, "avx", {0: "xsaveopt", 1: "xsavec", 3: "xsaves"}),
    (20, 0, EBX, "", {4: "ptwrite"}),
    (25, 0, EBX, "", {2: "widekl"}),
    (30, 1, EAX, "amx", {4: "amx-fp8", 6: "amx-tf32", 7: "amx-avx512", 8: "amx-movrs"}),
)
"""Leaf, subleaf, register, state to be saved, and the names at its bits."""
_AVX10_LEAF, _AVX10_BIT = 36, 19
_AVX10 = ("avx10.1", "avx10.2")
# A version is a number: 2 and 3 have bit 1.
_AVX10_PLACES = {
    "avx10.1": ((7, 1, EDX, _STATES["avx512"]), 1 << _AVX10_BIT),
    "avx10.2": ((_AVX10_LEAF, 0, EBX, _STATES["avx512"]), 1 << 1),
}


def bits_of(names: Iterable[str]) -> dict[tuple[int, int, int, int], int]:
    """Where features are told: leaf, subleaf, register and bits of XCR0, and the bits of these.

    Raises KeyError for a feature that no bit tells.
    """
    places = {
        name: ((leaf, subleaf, register, _STATES[state]), 1 << bit)
        for leaf, subleaf, register, state, bits in _TABLE
        for bit, each in bits.items()
        for name in each.split()
    } | _AVX10_PLACES
    found: dict[tuple[int, int, int, int], int] = {}
    for name in names:
        place, bit = places[name]
        found[place] = found.get(place, 0) | bit
    return found


class _Registers:
    """Asks this CPU for leaves that it has, each once."""

    def __init__(self) -> None:
        self._pages = private_pages(_PAGE)
        for at, code in ((0, _CPUID), (64, _XGETBV)):
            self._pages[at : at + len(code)] = np.frombuffer(code, np.uint8)
        protect(self._pages, [(0, _PAGE, READ | EXECUTE)])
        start = self._pages.ctypes.data
        number = ctypes.c_uint32
        self._ask: Callable[..., None] = ctypes.CFUNCTYPE(None, number, number, ctypes.c_void_p)(
            start
        )
        self._saved = ctypes.CFUNCTYPE(ctypes.c_uint64)(start + 64)
        self._leaves: dict[tuple[int, int], tuple[int, ...]] = {}

    def leaf(self, leaf: int, subleaf: int = 0) -> tuple[int, ...]:
        """The four registers; zeros for a leaf or subleaf that there is not."""
        base = leaf & _EXTENDED
        if leaf != base and leaf > self._raw(base, 0)[EAX]:
            return (0, 0, 0, 0)
        has_limit = leaf in (7, 30)
        if subleaf and has_limit and subleaf > self._raw(leaf, 0)[EAX]:
            return (0, 0, 0, 0)
        return self._raw(leaf, subleaf)

    def saved(self) -> int:
        """XCR0: the registers that the system saves; 0 without the instruction for it."""
        return int(self._saved()) if self.leaf(1)[ECX] >> _OSXSAVE & 1 else 0

    def _raw(self, leaf: int, subleaf: int) -> tuple[int, ...]:
        if (leaf, subleaf) not in self._leaves:
            found = (ctypes.c_uint32 * 4)()
            self._ask(leaf, subleaf, ctypes.addressof(found))
            self._leaves[leaf, subleaf] = tuple(found)
        return self._leaves[leaf, subleaf]


@cache
def features() -> Mapping[str, bool]:
    """Known features, and whether this CPU and its system have them; empty on other than x86.

    Raises OSError where the system forbids executable memory.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return {}
    return dict(_found(_Registers()))


def _found(cpu: _Registers) -> Iterator[tuple[str, bool]]:
    saved = cpu.saved()
    has_avx = bool(cpu.leaf(1)[ECX] >> _AVX & 1)
    states = {
        state: saved & needed == needed and (has_avx or not state.startswith("avx"))
        for state, needed in _STATES.items()
    }
    for leaf, subleaf, register, state, bits in _TABLE:
        value = cpu.leaf(leaf, subleaf)[register]
        for bit, names in bits.items():
            yield from _same(names.split(), bool(value >> bit & 1) and states[state])
    has_avx10 = bool(cpu.leaf(7, 1)[EDX] >> _AVX10_BIT & 1) and states["avx512"]
    version = cpu.leaf(_AVX10_LEAF)[EBX] & 0xFF if has_avx10 else 0
    yield from ((name, version > n) for n, name in enumerate(_AVX10))


def _same(names: Iterable[str], value: bool) -> Iterator[tuple[str, bool]]:
    return ((name, value) for name in names)
