"""⑤ A gang in machine code: threads that all come, each time, and do one thing at the same time.

Timing needs that; computing does not (`team_code`). Compiled by `native`. `call` is for one thread
at a time. A gang (`GANG_BYTES`) is zero at first and in the child of a fork.
"""

from __future__ import annotations

from autotune.codegen.team.native import (
    add,
    give_way,
    invoke,
    load,
    load_acquire,
    load_sequential,
    pause,
    sleep_while,
    start_thread,
    store,
    wake,
)

STARTED, RANKS, FUNCTION, ARGUMENT, SIZE = 0, 8, 16, 24, 32
TURN, ASLEEP = 64, 72
N_DONE = 128
GANG_BYTES = 192

SPINS = 4000
ALL = 2147483647


def call(gang: int, function: int, argument: int, n: int) -> int:
    """`function(argument, t, n)` on `n` threads at once, t = 0 on this one; the number missing.

    With one missing nothing is called. `n` is the same in all calls of a gang.
    """
    store(gang + SIZE, n)
    while load(gang + STARTED) < n - 1:
        if start_thread(serve, gang):
            return n - 1 - load(gang + STARTED)
        add(gang + STARTED, 1)
    store(gang + FUNCTION, function)
    store(gang + ARGUMENT, argument)
    store(gang + N_DONE, 0)
    add(gang + TURN, 1)
    if load_sequential(gang + ASLEEP):
        wake(gang + TURN, ALL)
    invoke(function, argument, 0, n)
    spins = 0
    while load_acquire(gang + N_DONE) < n - 1:
        if spins < SPINS:
            spins += 1
            pause()
        else:
            give_way()
    return 0


def serve(gang: int) -> int:
    """Loop of all but the calling thread."""
    rank = add(gang + RANKS, 1) + 1
    known = 0
    spins = 0
    while 1:
        turn = load_acquire(gang + TURN)
        if turn != known:
            known = turn
            spins = 0
            invoke(load(gang + FUNCTION), load(gang + ARGUMENT), rank, load(gang + SIZE))
            add(gang + N_DONE, 1)
        elif spins < SPINS:
            spins += 1
            pause()
        else:
            add(gang + ASLEEP, 1)
            if load_sequential(gang + TURN) == known:
                sleep_while(gang + TURN, known)
            add(gang + ASLEEP, -1)
            spins = 0
