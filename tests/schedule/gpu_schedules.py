"""Schedules for GPUs, written by hand, of drawn shapes and tiles."""

from __future__ import annotations

from random import Random

from autotune import te
from autotune.api.te.schedule import Schedule
from autotune.target import host_target
from autotune.te.language import dag_of


def elementwise(rng: Random) -> Schedule:
    """Blocks of threads along the fused axes, some elements for each thread."""
    shape = tuple(rng.choice((1, 3, 5, 8)) for _ in range(rng.randint(1, 3)))
    x, y = te.placeholder(shape, "x"), te.placeholder(shape[-1:], "y")
    out = te.compute(shape, lambda *i: te.exp(te.minimum(x[i] * y[i[-1]], 1.0)), "out")
    s = Schedule(dag_of([out]), host_target())
    stage = s["out"]
    loop = stage.loops[0]
    for inner in stage.loops[1:]:
        loop = stage.fuse(loop, inner)
    block, thread, rest = stage.split(loop, rng.choice((1, 4, 7)), rng.choice((1, 2)))
    stage.bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    if rng.random() < 0.5:
        stage.unroll(rest)
    return s


def matmul(rng: Random) -> Schedule:
    """Tiles in shared memory, and a register tile for each thread."""
    n, m, k = (rng.choice((1, 2, 5, 8, 11)) for _ in range(3))
    a, b, r = te.placeholder((n, k), "a"), te.placeholder((k, m), "b"), te.reduce_axis(k, "r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c")
    s = Schedule(dag_of([c]), host_target())
    stage = s["c"]
    rows, columns = rng.choice((1, 2, 4)), rng.choice((2, 3))
    i0, i1, i2 = stage.split("i", rows, rng.choice((1, 2)))
    j0, j1, j2 = stage.split("j", columns, rng.choice((1, 2)))
    r0, r1 = stage.split("r", rng.choice((2, 4)), tail="split")
    stage.reorder(i0, j0, i1, j1, r0, r1, i2, j2).unroll(i2, j2)
    stage.bind(i0, "blockIdx.y").bind(j0, "blockIdx.x")
    stage.bind(i1, "threadIdx.y").bind(j1, "threadIdx.x")
    for tensor in rng.sample(("a", "b"), rng.randint(0, 2)):
        copy = s.cache_read(tensor, "c", scope="shared").compute_at("c", rng.choice((r0, j0, j1)))
        _divide(s, copy.name, threads=(launched(s, i1), launched(s, j1)), rng=rng)
    return s


def epilogue(rng: Random) -> Schedule:
    """A product that each thread computes for the elements that it then maps."""
    n, m, k = (rng.choice((1, 3, 8, 10)) for _ in range(3))
    a, b, r = te.placeholder((n, k), "a"), te.placeholder((k, m), "b"), te.reduce_axis(k, "r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c")
    out = te.compute((n, m), lambda i, j: te.maximum(c[i, j], 0.0), "out")
    s = Schedule(dag_of([out]), host_target())
    i0, i1, i2 = s["out"].split("i", rng.choice((2, 4)), rng.choice((1, 2)))
    j0, j1 = s["out"].split("j", rng.choice((2, 3)))
    s["out"].reorder(i0, j0, i1, j1, i2)
    s["out"].bind(i0, "blockIdx.y").bind(j0, "blockIdx.x")
    s["out"].bind(i1, "threadIdx.y").bind(j1, "threadIdx.x")
    s["c"].compute_at("out", j1)
    r0, r1 = s["c"].split("r", rng.choice((2, 3)), tail="split")
    s["c"].reorder(r0, r1, "i", "j").unroll("i", "j")
    for tensor in rng.sample(("a", "b"), rng.randint(1, 2)):
        copy = s.cache_read(tensor, "c", scope="shared").compute_at("c", r0)
        _divide(s, copy.name, threads=(launched(s, i1), launched(s, j1)), rng=rng)
    return s


def launched(s: Schedule, loop: str) -> int:
    """Iterations of a loop of the product or convolution."""
    return int(s[s.dag.outputs[0]].stage.iter(loop).extent)


def conv(rng: Random) -> Schedule:
    """Tiles of the padded image and of the weights in shared memory."""
    h, w, c, f = rng.randint(3, 7), rng.randint(3, 7), rng.choice((1, 2, 5)), rng.choice((1, 3, 4))
    size, stride, pad = rng.choice((1, 3)), rng.choice((1, 2)), rng.choice((0, 1))
    x, k = te.placeholder((c, h, w), "x"), te.placeholder((f, c, size, size), "k")

    def padded(i: te.Expression, y: te.Expression, z: te.Expression) -> te.Expression:
        y, z = y - pad, z - pad
        inside = (y >= 0) & (y < h) & (z >= 0) & (z < w)
        return te.where(inside, x[i, y, z], 0.0)

    p = te.compute((c, h + 2 * pad, w + 2 * pad), padded, "p")
    ic, kh, kw = te.reduce_axis(c, "ic"), te.reduce_axis(size, "kh"), te.reduce_axis(size, "kw")
    shape = (f, (h + 2 * pad - size) // stride + 1, (w + 2 * pad - size) // stride + 1)
    out = te.compute(
        shape,
        lambda o, y, z: te.sum(
            p[ic, y * stride + kh, z * stride + kw] * k[o, ic, kh, kw], [ic, kh, kw]
        ),
        "out",
    )
    s = Schedule(dag_of([out]), host_target())
    stage = s["out"]
    o0, o1 = stage.split("o", 2)
    y0, z0, y1, z1 = stage.tile("y", "z", rng.choice((1, 2)), rng.choice((2, 3)))
    c0, c1 = stage.split("ic", rng.choice((1, 2)), tail="split")
    stage.reorder(o0, y0, z0, o1, y1, z1, c0, c1, "kh", "kw")
    for axis, block, thread in (("z", o0, o1), ("y", y0, y1), ("x", z0, z1)):
        stage.bind(block, f"blockIdx.{axis}").bind(thread, f"threadIdx.{axis}")
    threads = tuple(launched(s, loop) for loop in (o1, y1, z1))
    if rng.random() < 0.7:
        copy = s.cache_read("p", "out", scope="shared").compute_at("out", c0)
        s["p"].inline()
        _divide(s, copy.name, threads, rng)
    else:
        s["p"].inline()
    if rng.random() < 0.7:
        copy = s.cache_read("k", "out", scope="shared").compute_at("out", c0)
        _divide(s, copy.name, threads, rng)
    return s


def _divide(s: Schedule, name: str, threads: tuple[int, ...], rng: Random) -> None:
    """The loops of a copy, fused and divided among all threads, or along x alone."""
    stage = s[name]
    loop = stage.loops[0]
    for inner in stage.loops[1:]:
        loop = stage.fuse(loop, inner)
    if rng.random() < 0.3:
        threads = threads[-1:]
    _, *inside = stage.split(loop, *threads)
    for each, axis in zip(reversed(inside), "xyz", strict=False):
        stage.bind(each, f"threadIdx.{axis}")


KINDS = {"elementwise": elementwise, "matmul": matmul, "epilogue": epilogue, "conv": conv}
