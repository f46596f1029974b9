"""⑧ Best records in the user's cache folder: a tuned model compiles without naming a log.

keep(store, distilled)                                  one entry per task, CPU and thread count
kept(store, task keys, target key, n_threads) ─► Log    of what is there; None where nothing is

An entry is a log of one record. A later one of the same task takes its place. The steps of logs
outlive versions of the package, so do these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autotune.cache import FileStore, cache_folder, key_of
from autotune.records.reader import decode_bytes
from autotune.records.record import Header, Log, MeasureRecord, Workload, encode

_MAX_BYTES = 64 << 20
_STATE = key_of("records, state")


def record_store() -> FileStore:
    """Store of this user's best records."""
    return FileStore(cache_folder() / "records", _MAX_BYTES)


def keep(store: FileStore, log: Log) -> int:
    """Keep the records of a distilled log; the number of those kept."""
    n_kept = 0
    headers = {header.run_id: header for header in log.headers}
    state = kept_state(store)
    for record in log.records:
        header = headers.get(record.run_id, log.headers[0] if log.headers else None)
        workload = log.workloads.get(record.workload)
        if header is None or workload is None:
            continue
        entries = (replace(header, tasks=()), workload, record)
        content = "\n".join([encode(entry) for entry in entries]).encode()
        n_kept += store.put(_key(record.workload, record.target_key, record.n_threads), content)
        state = key_of(state, content)
    store.put(_STATE, state.encode())
    return n_kept


def kept_state(store: FileStore) -> str:
    """Version of the store: changes whenever records are kept."""
    return (store.get(_STATE) or b"").decode()


def kept(store: FileStore, tasks: Iterable[str], target_key: str, n_threads: int) -> Log | None:
    """The records of these tasks."""
    headers: dict[str, Header] = {}
    workloads: dict[str, Workload] = {}
    records: list[MeasureRecord] = []
    for task in tasks:
        content = store.get(_key(task, target_key, n_threads))
        for line in (content or b"").splitlines():
            match decode_bytes(line):
                case Header() as header:
                    headers[header.run_id] = header
                case Workload() as workload:
                    workloads[workload.key] = workload
                case MeasureRecord() as record:
                    records.append(replace(record, sequence=len(records)))
    if not records or not headers:
        return None
    return Log(tuple(headers.values()), workloads, tuple(records))


def _key(task: str, target_key: str, n_threads: int) -> str:
    return key_of("record", task, target_key, str(n_threads))
