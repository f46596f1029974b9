from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.codec import to_json
from autotune.config import PRESETS, TuneConfig, preset_path, resolve
from autotune.errors import UsageError


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_and_have_a_budget(preset: str) -> None:
    config = resolve(preset, {}).config
    assert config.trials is not None or config.time_s is not None
    assert preset_path(preset).name == f"{preset}.toml"


def test_options_beat_presets_beat_defaults_and_sources_say_so() -> None:
    resolved = resolve("ci", {"trials": 7, "time_s": None, "seed": 0})
    assert (resolved.config.trials, resolved.config.time_s) == (7, 300.0)
    assert resolved.config.build_timeout_s == 15.0
    assert resolved.sources["trials"] == "--trials"
    assert resolved.sources["time_s"] == "preset ci"
    assert resolved.sources["seed"] == "--seed"
    assert resolve("ci", {"max_error": 1e-4}).sources["max_error"] == "--max-error"
    assert resolved.sources["build_timeout_s"] == "default"


def test_the_default_budget_applies_only_where_none_is_given() -> None:
    assert resolve(None, {}).config.time_s == 600.0
    only_trials = resolve(None, {"trials": 100}).config
    assert (only_trials.trials, only_trials.time_s) == (100, None)


def test_a_preset_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[budget]\ntime = "1h30m"\n[measure]\nrun_timeout = 3\nthreads = 2\n')
    config = resolve(str(path), {}).config
    assert (config.time_s, config.run_timeout_s, config.threads) == (5400.0, 3.0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[budget]\ntrials = 0\n", "trials is 0"),
        ("[budget]\ntrials = true\n", "trials is True"),
        ('[budget]\ntime = "soon"\n', "'soon' is not a duration"),
        ("[measure]\nmax_error = 0\n", "max_error is 0"),
        ("[measure]\nmax_error = true\n", "max_error is True"),
        ('[measure]\nmax_error = "small"\n', "max_error is 'small'"),
        ("[search]\nspeed = 1\n", "unknown setting search.speed"),
        ("speed = 1\n", "unknown setting speed"),
        ("[search\n", "is not TOML"),
    ],
)
def test_wrong_preset_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        resolve(str(path), {})


def test_settings_survive_the_log_even_with_fields_of_a_later_version() -> None:
    config = TuneConfig(trials=3, seed=5, warm_start=("/a.jsonl",))
    data = json.loads(json.dumps(to_json(config)))
    assert TuneConfig.from_json(data | {"later": 1}) == config
    assert TuneConfig.from_json({"trials": 3}) == TuneConfig(trials=3)
