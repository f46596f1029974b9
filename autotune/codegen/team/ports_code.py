"""⑤ Calls of a network in machine code: dense arrays of a caller, to where the kernels have them.

    numbers_of(plan, shapes, numbers)   the numbers of the lengths that these shapes are for
    extents_of(plan, port, numbers, to) the shape of an input or output at these numbers
    enter(plan, table, fronts)          inputs to their places, before the network runs
    leave(plan, table, fronts)          outputs from theirs
    widen(kind, n, source, to)          elements of half precision as float32
    narrow(kind, n, source, to)         float32 as the nearest ones of half precision
    direct(capsules, head, table, fronts)   all of it, for arrays of NumPy

One text for Python, C and WebAssembly. What there is to copy is told by a plan, words that
`network.artifact.plan` makes of an artifact's ports; `native` compiles these functions, so every
value is an integer or an address. They have no state: what a call writes is in its table, behind
the addresses of the network: `numbers`, one word a length, then for each port the address of its
`array` and of its `shape`, then for each output the address of its `room`.

A plan is its head (`PLAN_BYTES`), the slots of the numbers' addresses, the ports, inputs first, and
their axes. An extent is `FACTOR`·n + `OFFSET`, with n the number at byte `NUMBER` of the numbers.
"""

from __future__ import annotations

from autotune.codegen.team.native import (
    call,
    copy,
    invoke,
    load,
    load_half,
    load_single,
    store,
    store_half,
    store_single,
)

VERSION = 1
"""Of a plan and of what a table has for it."""
SYMBOLS = f"autotune_ports{VERSION}_"
"""Prefix of the names of the functions."""
EXPORTED = ("numbers_of", "extents_of", "enter", "leave", "widen", "narrow")
DIRECT = "direct"
"""The function that calls those of CPython, whose addresses are in a head (`API`)."""

WORD = 8

# Elements of a caller's array: as they are stored, or halves of either kind.
PLAIN, HALF, BFLOAT = 0, 1, 2

# A plan. The last four are places in the table, in bytes.
N_INPUTS, N_PORTS, N_LENGTHS, PORTS, NUMBERS, ARRAYS, SHAPES, ROOMS = 0, 8, 16, 24, 32, 40, 48, 56
PLAN_BYTES = 64

# A port: `AXES` of its shape, `MOVED` those of its window. `KIND`, `ITEM`: as NumPy has them.
SLOT, WHERE, PLACE, KIND, ITEM, RANK, AXES, N_MOVED, MOVED = 0, 8, 16, 24, 32, 40, 48, 56, 64
PORT_BYTES = 72

# Places of a port's elements: the caller's array itself, a window of memory that the slot has the
# address of, or memory for the longest, whose address the slot gets.
BOUND, WINDOW, ROOM = 0, 1, 2

# An axis; `STRIDE` in bytes.
NUMBER, FACTOR, OFFSET, LEAST, MOST, STRIDE = 0, 8, 16, 24, 32, 40
AXIS_BYTES = 48

# What is wrong with a shape.
OTHER, ABOVE, BELOW, BETWEEN, DISAGREES = 1, 2, 3, 4, 5
REASONS = 8
AXES_MOST = 64

# The head of a plan for `direct`: the network, and functions of CPython.
ENTRY, N_THREADS, ITEM_OF, POINTER_OF, SAVE, RESTORE, CLEAR = 0, 8, 16, 24, 32, 40, 48
HEAD_BYTES = 56

# A `PyArrayInterface` of NumPy, in words: `i32 two, rank; i8 kind, i32 itemsize; i32 flags; …`.
TWO_RANK, KIND_ITEM, FLAGS, SHAPE, DATA = 0, 8, 16, 24, 40
READ, WRITTEN = 0x301, 0x701
"""Flags that an input and an output need: C-contiguous, aligned, of this byte order, writeable."""


def extent(axis: int, numbers: int) -> int:
    """That of an axis at the numbers."""
    return load(axis + OFFSET) + load(axis + FACTOR) * load(numbers + load(axis + NUMBER))


def port_at(plan: int, port: int) -> int:
    """The record of a port."""
    return plan + load(plan + PORTS) + port * PORT_BYTES


def numbers_of(plan: int, shapes: int, numbers: int) -> int:
    """Find the numbers that the inputs' shapes are for; 0, or what is wrong with one of them.

    `shapes`: addresses of extents; where one is 0 nothing is looked at. What is wrong is a reason
    + `REASONS` · (axis + `AXES_MOST` · port).
    """
    k = 0
    while k < load(plan + N_LENGTHS):
        store(numbers + k * WORD, 0)
        k += 1
    p = 0
    while p < load(plan + N_INPUTS):
        port = port_at(plan, p)
        shape = load(shapes + p * WORD)
        d = 0
        while shape and d < load(port + RANK):
            axis = plan + load(port + AXES) + d * AXIS_BYTES
            wrong = number_of(axis, load(shape + d * WORD), numbers)
            if wrong:
                return wrong + REASONS * (d + AXES_MOST * p)
            d += 1
        p += 1
    return 0


def number_of(axis: int, given: int, numbers: int) -> int:
    """Note the number that an extent is for; 0, or what is wrong."""
    rest = given - load(axis + OFFSET)
    factor = load(axis + FACTOR)
    if factor == 0:
        if rest:
            return OTHER
        return 0
    if rest > factor * load(axis + MOST):
        return ABOVE
    if rest < factor * load(axis + LEAST):
        return BELOW
    n = rest // factor
    if n * factor != rest:
        return BETWEEN
    at = numbers + load(axis + NUMBER)
    if load(at) and load(at) != n:
        return DISAGREES
    store(at, n)
    return 0


def extents_of(plan: int, port: int, numbers: int, to: int) -> int:
    """Write the extents of a port, unless `to` is 0; the number of its elements."""
    record = port_at(plan, port)
    count = 1
    d = 0
    while d < load(record + RANK):
        n = extent(plan + load(record + AXES) + d * AXIS_BYTES, numbers)
        if to:
            store(to + d * WORD, n)
        count = count * n
        d += 1
    return count


def enter(plan: int, table: int, fronts: int) -> int:
    """Inputs into their windows, and addresses into the table.

    `fronts`: 0, or for each output a word, which is not 0 where its array is its own room.
    """
    numbers = table + load(plan + NUMBERS)
    k = 0
    while k < load(plan + N_LENGTHS):
        store(table + load(plan + PLAN_BYTES + k * WORD) * WORD, numbers + k * WORD)
        k += 1
    p = 0
    while p < load(plan + N_PORTS):
        port = port_at(plan, p)
        slot = table + load(port + SLOT) * WORD
        array = load(table + load(plan + ARRAYS) + p * WORD)
        if load(port + PLACE) == ROOM:
            array = room(plan, table, fronts, p)
        if load(port + PLACE) != WINDOW:
            store(slot, array)
        p += 1
    p = 0
    while p < load(plan + N_INPUTS):
        port = port_at(plan, p)
        if load(port + PLACE) == WINDOW:
            memory = load(table + load(port + SLOT) * WORD) + load(port + WHERE)
            moved(plan, port, memory, load(table + load(plan + ARRAYS) + p * WORD), numbers, 1)
        p += 1
    return 0


def leave(plan: int, table: int, fronts: int) -> int:
    """Outputs from where kernels wrote them into the caller's arrays."""
    numbers = table + load(plan + NUMBERS)
    p = load(plan + N_INPUTS)
    while p < load(plan + N_PORTS):
        port = port_at(plan, p)
        array = load(table + load(plan + ARRAYS) + p * WORD)
        memory = load(table + load(port + SLOT) * WORD) + load(port + WHERE)
        if load(port + PLACE) != BOUND and memory != array:
            moved(plan, port, memory, array, numbers, 0)
        p += 1
    return 0


def room(plan: int, table: int, fronts: int, p: int) -> int:
    """Memory for the longest of an output."""
    n = p - load(plan + N_INPUTS)
    if fronts and load(fronts + n * WORD):
        return load(table + load(plan + ARRAYS) + p * WORD)
    return load(table + load(plan + ROOMS) + n * WORD)


def moved(plan: int, port: int, memory: int, dense: int, numbers: int, inward: int) -> int:
    """Copy a dense array to a window in memory, or from there, in blocks as long as there are."""
    block = load(port + ITEM)
    axes = plan + load(port + MOVED)
    n = load(port + N_MOVED)
    while n > 0:
        last = axes + (n - 1) * AXIS_BYTES
        length = extent(last, numbers)
        if length != 1 and load(last + STRIDE) != block:
            break
        block = block * length
        n -= 1
    return rows(axes, n, block, memory, dense, numbers, inward)


def rows(axes: int, n: int, block: int, memory: int, dense: int, numbers: int, inward: int) -> int:
    """Copy the blocks of `n` axes; where the dense array goes on."""
    if n == 0:
        if inward:
            copy(memory, dense, block)
        else:
            copy(dense, memory, block)
        return dense + block
    left = extent(axes, numbers)
    stride = load(axes + STRIDE)
    while left > 0:
        dense = rows(axes + AXIS_BYTES, n - 1, block, memory, dense, numbers, inward)
        memory += stride
        left -= 1
    return dense


def widen(kind: int, n: int, source: int, to: int) -> int:
    """Write halves as float32; `source` may be the second half of the memory at `to`."""
    k = 0
    while k < n:
        bits = load_half(source + k * 2) << 16
        if kind == HALF:
            bits = single_of(bits >> 16)
        store_single(to + k * 4, bits)
        k += 1
    return 0


def narrow(kind: int, n: int, source: int, to: int) -> int:
    """Write float32 as halves, of two that are as near the even one; `to` may be `source`."""
    k = 0
    while k < n:
        bits = load_single(source + k * 4)
        if kind == HALF:
            store_half(to + k * 2, half_of(bits))
        else:
            store_half(to + k * 2, bfloat_of(bits))
        k += 1
    return 0


def single_of(half: int) -> int:
    """The bits of a float16 as a float32."""
    exponent = half >> 10 & 31
    rest = half & 1023
    sign = (half & 32768) << 16
    if exponent == 31:
        return sign | 255 << 23 | rest << 13
    if exponent:
        return sign | exponent + 112 << 23 | rest << 13
    if rest == 0:
        return sign
    exponent = 113
    while rest < 1024:
        rest = rest << 1
        exponent -= 1
    return sign | exponent << 23 | (rest & 1023) << 13


def half_of(single: int) -> int:
    """The bits of a float32 as the nearest float16."""
    sign = single >> 16 & 32768
    size = single & (1 << 31) - 1
    exponent = size >> 23
    if size > 255 << 23:
        rest = size >> 13 & 1023
        if rest == 0:
            rest = 1
        return sign | 31 << 10 | rest
    if exponent > 142:
        return sign | 31 << 10
    if exponent > 112:
        return sign | size - (112 << 23) + 4095 + (size >> 13 & 1) >> 13
    if exponent < 102:
        return sign
    rest = size & (1 << 23) - 1 | 1 << 23
    shift = 126 - exponent
    return sign | rest + (1 << shift - 1) - 1 + (rest >> shift & 1) >> shift


def bfloat_of(single: int) -> int:
    """The bits of a float32 as the nearest bfloat16."""
    if single & (1 << 31) - 1 > 255 << 23:
        return single >> 16 & 32768 | 255 << 7 | 64
    return single + 32767 + (single >> 16 & 1) >> 16


def direct(capsules: int, head: int, table: int, fronts: int) -> int:
    """One inference on arrays of NumPy, as a tuple of capsules; 0 where the network has run.

    Whatever is not exactly as the plan has it is left to the caller, and nothing is written.
    """
    plan = head + HEAD_BYTES
    n_inputs = load(plan + N_INPUTS)
    n_ports = load(plan + N_PORTS)
    numbers = table + load(plan + NUMBERS)
    arrays = table + load(plan + ARRAYS)
    shapes = table + load(plan + SHAPES)
    p = 0
    while p < n_ports:
        capsule = call(load(head + ITEM_OF), capsules, p)
        given = 0
        if capsule:
            given = call(load(head + POINTER_OF), capsule, 0)
        if given == 0:
            call(load(head + CLEAR), 0, 0)
            return 1
        needed = READ
        if p >= n_inputs:
            needed = WRITTEN
        if not is_like(port_at(plan, p), given, needed):
            return 1
        store(arrays + p * WORD, load(given + DATA))
        store(shapes + p * WORD, load(given + SHAPE))
        p += 1
    if numbers_of(plan, shapes, numbers):
        return 1
    p = 0
    while p < n_ports:
        count = 1
        port = port_at(plan, p)
        shape = load(shapes + p * WORD)
        d = 0
        while d < load(port + RANK):
            n = extent(plan + load(port + AXES) + d * AXIS_BYTES, numbers)
            if load(shape + d * WORD) != n:
                return 1
            count = count * n
            d += 1
        begin = load(arrays + p * WORD)
        end = begin + count * load(port + ITEM)
        ends = shapes
        store(ends + p * WORD, end)
        k = 0
        while p >= n_inputs and k < p:
            if begin < load(ends + k * WORD) and load(arrays + k * WORD) < end:
                return 1
            k += 1
        p += 1
    state = call(load(head + SAVE), 0, 0)
    enter(plan, table, fronts)
    invoke(load(head + ENTRY), table, load(head + N_THREADS), 0)
    leave(plan, table, fronts)
    call(load(head + RESTORE), state, 0)
    return 0


def is_like(port: int, given: int, needed: int) -> int:
    """Whether an array has the rank, the elements and the flags of a port."""
    if load(given + TWO_RANK) != 2 + (load(port + RANK) << 32):
        return 0
    kind = load(given + KIND_ITEM)
    if kind & 255 != load(port + KIND) or kind >> 32 != load(port + ITEM):
        return 0
    if load(given + FLAGS) & needed != needed:
        return 0
    return 1
