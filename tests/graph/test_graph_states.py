"""States are found by names and shapes, as exporters write them."""

from __future__ import annotations

import onnx.helper as oh
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.graph.reader.states import StatePair, decoder_inputs, find_states

CACHE = ["batch", 2, "past", 8], ["batch", 2, "past + sequence", 8]
FIXED = [2, 1, 64], [2, 1, 64]
SIGNATURES = {
    "optimum": ("past_key_values.0.key", "present.0.key", CACHE, 2),
    "optimum of one decoder": (
        "past_key_values.0.decoder.value",
        "present.0.decoder.value",
        CACHE,
        2,
    ),
    "unnamed extents": ("past_key_values.1.key", "present.1.key", (CACHE[0], ["b", 2, "n", 8]), 2),
    "attributes": ("past_key_values_key_cache_0", "present_key_values_key_cache_0", CACHE, 2),
    "stacked": ("past_3", "present_3", ([2, 1, 4, "past_seq", 8], [2, 1, 4, "total", 8]), 3),
    "GRU": ("h", "hn", FIXED, None),
    "VAD": ("state", "stateN", FIXED, None),
    "streaming": ("input_cache", "output_cache", FIXED, None),
    "transducer": ("state_in_1", "state_out_1", FIXED, None),
}


def model_of(*pairs: tuple[str, str, tuple[list, list]], more: dict[str, list] | None = None):
    value = oh.make_tensor_value_info
    inputs = [value(n, 7, s) for n, s in (more or {}).items()]
    inputs += [value(a, 1, shapes[0]) for a, _, shapes in pairs]
    outputs = [value("logits", 1, [1, 5]), *(value(b, 1, shapes[1]) for _, b, shapes in pairs)]
    return oh.make_model(oh.make_graph([], "states", inputs, outputs))


@pytest.mark.parametrize("name", SIGNATURES)
def test_exporters_are_understood(name: str) -> None:
    before, behind, shapes, axis = SIGNATURES[name]
    found = find_states(model_of((before, behind, shapes), more={"input_ids": ["batch", "n"]}), {})
    assert found == (StatePair(before, behind, axis),)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(6)))
def test_many_are_paired_by_their_words(order: list[int]) -> None:
    names = [
        (f"past_key_values.{n}.{k}", f"present.{n}.{k}") for n in range(3) for k in ("key", "value")
    ]
    made = model_of(*((a, b, CACHE) for a, b in names))
    outputs = [made.graph.output[1 + n] for n in order]
    del made.graph.output[1:]
    made.graph.output.extend(outputs)
    assert [(p.input, p.output) for p in find_states(made, {})] == names


def test_ordinary_inputs_are_no_states() -> None:
    resized = [1, 3], [1, 4]
    for pair in (("input", "output", FIXED), ("past", "present", resized), ("x", "y", FIXED)):
        assert find_states(model_of(pair), {}) == ()


def test_a_pair_can_be_told() -> None:
    made = model_of(("a", "b", CACHE), ("c", "d", FIXED))
    assert find_states(made, {"a": "b"}) == (StatePair("a", "b", 2),)
    for told, text in (
        ({"a": "e"}, "no output 'e'"),
        ({"e": "b"}, "no input 'e'"),
        ({"a": "d"}, "differ"),
    ):
        with pytest.raises(UsageError, match=text):
            find_states(made, told)


def test_inputs_of_a_decoder_are_known_by_their_names() -> None:
    more = {
        "input_ids": ["batch", "sequence"],
        "attention_mask": ["batch", "past + sequence"],
        "position_ids": ["batch", "sequence"],
        "encoder_attention_mask": ["batch", "frames"],
    }
    made = model_of(("past_key_values.0.key", "present.0.key", CACHE), more=more)
    found = decoder_inputs(made, find_states(made, {}))
    assert (found.masks, found.positions) == (("attention_mask",), ("position_ids",))
    assert found.chunk_axes == (("input_ids", 1), ("position_ids", 1))
    assert found.total_axes == (("attention_mask", 1),)
