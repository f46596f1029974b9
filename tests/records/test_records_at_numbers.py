"""Records of tasks whose axes follow numbers: what was timed where, and which program is best."""

from __future__ import annotations

import json
import statistics

import pytest

from autotune.records import ranked_records
from autotune.records.record import MeasureRecord, decode, encode
from autotune.result import AtNumbers, MeasureResult, MeasureStatus


def _record(steps: str, *latencies_s: float, sequence: int = 0) -> MeasureRecord:
    at = tuple(AtNumbers({"n": 4**k}, s) for k, s in enumerate(latencies_s))
    mean_s = statistics.geometric_mean(latencies_s)
    result = MeasureResult(MeasureStatus.OK, (mean_s,) * 5, at=at)
    return MeasureRecord("run", sequence, "0" * 16, "cpu", 1, steps, result)


def test_a_record_keeps_what_each_number_took() -> None:
    record = _record("[]", 1e-6, 3e-6, 9e-6)
    assert decode(encode(record)) == record
    data = json.loads(encode(record))
    assert data["result"]["at"][1] == {"numbers": {"n": 4}, "latency_s": 3e-6}


def test_a_static_record_says_nothing_of_numbers() -> None:
    static = MeasureResult(MeasureStatus.OK, (1e-6,))
    text = encode(MeasureRecord("run", 0, "0" * 16, "cpu", 1, "[]", static))
    assert "at" not in json.loads(text)["result"]


@pytest.mark.parametrize("at", [[{"numbers": {"n": 0}, "latency_s": 1.0}], [{"numbers": 1}], "x"])
def test_a_damaged_record_is_skipped(at: object) -> None:
    data = json.loads(encode(_record("[]", 1e-6)))
    data["result"]["at"] = at
    assert decode(json.dumps(data)) is None


def test_the_best_program_is_best_by_its_ratios_at_all_numbers() -> None:
    even, lame_at_one = _record("[1]", 1.1e-6, 3e-6, 9e-6), _record("[2]", 2e-6, 3e-6, 8.5e-6)
    (ranked,) = ranked_records([lame_at_one, even]).values()
    assert ranked[0].steps_json == "[1]"


def test_measurements_of_one_program_are_pooled_number_by_number() -> None:
    first, again = _record("[1]", 1e-6, 4e-6), _record("[1]", 4e-6, 4e-6, sequence=1)
    (ranked,) = ranked_records([first, again]).values()
    assert [a.latency_s for a in ranked[0].result.at] == pytest.approx([2e-6, 4e-6])
    assert len(ranked[0].result.times_s) == 10
