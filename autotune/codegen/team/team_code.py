"""⑤ The team in machine code: the threads of this process share the kernels of many callers.

    run(job)            one inference; the caller computes, and does not wait for absent threads
    assist(team)        the loop of a thread of the team
    leave(job)          wait until no thread of the team looks at a job, so that it can be freed

A kernel's range is divided into `n` shares, one for each thread that the network was made for, and
a share into parts. A thread takes the parts of its own share first, then those that are left of
others' (work stealing). A kernel begins when the kernels that it reads from are done: each has a
count of its finished parts. The result of a part depends on nothing else, so results are the same
bits for any assignment of parts to threads.

Words that count taken and finished parts carry the number of the inference (`epoch`): an older
number counts as nothing taken. So no word is ever reset, and a thread that comes late, or wakes
in the middle of an inference that has ended, finds nothing to take and leaves. The argument for
every memory order is in docs/threads.md. Compiled by `native`; every value is an integer or an
address.

A team (`TEAM_BYTES`, zero at first and in the child of a fork), the words of what it offers to its
threads (`OFFERS`, each a seat or 0), one seat for each job (`SEAT_BYTES`, never given back to the
system), and jobs, which their owners allocate (`JOB_BYTES`, then the words in `job_bytes`).
"""

from __future__ import annotations

from autotune.codegen.team.native import (
    add,
    bind_thread,
    compare_exchange,
    flush_denormals,
    give_way,
    invoke,
    load,
    load_acquire,
    load_sequential,
    nanoseconds,
    pause,
    restore_denormals,
    sleep_while,
    start_thread,
    store,
    store_release,
    wake,
)

LINE = 64
WORD = 8

# A team. What threads change often has a cache line of its own.
RANKS, STARTED, TRIED, MAKING, CAPACITY, SPINS, MASK_BYTES = 0, 8, 16, 24, 32, 40, 48
NEWS = 64
"""Grows with every offer: idle threads watch it."""
ASLEEP = 72
"""Number of threads that sleep until there is news."""
CALLERS = 128
"""Inferences in progress."""
PING, PONG = 192, 256
"""Words with which the first thread and its starter measure the time to wake."""
MASK = 320
"""CPUs that threads which start are bound to, as `sched_setaffinity` takes them; 128 bytes."""
OFFERS = 448
N_OFFERS = 64
TEAM_BYTES = 1024

# A seat: the words of a job that a thread may read at any time.
SEAT_EPOCH, SEAT_JOB, VISITORS = 0, 8, 64
SEAT_BYTES = 128

# A job: the inferences of one network by one caller.
TEAM, SEAT, TABLE, SHARES, KERNELS, N_KERNELS, EPOCH, OFFER, TIMES, WANTED, SETTINGS = (
    0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80,
)  # fmt: skip
WAITERS = 128
"""Number of threads that sleep until a kernel of the job is done."""
JOB_BYTES = 192

# Settings of a team. A part of a kernel takes at least `SET_PART` nanoseconds.
SET_CAPACITY, SET_PATIENCE, SET_ASSIST, SET_PART, SET_MASK_BYTES, SET_MASK = 0, 8, 16, 24, 32, 40
SETTINGS_BYTES = 168

# A kernel in the list of a network, and in that of `prepare` for a number of shares.
CODE, EXTENT, NANOSECONDS, AFTER = 0, 8, 16, 24
KERNEL_BYTES = 32
RUN_CODE, RUN_EXTENT, RUN_SHARES, RUN_PARTS, RUN_AFTER, RUN_WORDS = 0, 8, 16, 24, 32, 40
RUN_BYTES = 48

MOST_PARTS = 16
COUNT_BITS = 16
COUNT_MASK = 65535
KERNELS_PATIENCE = 5
PAUSES_TIMED = 200
PAUSES_TRIES = 4
GREETINGS = 6
PATIENCE_PARTS = 20
FALLS_ASLEEP = 10000
ALL = 2147483647
OTHER_INFERENCE = -1


def job_bytes(n_shares: int, n_kernels: int) -> int:
    """Bytes of a job."""
    return JOB_BYTES + LINE * n_shares + n_kernels * (RUN_BYTES + LINE * (n_shares + 1)) + LINE


def prepare(job: int, kernels: int) -> int:
    """Lay out a job: the seats of shares, the kernels as they are run, and their words."""
    n = load(job + SHARES)
    count = load(job + N_KERNELS)
    runs = job + JOB_BYTES + LINE * n
    words = runs + count * RUN_BYTES
    words = (words + LINE - 1) // LINE * LINE
    store(job + KERNELS, runs)
    part = load(load(job + SETTINGS) + SET_PART)
    k = 0
    while k < count:
        kernel = kernels + k * KERNEL_BYTES
        at = runs + k * RUN_BYTES
        extent = load(kernel + EXTENT)
        shares = n
        if extent < shares:
            shares = extent
        if shares < 1:
            shares = 1
        parts = load(kernel + NANOSECONDS) // (shares * part)
        if parts > extent // shares:
            parts = extent // shares
        if parts > MOST_PARTS:
            parts = MOST_PARTS
        if n == 1 or parts < 1:
            parts = 1
        store(at + RUN_CODE, load(kernel + CODE))
        store(at + RUN_EXTENT, extent)
        store(at + RUN_SHARES, shares)
        store(at + RUN_PARTS, parts)
        store(at + RUN_AFTER, load(kernel + AFTER))
        store(at + RUN_WORDS, words)
        words += LINE * (shares + 1)
        k += 1
    return words


def run(job: int) -> int:
    """One inference of a job, by the thread that calls; the team's threads help where they can."""
    team = load(job + TEAM)
    seat = load(job + SEAT)
    epoch = load(job + EPOCH) + 1
    store(job + EPOCH, epoch)
    make(team, job, load(job + WANTED))
    former = flush_denormals()
    callers = add(team + CALLERS, 1) + 1
    if callers > 1:
        several = callers * load(job + WANTED)
        if several > load(team + CAPACITY) - 1:
            several = load(team + CAPACITY) - 1
        make(team, job, several)
    store(seat + SEAT_JOB, job)
    store_release(seat + SEAT_EPOCH, epoch)
    offer = offered(team, job, seat)
    if offer:
        room = load(team + CAPACITY) - callers
        if room > load(job + WANTED):
            room = load(job + WANTED)
        if room > 0:
            add(team + NEWS, 1)
            if load_sequential(team + ASLEEP):
                wake(team + NEWS, room)
    walk(job, 0, epoch, 0)
    if offer:
        compare_exchange(offer, seat, 0)
    add(team + CALLERS, -1)
    restore_denormals(former)
    return 0


def profile(job: int, times: int) -> int:
    """`run`, kernel by kernel; writes the time of its beginning, then of the end of each kernel.

    The thread that counts the last part writes it: others, the caller too, may just have no core.
    `times`: zeros at first.
    """
    store(job + TIMES, times)
    store(times, nanoseconds())
    run(job)
    store(job + TIMES, 0)
    return 0


def run_alone(job: int, code: int) -> int:
    """One inference by the thread that calls; `code`: calls all kernels on a table."""
    team = load(job + TEAM)
    add(team + CALLERS, 1)
    invoke(code, load(job + TABLE), 0, 0)
    add(team + CALLERS, -1)
    return 0


def offered(team: int, job: int, seat: int) -> int:
    """The word that offers a job to the threads; 0 where all words are taken."""
    at = load(job + OFFER)
    tries = 0
    while tries < N_OFFERS:
        word = team + OFFERS + at * WORD
        if load(word) == 0 and compare_exchange(word, 0, seat) == 0:
            store(job + OFFER, at)
            return word
        at = (at + 1) % N_OFFERS
        tries += 1
    return 0


def walk(job: int, share: int, epoch: int, rank: int) -> int:
    """Compute the remaining kernels, in their order; the caller's rank is 0.

    Others leave where an inference has ended, or where there are more callers than before.
    """
    team = load(job + TEAM)
    runs = load(job + KERNELS)
    count = load(job + N_KERNELS)
    times = load(job + TIMES)
    time_at = 0
    met = 0
    k = 0
    while k < count:
        at = runs + k * RUN_BYTES
        if rank and load(team + CALLERS) + rank > load(team + CAPACITY):
            return 0
        until = load(at + RUN_AFTER)
        if times:
            until = k
            time_at = times + (k + 1) * WORD
        while met < until:
            if not is_done(job, runs + met * RUN_BYTES, epoch):
                return 0
            met += 1
            if times and rank == 0:
                noticed(times + met * WORD)
        if not work(job, at, share, epoch, time_at):
            return 0
        k += 1
    if rank == 0:
        while met < count:
            is_done(job, runs + met * RUN_BYTES, epoch)
            met += 1
            if times:
                noticed(times + met * WORD)
    return 0


def noticed(time_at: int) -> int:
    """The time of an end, where a thread that runs code of an older artifact has not written it."""
    if load(time_at) == 0:
        store(time_at, nanoseconds())
    return 0


def work(job: int, at: int, share: int, epoch: int, time_at: int) -> int:
    """Take parts of a kernel until there are none; 0 where the inference has ended.

    `time_at`: where the time of its end belongs, or 0.
    """
    shares = load(at + RUN_SHARES)
    parts = load(at + RUN_PARTS)
    words = load(at + RUN_WORDS)
    code = load(at + RUN_CODE)
    extent = load(at + RUN_EXTENT)
    table = load(job + TABLE)
    all_parts = shares * parts
    n_done = 0
    n_visited = 0
    s = share
    if s >= shares:
        s = s % shares
    while n_visited < shares:
        part = taken(words + LINE * (s + 1), epoch, parts)
        while part >= 0:
            begin = extent * s // shares
            length = extent * (s + 1) // shares - begin
            end = begin + length * (part + 1) // parts
            begin += length * part // parts
            if begin < end:
                invoke(code, table, begin, end)
            n_done += 1
            part = -2
            if parts > 1:
                part = taken(words + LINE * (s + 1), epoch, parts)
        if part == OTHER_INFERENCE:
            return 0
        if n_done:
            if counted(job, words, epoch, n_done, all_parts, time_at):
                return 1
            n_done = 0
        s += 1
        if s == shares:
            s = 0
        n_visited += 1
    return 1


def taken(word: int, epoch: int, parts: int) -> int:
    """The number of a part that this thread alone has now; less than 0 where there is none."""
    seen = load(word)
    while 1:
        part = seen & COUNT_MASK
        found = seen >> COUNT_BITS
        if found > epoch:
            return OTHER_INFERENCE
        if found < epoch:
            part = 0
        if part >= parts:
            return -2
        before = compare_exchange(word, seen, (epoch << COUNT_BITS) + part + 1)
        if before == seen:
            return part
        seen = before


def counted(job: int, word: int, epoch: int, n_done: int, all_parts: int, time_at: int) -> int:
    """Count parts that are done; 1 where they were the last. Wakes the waiting threads.

    Before these are counted, no other thread has any left to count, and the inference goes on: the
    time is written once, and before anyone sees that the kernel is done.
    """
    seen = load(word)
    while 1:
        total = n_done
        if seen >> COUNT_BITS == epoch:
            total = n_done + (seen & COUNT_MASK)
        if time_at and total >= all_parts:
            store(time_at, nanoseconds())
        before = compare_exchange(word, seen, (epoch << COUNT_BITS) + total)
        if before == seen:
            break
        seen = before
    if total < all_parts:
        return 0
    if load_sequential(job + WAITERS):
        wake(word, ALL)
    return 1


def is_done(job: int, at: int, epoch: int) -> int:
    """Wait until a kernel is done; 0 where the inference has ended."""
    word = load(at + RUN_WORDS)
    all_parts = load(at + RUN_SHARES) * load(at + RUN_PARTS)
    spins = 0
    while 1:
        seen = load_acquire(word)
        found = seen >> COUNT_BITS
        if found > epoch:
            return 0
        if found == epoch and seen & COUNT_MASK >= all_parts:
            return 1
        if spins < KERNELS_PATIENCE * load(load(job + TEAM) + SPINS):
            spins += 1
            pause()
        else:
            add(job + WAITERS, 1)
            if load_sequential(word) == seen:
                sleep_while(word, seen)
            add(job + WAITERS, -1)


def assist(team: int) -> int:
    """Help callers, for ever. A thread that has had nothing to do for a while sleeps."""
    rank = add(team + RANKS, 1) + 1
    if load(team + MASK_BYTES):
        bind_thread(team + MASK, load(team + MASK_BYTES))
    flush_denormals()
    if rank == 1:
        greet(team)
    known = 0
    spins = 0
    while 1:
        news = load_acquire(team + NEWS)
        if news != known:
            known = news
            spins = 0
            visit(team, rank)
        elif spins < load(team + SPINS):
            spins += 1
            pause()
        else:
            add(team + ASLEEP, 1)
            if load_sequential(team + NEWS) == known:
                sleep_while(team + NEWS, known)
            add(team + ASLEEP, -1)
            spins = 0


def visit(team: int, rank: int) -> int:
    """Help every caller that has something left, beginning with another one on every thread."""
    n = 0
    while n < N_OFFERS:
        if load(team + CALLERS) + rank > load(team + CAPACITY):
            return 0
        word = team + OFFERS + (n + rank - 1) % N_OFFERS * WORD
        seat = load_acquire(word)
        if seat:
            add(seat + VISITORS, 1)
            if load_sequential(word) == seat:
                epoch = load_acquire(seat + SEAT_EPOCH)
                job = load(seat + SEAT_JOB)
                share = seated(job, rank, epoch)
                if share:
                    walk(job, share, epoch, rank)
                    compare_exchange(job + JOB_BYTES + LINE * share, epoch, epoch - 1)
            add(seat + VISITORS, -1)
        n += 1
    return 0


def seated(job: int, rank: int, epoch: int) -> int:
    """A share of a job that no other thread has as its own; 0 where there is none.

    The same one in every inference where it is free, for the contents of its caches.
    """
    n = load(job + SHARES)
    tries = 1
    while tries < n:
        share = 1 + (rank + tries - 2) % (n - 1)
        word = job + JOB_BYTES + LINE * share
        seen = load(word)
        if seen < epoch and compare_exchange(word, seen, epoch) == seen:
            return share
        tries += 1
    return 0


def make(team: int, job: int, wanted: int) -> int:
    """Start the threads that a job wants and the team has not. It does with those that start."""
    if load(team + TRIED) >= wanted or compare_exchange(team + MAKING, 0, 1):
        return 0
    settings = load(job + SETTINGS)
    store(team + MASK_BYTES, load(settings + SET_MASK_BYTES))
    k = 0
    while k < load(settings + SET_MASK_BYTES):
        store(team + MASK + k, load(settings + SET_MASK + k))
        k += WORD
    if load(team + CAPACITY) < load(settings + SET_CAPACITY):
        store(team + CAPACITY, load(settings + SET_CAPACITY))
    if load(team + CAPACITY) < wanted + 1:
        store(team + CAPACITY, wanted + 1)
    former = load(team + TRIED)
    n = load(team + STARTED)
    while n < wanted and start_thread(load(settings + SET_ASSIST), team) == 0:
        n += 1
    if former == 0 and n:
        store(team + SPINS, pauses_in(wake_nanoseconds(team, load(settings + SET_PATIENCE))))
    store(team + STARTED, n)
    store(team + TRIED, wanted)
    store_release(team + MAKING, 0)
    return 0


def wake_nanoseconds(team: int, patience: int) -> int:
    """Latency of waking a sleeping thread, in nanoseconds: the best of a few times.

    `patience`: nanoseconds for all of them. A machine that is too busy to tell, or needs longer,
    gets a small part of it, since no thread is to spin as long as others compute.
    """
    best = patience // PATIENCE_PARTS
    begin = nanoseconds()
    n = 0
    while n < GREETINGS and nanoseconds() - begin < patience:
        n += 1
        while load_acquire(team + PONG) < n and nanoseconds() - begin < patience:
            pause()
        start = nanoseconds()
        while nanoseconds() - start < FALLS_ASLEEP:
            pause()
        start = nanoseconds()
        add(team + PING, 1)
        wake(team + PING, 1)
        while load_acquire(team + PONG) <= n and nanoseconds() - begin < patience:
            pause()
        if nanoseconds() - start < best:
            best = nanoseconds() - start
    add(team + PING, GREETINGS)
    wake(team + PING, 1)
    return best


def greet(team: int) -> int:
    """The side that sleeps of `wake_nanoseconds`."""
    n = 0
    while n < GREETINGS:
        n += 1
        store_release(team + PONG, n)
        while load_acquire(team + PING) < n:
            sleep_while(team + PING, n - 1)
    store_release(team + PONG, n + 1)
    return 0


def pauses_in(limit: int) -> int:
    """Number of pause instructions that fill `limit` nanoseconds, by the best of a few times."""
    best = 0
    tries = 0
    while tries < PAUSES_TRIES:
        tries += 1
        n = 0
        start = nanoseconds()
        while n < PAUSES_TIMED:
            pause()
            n += 1
        took = nanoseconds() - start + 1
        if took < best or tries == 1:
            best = took
    return limit * PAUSES_TIMED // best


def leave(job: int) -> int:
    """Wait until no thread looks at a job whose inferences have ended: its memory can be freed."""
    while load_sequential(load(job + SEAT) + VISITORS):
        give_way()
    return 0
