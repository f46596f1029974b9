"""Floor 0: x86-64 processors by LLVM's names: features by generation, and sizes of caches.

Features are those of LLVM's `X86.td` that compiled code may use beyond x86-64-v3. Sizes are the
public ones of a product of that name, which stands beside them; L2 is the share of one core, L3
what one core reaches.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.target.isa.record import Architecture, Core, Processor
from autotune.target.isa.x86 import AVX2, AVX512


def _with(before: frozenset[str], names: str) -> frozenset[str]:
    return before | frozenset(names.split())


# Generations, each with what the one before it has. Intel, with AVX-512:
_V3: frozenset[str] = frozenset()
_V4 = _with(_V3, "avx512f avx512bw avx512cd avx512dq avx512vl")
_CASCADE_LAKE = _with(_V4, "avx512vnni")
_COOPER_LAKE = _with(_CASCADE_LAKE, "avx512bf16")
_CANNON_LAKE = _with(_V4, "avx512vbmi avx512ifma")
_ICE_LAKE = _with(_CANNON_LAKE, "avx512vnni avx512vbmi2 avx512bitalg avx512vpopcntdq gfni")
_SAPPHIRE_RAPIDS = _with(_ICE_LAKE, "avx512bf16 avx512fp16 avxvnni amx-tile amx-bf16 amx-int8")
_DIAMOND_RAPIDS = _with(
    _SAPPHIRE_RAPIDS,
    "avxvnniint8 avxvnniint16 avxneconvert avxifma avx10.1 avx10.2 "
    "egpr ndd ccmp nf zu ppx push2pop2",
)
# Intel, with vectors of 256 bits:
_ALDER_LAKE = _with(_V3, "avxvnni gfni")
_SIERRA_FOREST = _with(_ALDER_LAKE, "avxvnniint8 avxneconvert avxifma")
_LUNAR_LAKE = _with(_SIERRA_FOREST, "avxvnniint16")
# AMD:
_ZEN4_FEATURES = _with(_ICE_LAKE, "avx512bf16")
_ZEN5_FEATURES = _with(_ZEN4_FEATURES, "avxvnni")

_INTEL = Core()
# `vdpbf16ps` begins every other cycle, `vfmadd` twice in each: half as many products.
_GOLDEN_COVE = Core(slow_forms=(("vdpbf16ps", 4.0),))
# Few cores share an L3 of AMD's, without a mesh between: alone a core streams 23 bytes per cycle
# from it, three times as many as an Intel core; 12 are left when all cores stream.
_ZEN = Core(l3_bytes_per_cycle=12.0, l2_bytes_per_cycle=32.0)
_ZEN4 = Core(l3_bytes_per_cycle=12.0, l2_bytes_per_cycle=32.0, port_bits=256)
_ZEN5 = Core(l3_bytes_per_cycle=12.0)


def _processor(
    name: str,
    features: frozenset[str],
    l1_kib: int = 0,
    l2_kib: int = 0,
    l3_kib: int = 0,
    core: Core = _INTEL,
) -> Processor:
    isa = AVX512 if features.issuperset(AVX512.requires) else AVX2
    return Processor(isa, features, core, l1_kib << 10, l2_kib << 10, l3_kib << 10, name)


_ALL = (
    _processor("x86-64-v3", _V3),
    _processor("x86-64-v4", _V4),
    # Intel's servers
    _processor("skylake-avx512", _V4, 32, 1024, 39424),  # Platinum 8180
    _processor("cascadelake", _CASCADE_LAKE, 32, 1024, 39424),  # 8280
    _processor("cooperlake", _COOPER_LAKE, 32, 1024, 39424),  # 8380H
    _processor("icelake-server", _ICE_LAKE, 48, 1280, 61440),  # 8380
    _processor("sapphirerapids", _SAPPHIRE_RAPIDS, 48, 2048, 107520, _GOLDEN_COVE),  # 8480+
    _processor("emeraldrapids", _SAPPHIRE_RAPIDS, 48, 2048, 327680, _GOLDEN_COVE),  # 8592+
    _processor("graniterapids", _SAPPHIRE_RAPIDS, 48, 2048, 516096, _GOLDEN_COVE),  # 6980P
    _processor("graniterapids-d", _SAPPHIRE_RAPIDS, 48, 2048, 172032, _GOLDEN_COVE),  # estimated
    _processor("diamondrapids", _DIAMOND_RAPIDS, 48, 2048, 516096, _GOLDEN_COVE),  # estimated
    _processor("sierraforest", _SIERRA_FOREST, 32, 1024, 110592),  # 6780E
    _processor("grandridge", _SIERRA_FOREST, 32, 1024, 24576),  # estimated
    _processor("clearwaterforest", _LUNAR_LAKE, 32, 1024, 589824),
    # Intel's clients: of hybrid ones, the performance core
    _processor("haswell", _V3, 32, 256, 8192),  # i7-4770
    _processor("broadwell", _V3, 32, 256, 6144),  # i7-5775C
    _processor("skylake", _V3, 32, 256, 8192),  # i7-6700
    _processor("cannonlake", _CANNON_LAKE, 32, 256, 4096),  # i3-8121U
    _processor("icelake-client", _ICE_LAKE, 48, 512, 8192),  # i7-1065G7
    _processor("tigerlake", _ICE_LAKE, 48, 1280, 12288),  # i7-1185G7
    _processor("rocketlake", _ICE_LAKE, 48, 512, 16384),  # i9-11900K
    _processor("alderlake", _ALDER_LAKE, 48, 1280, 30720),  # i9-12900K
    _processor("gracemont", _ALDER_LAKE, 32, 512, 6144),  # N100
    _processor("raptorlake", _ALDER_LAKE, 48, 2048, 36864),  # i9-13900K
    _processor("meteorlake", _ALDER_LAKE, 48, 2048, 24576),  # Ultra 7 155H
    _processor("arrowlake", _SIERRA_FOREST, 48, 3072, 24576),  # Ultra 9 285H
    _processor("arrowlake-s", _LUNAR_LAKE, 48, 3072, 36864),  # Ultra 9 285K
    _processor("lunarlake", _LUNAR_LAKE, 48, 2560, 12288),  # Ultra 7 258V
    _processor("pantherlake", _LUNAR_LAKE, 48, 3072, 18432),  # estimated
    # AMD's: L3 of one group of cores
    _processor("znver1", _V3, 32, 512, 8192, _ZEN),
    _processor("znver2", _V3, 32, 512, 16384, _ZEN),
    _processor("znver3", _V3, 32, 512, 32768, _ZEN),
    _processor("znver4", _ZEN4_FEATURES, 32, 1024, 32768, _ZEN4),
    _processor("znver5", _ZEN5_FEATURES, 48, 1024, 32768, _ZEN5),
)
PROCESSORS: Mapping[str, Processor] = {known.llvm_cpu: known for known in _ALL}
"""By LLVM's names, of those that have AVX2 and FMA and a cache that cores share."""
ALIASES: Mapping[str, str] = {
    "avx2": "x86-64-v3",
    "avx512": "x86-64-v4",
    "core-avx2": "haswell",
    "core-4th-gen-avx": "haswell",
    "core-4th-gen-avx-tsx": "haswell",
    "core-5th-gen-avx": "broadwell",
    "core-5th-gen-avx-tsx": "broadwell",
    "skx": "skylake-avx512",
}
"""Further names: ours of levels, and LLVM's. Where a name has hyphens, LLVM takes `_` as well."""


def unknown_core(cpu: str) -> Core:
    """The costs of a core without a record; of Intel's where its name says nothing."""
    return _ZEN5 if cpu.startswith("znver") else _INTEL


X86_64 = Architecture(
    name="x86_64",
    triple="x86_64-unknown-linux-gnu",
    isas=(AVX512, AVX2),
    processors=PROCESSORS,
    probe="x86.c",
    # The machine combiner adds products of integers of an unrolled sum to one another before they
    # meet their accumulator. That shortens a chain which others hide, and spills: loops of
    # `vpmaddwd` take 1.15 times as long. Other kernels are the same without it.
    options=("-x86-machine-combiner=false",),
    unknown_core=unknown_core,
)
