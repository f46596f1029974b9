"""The store in the user's cache folder: what is put is found, whole, within its bound."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path
from subprocess import run

import pytest

from autotune.cache import FileStore, cache_folder, key_of
from autotune.errors import AutotuneError

KEYS = [key_of(str(n)) for n in range(8)]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "kernels", 10_000)


def test_what_is_put_is_found_and_nothing_else(store: FileStore) -> None:
    assert store.get(KEYS[0]) is None
    assert store.put(KEYS[0], b"code")
    assert store.put(KEYS[1], b"")
    assert (store.get(KEYS[0]), store.get(KEYS[1]), store.get(KEYS[2])) == (b"code", b"", None)
    assert store.put(KEYS[0], b"newer")
    assert store.get(KEYS[0]) == b"newer"
    store.remove(KEYS[0])
    assert store.get(KEYS[0]) is None
    assert store.find(KEYS[0]) is None


def test_borders_of_the_parts_of_a_key_count() -> None:
    assert key_of("ab", "c") != key_of("a", "bc") != key_of("abc")
    assert key_of("ab", b"c") == key_of(b"ab", "c")


@pytest.mark.parametrize("damage", [b"", b"short", bytes(64)])
def test_what_is_damaged_is_not_found_and_can_be_put_again(store: FileStore, damage: bytes) -> None:
    store.put(KEYS[0], b"code" * 10)
    path = store.find(KEYS[0])
    assert path is not None
    path.write_bytes(damage)
    assert store.get(KEYS[0]) is None
    assert store.put(KEYS[0], b"code")
    assert store.get(KEYS[0]) == b"code"


def test_the_least_recently_used_entries_go_first(store: FileStore) -> None:
    for n in range(4):
        store.put(KEYS[n], bytes(2_400))
        os.utime(store.find(KEYS[n]) or "", (n + 1, n + 1))  # long ago, in this order
    assert store.get(KEYS[0]) is not None  # used just now
    store.put(KEYS[4], bytes(2_400))
    kept = [key for key in KEYS if store.get(key) is not None]
    assert kept == [KEYS[0], KEYS[3], KEYS[4]]
    sizes = [path.stat().st_size for path in store.folder.rglob("*") if path.is_file()]
    assert sum(sizes) <= store.max_bytes


def test_an_entry_larger_than_the_bound_is_kept_alone(store: FileStore) -> None:
    store.put(KEYS[0], b"small")
    assert store.put(KEYS[1], bytes(20_000))
    assert store.get(KEYS[0]) is None
    assert store.get(KEYS[1]) is not None


def test_a_write_that_fails_leaves_what_was_there(store: FileStore) -> None:
    store.put(KEYS[0], b"old")

    def write_half() -> None:
        with store.writing(KEYS[0]) as file:
            file.write(b"half of it")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert store.get(KEYS[0]) == b"old"
    assert not list(store.folder.rglob("*.tmp"))


def test_what_a_killed_process_left_goes_with_the_next_entries(store: FileStore) -> None:
    store.put(KEYS[0], b"code")
    left, running = (store.folder / KEYS[0][:2] / f".{n}.tmp" for n in "ab")
    for path in (left, running):
        path.write_bytes(b"half")
    os.utime(left, (1, 1))
    FileStore(store.folder, 10_000).put(KEYS[1], b"code")
    assert running.exists()
    assert not left.exists()


def test_a_folder_that_cannot_be_used_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = FileStore(tmp_path / "file" / "kernels", 100)
    assert not blocked.put(KEYS[0], b"code")
    assert blocked.get(KEYS[0]) is None


def test_a_folder_that_others_may_write_is_not_used(store: FileStore) -> None:
    """What is kept may be machine code, and would run with this user's rights."""
    store.put(KEYS[0], b"code")
    store.folder.chmod(0o777)
    assert store.get(KEYS[0]) is None
    assert not store.put(KEYS[1], b"code")
    store.folder.chmod(0o700)
    assert store.get(KEYS[0]) == b"code"


def test_many_threads_see_whole_entries_or_none(store: FileStore) -> None:
    content = [bytes([n]) * 3_000 for n in range(8)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for step in range(60):
            n = (seed + step) % 8
            store.put(KEYS[n], content[n])
            found = store.get(KEYS[(n + 3) % 8])
            if found not in (None, content[(n + 3) % 8]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_at_a_time_is_in_the_block_of_a_key(store: FileStore) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with FileStore(store.folder, 10_000).locked(KEYS[0]):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    with store.locked(KEYS[1]):  # another key is another matter
        for thread in threads:
            thread.join()
    assert most == 1


def test_the_folder_is_where_the_system_keeps_caches(tmp_path: Path) -> None:
    code = "from autotune.cache import cache_folder; print(cache_folder())"

    def told(**environment: str) -> str:
        done = run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        return done.stdout.strip()

    home = str(tmp_path)
    assert told(HOME=home, XDG_CACHE_HOME=f"{home}/x") == f"{home}/x/autotune"
    assert told(HOME=home) == told(HOME=home, XDG_CACHE_HOME="relative")
    assert told(HOME=home) == f"{home}/.cache/autotune"


def test_tests_have_a_cache_of_their_own() -> None:
    assert str(cache_folder()).startswith(os.environ["XDG_CACHE_HOME"])


def test_who_would_wait_for_itself_is_told(store: FileStore) -> None:
    with store.locked(KEYS[0]):
        with store.locked(KEYS[1]):
            pass
        with pytest.raises(AutotuneError, match="needs itself"), store.locked(KEYS[0]):
            pass
    with store.locked(KEYS[0]):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_what_another_user_puts_in_the_place_of_a_folder_is_not_read(tmp_path: Path) -> None:
    """The folder above is theirs: a link that leads to ours now, and to theirs in a moment."""
    above, theirs = tmp_path / "above", tmp_path / "theirs"
    ours = FileStore(tmp_path / "ours", 10_000)
    ours.put(KEYS[0], b"sound")
    shutil.copytree(ours.folder, theirs)
    above.mkdir()
    for path in (above, theirs, *theirs.rglob("*")):
        os.chown(path, 65534, 65534)
    store = FileStore(above / "programs", 10_000)
    for folder, known in ((ours.folder, b"sound"), (theirs, None)):
        store.folder.symlink_to(folder)
        assert store.get(KEYS[0]) == known
        store.folder.unlink()
    assert not store.put(KEYS[0], b"code") or store.folder.stat().st_uid == 0
    assert store.find(KEYS[0]) is None  # it would be opened by its name


def test_links_and_pipes_are_no_entries(store: FileStore, tmp_path: Path) -> None:
    store.put(KEYS[0], b"code")
    (path,) = store.folder.rglob("*.entry")
    kept = path.rename(tmp_path / "kept")
    for make in (lambda: os.mkfifo(path), lambda: path.symlink_to(kept), lambda: path.mkdir()):
        make()
        assert store.get(KEYS[0]) is None
        assert store.find(KEYS[0]) is None
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
    folder = path.parent
    folder.rename(tmp_path / "folder")
    folder.symlink_to(tmp_path / "folder")
    (tmp_path / "kept").rename(tmp_path / "folder" / path.name)
    assert store.get(KEYS[0]) is None


def test_a_folder_that_anybody_may_write_above_leads_to_nothing(store: FileStore) -> None:
    store.put(KEYS[0], b"code")
    above = store.folder.parent
    assert store.find(KEYS[0]) is not None
    above.chmod(0o777)
    assert store.find(KEYS[0]) is None
    above.chmod(0o1777)  # sticky, as /tmp
    assert store.find(KEYS[0]) is not None
    above.chmod(0o700)
