"""A script needs no eyes: the path on stdout, one call for start and resume, notes as errors."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import ExitCode
from autotune.records import read_log
from tests.forking import Cli


def test_tune_prints_its_log_and_a_second_call_goes_on(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    words = ("tune", model, "--log", path, "--threads", 1, "--preset", "ci", "--resume-or-start")
    done = cli(*words, "--trials", 4)
    assert (done.code, done.out) == (0, f"{path}\n"), done.err
    assert sum(not r.final for r in read_log(path).records) == 4
    done = cli(*words, "--trials", 6)
    assert (done.code, done.out) == (0, f"{path}\n"), done.err
    assert sum(not r.final for r in read_log(path).records) == 6


def test_a_log_of_other_tasks_or_threads_is_not_resumed(
    cli: Cli, tuned: Path, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(tuned.read_bytes())
    words = ("tune", model, "--log", path, "--preset", "ci", "--resume-or-start")
    for more, reason in ((("--precision", "bf16"), "settings"), (("--threads", 2), "threads")):
        done = cli(*words, *more)
        assert (done.code, done.out) == (ExitCode.MISMATCH, ""), done.err
        assert reason in done.err
    assert path.read_bytes() == tuned.read_bytes()
    assert cli("tune", model, "--resume-or-start").code == ExitCode.USAGE


def test_strict_writes_nothing_that_a_note_is_about(
    cli: Cli, model: Path, tuned: Path, tmp_path: Path
) -> None:
    done = cli("compile", model, "--strict", "-o", tmp_path / "a.atn")
    assert (done.code, done.out) == (ExitCode.NOTED, ""), done.err
    assert "analytic default" in done.err
    assert not (tmp_path / "a.atn").exists()
    done = cli("compile", "--log", tuned, "--strict", "-o", tmp_path / "b.atn")
    assert done.code == 0, done.err


def test_quiet_commands_write_data_alone_and_verbose_ones_tell_when(
    cli: Cli, tuned: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.atn"
    done = cli("compile", "--log", tuned, "-q", "-o", path)
    assert (done.code, done.out, done.err) == (0, f"{path}\n", "")
    done = cli("compile", "--log", tuned, "-v", "-o", path)
    assert all(line.startswith("[") for line in done.err.splitlines())
    assert cli("compile", "--log", tmp_path / "none", "-q").err.startswith("error:")


def test_settings_name_the_variable_that_gave_them(cli: Cli, model: Path) -> None:
    done = cli("tune", model, "--dry-run", "--seed", 3, AUTOTUNE_TUNE_TRIALS="7")
    lines = {line.split()[0]: line for line in done.out.splitlines() if line}
    assert lines["trials"].endswith("AUTOTUNE_TUNE_TRIALS")
    assert lines["seed"].endswith("--seed")


def test_a_model_that_moved_with_its_log_is_found_and_other_threads_are_noted(
    cli: Cli, tuned: Path, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(tuned.read_text())
    words = ("compile", "--log", path, "-o", tmp_path / "a.atn", "--no-check")
    done = cli(*words, XDG_CACHE_HOME=str(tmp_path / "empty"))  # the cache knows where it was
    assert (done.code, "is gone" in done.err) == (ExitCode.USAGE, True)
    (tmp_path / model.name).write_bytes(model.read_bytes())
    done = cli(*words)
    assert done.code == 0, done.err
    assert "another number of threads" not in done.err
    done = cli(*words, "--threads", 2)
    assert "2 of 2 tasks take records of another number of threads (1) than 2" in done.err


def test_calls_have_the_names_of_tensors_in_the_file(cli: Cli, model: Path) -> None:
    done = cli("tasks", model, "--dag")
    assert "# call: x = x -> relu = b\n" in done.out
    assert "# call: x = b -> matmul = y\n" in done.out
