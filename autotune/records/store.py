"""⑧ A store of distilled records, by CPU, threads and task: for all models, users and machines.

    store_to_write(where).add(log)                          the best of every task, and a sample
    store_to_read(where).log(target key, threads, tasks)    ─► Log, or None

    STORE/autotune-store.json                               format and version
    STORE/CPU-KEY/THREADS/TASK-FORM.DIGEST.jsonl.gz         an entry: a log of one task

An entry is never changed: its name has the digest of its content. Writers add entries, readers take
all of a task together, `merge` writes one in the place of several before it removes these. So any
number of processes read and write at once without a lock, on network file systems and in object
stores too, a writer that is killed leaves a whole entry or none, and what is damaged is told.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePath
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from autotune.cache import cache_folder, key_of, told_store
from autotune.errors import AutotuneError, LogMismatch, StoreError, UsageError
from autotune.records.places import MOST_BYTES, StorePlace, is_url, place_of
from autotune.records.reader import decode_bytes
from autotune.records.record import Entry, Header, Log, MeasureRecord, Workload, encode
from autotune.records.sample import once, pooled_by_run, sampled
from autotune.te.form import form_of
from autotune.units import format_bytes

Where: TypeAlias = "str | os.PathLike[str] | None"
"""Path or URL of a store, "none", or None for the usual one."""

NONE = "none"
MARKER = "autotune-store.json"
FORMAT = "autotune-store"
VERSION = 1
_SUFFIX = ".jsonl.gz"
_NAME = re.compile(
    r"([^/]+)/(\d{1,9})/([0-9a-f]{16})-([0-9a-f]+)\.([0-9a-f]+)" + re.escape(_SUFFIX)
)
_ANY = "surrogatepass"  # a CPU has any name
_FORM_DIGITS = 12
_DIGEST_DIGITS = 32
_ENTRY_BYTES = 64 << 20
_MOST_OF_FORM = 16
"""Entries of other tasks of a form that are read for one that has none."""
_MOST_ENTRIES = 8
"""Of one group; a writer that finds more merges them."""
_MOST_LOOKS = 4
"""At a place whose entries are being merged, before those that are gone count as pruned."""


@dataclass(frozen=True, slots=True, order=True)
class EntryKey:
    """The key of entries: a CPU, a number of threads, and a task with its form."""

    target_key: str
    n_threads: int
    task: str
    form: str

    @property
    def folder(self) -> str:
        """Name of the folder of its CPU and threads."""
        cpu = quote(self.target_key, safe="", errors=_ANY)
        return f"{cpu.replace('.', '%2E', cpu.startswith('.'))}/{self.n_threads}"


@dataclass(frozen=True, slots=True, order=True)
class EntryName:
    """The name of an entry."""

    group: EntryKey
    digest: str

    @property
    def path(self) -> str:
        """Path below the store."""
        return f"{self.group.folder}/{self.group.task}-{self.group.form}.{self.digest}{_SUFFIX}"

    @staticmethod
    def parse(path: str) -> EntryName | None:
        """The name of a path below the store; None for a file that is no entry."""
        match = _NAME.fullmatch(path)
        if match is None:
            return None
        try:
            target_key = unquote(match[1], errors=_ANY)
        except UnicodeDecodeError:
            return None
        return EntryName(EntryKey(target_key, int(match[2]), match[3], match[4]), match[5])


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """A file that is no entry, or not the one that it was, and the reason."""

    path: str
    reason: str

    @property
    def is_entry(self) -> bool:
        """Whether its name is that of an entry."""
        return EntryName.parse(self.path) is not None


@dataclass(frozen=True, slots=True)
class Entries:
    """What was read of a store."""

    logs: Mapping[EntryName, Log]
    damaged: tuple[DamagedEntry, ...] = ()

    def log(self) -> Log | None:
        """All entries as one log; None where there are no records."""
        found = joined(self.logs.values())
        return found if found.records else None


class RecordStore:
    """A store that is there; see the module. Raises as `StorePlace`."""

    def __init__(self, place: StorePlace) -> None:
        self._place = place

    @property
    def title(self) -> str:
        """Path or URL."""
        return self._place.title

    def names(self) -> list[EntryName]:
        """All entries, sorted."""
        return [name for name in map(EntryName.parse, self._place.names()) if name]

    def read(self, wanted: Callable[[EntryName], bool]) -> Entries:
        """Entries that are `wanted`, also where others are merging them."""
        found: dict[str, bytes] = {}
        for _ in range(_MOST_LOOKS):
            names = [name for name in self.names() if wanted(name)]
            missing = [name.path for name in names if name.path not in found]
            found |= self._place.read(missing)
            if all(name.path in found for name in names):
                break
        return _entries(names, found)

    def log(
        self, target_key: str, n_threads: int, tasks: Collection[str], forms: Collection[str] = ()
    ) -> Log | None:
        """Records of these tasks, and of some of these forms (`form_digest`); None where there are
        none.
        """
        machine = target_key, n_threads
        names = [n for n in self.names() if (n.group.target_key, n.group.n_threads) == machine]
        chosen = {name for name in names if name.group.task in tasks}
        for form in forms:
            alike = (name for name in names if name.group.form == form and name not in chosen)
            chosen.update(islice(alike, _MOST_OF_FORM))
        return self.read(chosen.__contains__).log() if chosen else None

    def state(self, target_key: str) -> str:
        """A digest of the entries of a CPU: another one whenever some were added or removed."""
        return key_of(*(n.path for n in self.names() if n.group.target_key == target_key))

    def add(self, log: Log) -> int:
        """Add the records of a log, or of a distilled one; the number of entries added.

        Raises OutputError or UsageError where the place does not take them: what was written before
        is then there, and adding the log again adds the rest.
        """
        parts = _grouped(log)
        added = [name for group, part in parts.items() if (name := self._put(group, part))]
        for group, names in self._several(parts).items():
            if len(names) > _MOST_ENTRIES:
                self._merge(group, names)
        return len(added)

    def take(self, other: RecordStore) -> int:
        """Copy the entries of another store that this one lacks; how many."""
        known = set(self.names())
        found = other.read(lambda name: name not in known)
        for name, log in found.logs.items():
            self._put(name.group, log)
        return len(found.logs)

    def merge(self) -> int:
        """Write one entry in the place of several of one task; how many fewer there are then."""
        return sum(self._merge(group, names) for group, names in self._several().items())

    def _several(
        self, groups: Collection[EntryKey] | None = None
    ) -> dict[EntryKey, list[EntryName]]:
        """Groups, all or these, with several entries, and their names."""
        found: dict[EntryKey, list[EntryName]] = {}
        for name in self.names():
            if groups is None or name.group in groups:
                found.setdefault(name.group, []).append(name)
        return {group: names for group, names in found.items() if len(names) > 1}

    def _merge(self, group: EntryKey, names: Sequence[EntryName]) -> int:
        found = _entries(names, self._place.read([name.path for name in names])).logs
        if len(found) < 2:
            return 0
        log = joined(found.values())
        written = self._put(group, replace(log, records=tuple(sampled(log.records))))
        if written is None:
            return 0
        gone = [name.path for name in found if name != written]
        self._place.remove(gone)  # after the new entry is whole
        return len(gone)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files."""
        self._place.remove(paths)

    def verify(self) -> Entries:
        """Everything, with what is damaged, and with files that are no entries."""
        foreign = [
            DamagedEntry(path, "is no entry of a store")
            for path in self._place.names()
            if path != MARKER and EntryName.parse(path) is None
        ]
        found = self.read(lambda name: True)
        return replace(found, damaged=(*found.damaged, *foreign))

    def _put(self, group: EntryKey, log: Log) -> EntryName | None:
        content = _encoded(log)
        if content is None:
            return None
        name = EntryName(group, _digest(content))
        self._place.write(name.path, content)
        return name


# --- which store ------------------------------------------------------------------------------


def store_to_write(where: Where = None) -> RecordStore:
    """The store at a place, a new one where nothing is yet.

    Without `where` the one in AUTOTUNE_STORE, or else the one in the user's cache folder. Raises
    StoreError for another folder, and as `place_of`.
    """
    place = place_of(where or told_store() or cache_folder() / "store")
    if not _is_store(place):
        marker = {"format": FORMAT, "version": VERSION}
        place.write(MARKER, f"{json.dumps(marker)}\n".encode())
    return RecordStore(place)


def store_to_read(
    where: Where = None, uses_cache: bool = True, note: Callable[[str], None] | None = None
) -> RecordStore | None:
    """The store to read: `where`, else the one in AUTOTUNE_STORE, else that of the cache folder.

    None for "none", and where nothing was stored yet. The cache folder is left alone unless
    `uses_cache`, and never fails. `note` is told where none is at the place of AUTOTUNE_STORE.
    Raises UsageError where `where` is no store, else as `store_to_write`.
    """
    if where is not None and os.fspath(where) == NONE:
        return None
    if where:
        place = place_of(where)
        if not _is_store(place):
            raise UsageError(
                f"there is no store {place.title}",
                "check the name, or make one: autotune distill LOG, with `store`",
            )
        return RecordStore(place)
    if told := told_store():
        if told == NONE:
            return None
        place = place_of(told)
        if _is_store(place):
            return RecordStore(place)
        if note is not None:
            note(f"no store is at {place.title} yet, which AUTOTUNE_STORE names")
        return None
    if uses_cache:
        with suppress(AutotuneError, OSError):
            place = place_of(cache_folder() / "store")
            return RecordStore(place) if _is_store(place) else None
    return None


def absolute(where: Where) -> str:
    """A place as a text that means the same in any folder."""
    text = os.fspath(where or "")
    return text if not text or text == NONE or is_url(text) else os.path.abspath(text)


def _is_store(place: StorePlace) -> bool:
    """Whether a store is at a place; False where nothing is. Raises StoreError for what is none."""
    content = place.read([MARKER]).get(MARKER)
    if content is None and place.is_empty():
        return False
    content = content or place.read([MARKER]).get(MARKER)  # another process may have made it now
    if content is None:
        raise StoreError(
            f"{place.title} is no store of autotune: other files are in it", "name an empty folder"
        )
    try:
        data: Any = json.loads(content)
        known, version = data["format"] == FORMAT, data["version"]
    except (ValueError, LookupError, TypeError, RecursionError):
        known, version = False, 0
    if not known or not isinstance(version, int):
        raise StoreError(
            f"{place.title} is no store of autotune: {MARKER} in it is damaged",
            f'write {{"format": "{FORMAT}", "version": {VERSION}}} into it if it is one',
        )
    if version > VERSION:
        raise StoreError(
            f"{place.title} has version {version} of stores, this autotune reads up to {VERSION}",
            "upgrade autotune, or name another store",
        )
    return True


# --- entries ----------------------------------------------------------------------------------


def joined(logs: Iterable[Log]) -> Log:
    """Several logs as one: each header, task and measurement once.

    Where a task has other names in one than in another, the names of the fastest schedule count,
    and schedules with others are left out.
    """
    headers: dict[str, Header] = {}
    workloads: dict[str, Workload] = {}
    records: list[MeasureRecord] = []
    for log in sorted(logs, key=_fastest_s):
        headers |= {header.run_id: header for header in log.headers}
        workloads = log.workloads | workloads
        records += (r for r in log.records if _is_named_so(r, log, workloads))
    return Log(tuple(headers.values()), workloads, tuple(once(records)))


def _fastest_s(log: Log) -> float:
    return min((r.result.latency_s for r in log.records if r.result.latency_s), default=math.inf)


def _is_named_so(record: MeasureRecord, log: Log, workloads: Mapping[str, Workload]) -> bool:
    own, chosen = log.workloads.get(record.workload), workloads.get(record.workload)
    return own is chosen or (own is not None and chosen is not None and own.dag == chosen.dag)


def _grouped(log: Log) -> dict[EntryKey, Log]:
    """The distilled records of every task, CPU and number of threads, as logs of their own."""
    headers = {header.run_id: header for header in log.headers}
    first = log.headers[0] if log.headers else None
    found: dict[EntryKey, list[MeasureRecord]] = {}
    for record in log.records:
        header, workload = headers.get(record.run_id, first), log.workloads.get(record.workload)
        if header is None or workload is None or header.target.key != record.target_key:
            continue
        headers.setdefault(record.run_id, replace(header, run_id=record.run_id))
        form = _form_digest(workload)
        group = EntryKey(record.target_key, record.n_threads, record.workload, form)
        found.setdefault(group, []).append(record)
    distilled = {group: sampled(pooled_by_run(records)) for group, records in found.items()}
    return {
        group: Log(
            tuple(headers[run] for run in dict.fromkeys(r.run_id for r in records)),
            {group.task: log.workloads[group.task]},
            tuple(records),
        )
        for group, records in distilled.items()
    }


def form_digest(text: str) -> str:
    """Of the text of a form (`te.form.Skeleton`), as names of entries have it."""
    return key_of("form", text)[:_FORM_DIGITS]


def _form_digest(workload: Workload) -> str:
    return form_digest(form_of(workload.dag).text)


def _encoded(log: Log) -> bytes | None:
    """The content of an entry: the same bytes for the same records; None where there are none."""
    records = sorted(log.records, key=lambda r: (r.run_id, r.sequence, r.steps_json))
    runs = {record.run_id for record in records}
    headers = sorted((_bare(h) for h in log.headers if h.run_id in runs), key=lambda h: h.run_id)
    if not records or not headers:
        return None
    entries: tuple[Entry, ...] = (*headers, *log.workloads.values(), *records)
    text = "".join(f"{encode(entry)}\n" for entry in entries)
    return gzip.compress(text.encode(), mtime=0)


def _bare(header: Header) -> Header:
    """A header without what is of its model, its user and its settings alone."""
    return Header(
        run_id=header.run_id,
        created=header.created,
        model_path=PurePath(header.model_path).name,
        model_hash=header.model_hash,
        shapes={},
        target=header.target,
        n_threads=header.n_threads,
        seed=header.seed,
        config={},
        versions=header.versions,
        tasks=(),
        random_weights=header.random_weights,
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGEST_DIGITS]


def _entries(names: Sequence[EntryName], contents: Mapping[str, bytes]) -> Entries:
    logs: dict[EntryName, Log] = {}
    damaged: list[DamagedEntry] = []
    for name in names:
        if name.path not in contents:
            continue  # pruned meanwhile
        try:
            logs[name] = _decoded(name, contents[name.path])
        except (StoreError, LogMismatch) as error:
            damaged.append(DamagedEntry(name.path, error.message))
    return Entries(logs, tuple(damaged))


def _decoded(name: EntryName, content: bytes) -> Log:
    """The log of an entry. Raises StoreError, LogMismatch for one of a later format."""
    if not content:
        raise StoreError(f"is empty, no regular file, or has more than {format_bytes(MOST_BYTES)}")
    if _digest(content) != name.digest:
        raise StoreError("is cut off or was changed")
    headers: list[Header] = []
    workloads: dict[str, Workload] = {}
    records: list[MeasureRecord] = []
    for line in _unpacked(content).splitlines():
        match decode_bytes(line):
            case Header() as header:
                headers.append(header)
            case Workload() as workload:
                workloads[workload.key] = workload
            case MeasureRecord() as record:
                records.append(record)
            case _:
                raise StoreError("has a line that is no entry of a log")
    group = name.group
    keys = {header.target.key for header in headers}
    own = {(r.target_key, r.n_threads, r.workload) for r in records}
    if own != {(group.target_key, group.n_threads, group.task)} or keys != {group.target_key}:
        raise StoreError("has records of another task, CPU or number of threads")
    if set(workloads) != {group.task} or workloads[group.task].dag.key != group.task:
        raise StoreError("has another computation than its name says")
    return Log(tuple(headers), workloads, tuple(records))


def _unpacked(content: bytes) -> bytes:
    """Raises StoreError for what is no gzip, or unpacks to more than an entry has."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        data = unpacker.decompress(content, _ENTRY_BYTES)
    except zlib.error as error:
        raise StoreError("is no gzip file") from error
    if not unpacker.eof:
        raise StoreError("is cut off, or larger than an entry can be")
    return data
