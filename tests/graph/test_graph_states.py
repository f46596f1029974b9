"""States are found by names and shapes, as exporters write them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx.helper as oh
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.graph.reader.decoder_inputs import decoder_inputs
from autotune.graph.reader.exporters import EXPORTERS, Exporter
from autotune.graph.reader.states import StatePair, cache_flag, find_states, held_inputs

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
    "stacked, without a name of the pair": ("past", "present", (["n", 2, "past", 8], CACHE[1]), 2),
    "onnxruntime-genai": (
        "past_key_values.0.key",
        "present.0.key",
        (
            ["batch_size", 2, "past_sequence_length", 8],
            ["batch_size", 2, "total_sequence_length", 8],
        ),
        2,
    ),
    "extents without names": (
        "past_key_values.0.key",
        "present.0.key",
        ([None, 2, None, 8], [None, 2, None, 8]),
        2,
    ),
    "names of nodes": (
        "past_key_values_key_cache_0",
        "cat_3",
        (CACHE[0], ["s1", 2, "past + n", 8]),
        2,
    ),
    "keys of an encoder": (
        "past_key_values.0.encoder.key",
        "present.0.encoder.key",
        (["batch", 2, "encoder_length", 8], ["batch", 2, "encoder_length_out", 8]),
        None,
    ),
    "static cache": ("key_cache.0", "new_key_cache.0", ([1, 2, 64, 8], [1, 2, 64, 8]), None),
    "transformers": (
        "past_key_values.layers.1.keys",
        "cache.layers.1.keys",
        ([1, "2", "s3", "8"], [1, 2, "s3 + s7", 8]),
        2,
    ),
    "transformers, convolution": (
        "past_key_values.layers.0.conv_states.0",
        "cache.layers.0.conv_states.0",
        ([1, "32", "3"], [1, 32, 3]),
        None,
    ),
    "GRU": ("h", "hn", FIXED, None),
    "LSTM": ("c0", "c_n", FIXED, None),
    "RNN of any batch": ("hidden_in", "hidden_out", ([1, "n", 8], [1, "LSTMhn_dim_1", 8]), None),
    "VAD of unknown extents": ("state", "stateN", ([2, None, 128], [None, None, None]), None),
    "matting": ("r1i", "r1o", FIXED, None),
    "wide streams": ("cache_last_time", "cache_last_time_next", FIXED, None),
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


def pairs_of(row: Exporter) -> Iterator[tuple[str, str, str]]:
    """Names of a state by each word of a row, and a word that says nothing in its place."""
    for word in row.before.split():
        yield f"{word}_hidden_0", "hidden_0", "zone_hidden_0"
    for word in row.behind.split():
        yield "hidden_0", f"{word}_hidden_0", "zone_hidden_0"
    for word in row.port.split():
        yield f"hidden.{word}", "hidden", "hidden.zone"
    for word in row.state.split():
        yield f"{word}_in", f"{word}_out", "zone"


@pytest.mark.parametrize("row", EXPORTERS, ids=lambda row: row.name)
def test_each_word_of_an_exporter_tells_a_state(row: Exporter) -> None:
    for before, behind, other in pairs_of(row):
        assert find_states(model_of((before, behind, FIXED))) == (StatePair(before, behind, None),)
        one, two = (other, behind) if before != "hidden_0" else (before, other)
        assert find_states(model_of((one, two, FIXED))) == ()
    unnamed = [1, 2, None, 8], [1, 2, None, 8]
    for word in row.grows.split():
        pair = f"past_{word}_0", f"present_{word}_0"
        assert find_states(model_of((*pair, unnamed))) == (StatePair(*pair, 2),)
    for word in row.fixed.split():
        pair = f"past_{word}_key_0", f"present_{word}_key_0"
        made = model_of((*pair, unnamed))
        assert find_states(made) == (StatePair(*pair, None),)
        assert held_inputs(made) == (pair[0],)


@pytest.mark.parametrize("row", EXPORTERS, ids=lambda row: row.name)
def test_each_word_of_an_exporter_tells_an_input(row: Exporter) -> None:
    named = {f"input_{word}": ["batch", "n"] for word in row.tokens.split()}
    numbered = {f"{word}_0": ["batch", "m"] for word in row.positions.split()}
    lasts = {f"{word}_k": ["batch"] for word in row.lasts.split()}
    totals = {f"{word}_length": [] for word in row.totals.split()}
    more = {**named, **numbered, **lasts, **totals, "zone": ["batch", "o"]}
    found = decoder_inputs(model_of(("past_key_0", "present_key_0", CACHE), more=more), ())
    assert {name for name, _ in found.chunk_axes} == named.keys() | numbered.keys()
    assert (found.positions, found.lasts, found.totals) == tuple(
        map(tuple, (numbered, lasts, totals))
    )
    if row.flag:
        flag = "_".join(row.flag.split())
        made = model_of(more=more)
        made.graph.input.append(oh.make_tensor_value_info(flag, 9, [1]))
        assert cache_flag(made) == flag


BEFORE_AND_BEHIND = st.sampled_from(
    (
        ("past_{}", "present_{}"),
        ("prev_{}", "next_{}"),
        ("{}_in", "{}_out"),
        ("input_{}", "output_{}"),
        ("{}", "new_{}"),
        ("{}", "{}N"),
        ("{}", "{}_out"),
        ("in.{}", "out.{}"),
    )
)
WORDS = st.sampled_from(("key", "value", "state", "hidden", "conv_cache", "rnn_h", "attn_key"))


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(WORDS, st.integers(0, 11)), min_size=1, max_size=8, unique=True),
    BEFORE_AND_BEHIND,
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_states_are_paired_by_their_words_in_any_order(words, names, grows, random) -> None:
    before, behind = names
    shapes = CACHE if grows else FIXED
    pairs = [
        (before.format(f"{w}_{n}"), behind.format(f"{w}_{n}"), 2 if grows else None)
        for w, n in words
    ]
    made = model_of(*((a, b, shapes) for a, b, _ in pairs), more={"input_ids": ["batch", "n"]})
    outputs = list(made.graph.output)
    random.shuffle(outputs)
    del made.graph.output[:]
    made.graph.output.extend(outputs)
    assert find_states(made, {}) == tuple(StatePair(*p) for p in pairs)


def test_outputs_with_names_of_nodes_follow_the_order_of_the_inputs() -> None:
    names = [(f"past_{k}_{n}", f"cat_{7 * n + k}") for k in range(2) for n in range(3)]
    made = model_of(*((a, b, CACHE) for a, b in names))
    assert [(p.input, p.output) for p in find_states(made, {})] == names
    del made.graph.output[-1]
    assert find_states(made, {}) == ()


def test_ordinary_inputs_are_no_states() -> None:
    resized = [1, 3], [1, 4]
    for pair in (
        ("input", "output", FIXED),
        ("past", "present", resized),
        ("x", "y", FIXED),
        ("input_image", "output_image", FIXED),
        ("input_ids", "output_ids", FIXED),
        ("encoder_hidden_states", "last_hidden_state", FIXED),
        ("past_key_values.0.encoder.key", "cat_1", CACHE),
    ):
        assert find_states(model_of(pair), {}) == ()


def test_a_pair_can_be_told() -> None:
    made = model_of(("a", "b", CACHE), ("c", "d", FIXED))
    assert find_states(made, {"a": "b"}) == (StatePair("a", "b", 2),)
    for told, text in (
        ({"a": "e"}, "no output 'e'"),
        ({"e": "b"}, "no input 'e'"),
        ({"a": "d"}, r"'a' \(batch, 2, past, 8\) and 'd' \(2, 1, 64\) differ"),
        ({"a": "b", "c": "b"}, "told for two states"),
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


def test_inputs_that_have_other_extents_are_left_to_the_caller() -> None:
    more = {
        "input_ids": ["batch", "n"],
        "mask": ["batch", 1, "n", "total"],
        "padding_mask": ["batch", "n"],
        "cache_position": ["n"],
        "frames_mask": [1, 64],
        "seqlens_k": ["batch"],
        "total_sequence_length": [],
        "encoder_hidden_states": ["batch", "frames", 64],
    }
    made = model_of(("past_key_values.0.key", "present.0.key", CACHE), more=more)
    found = decoder_inputs(made, find_states(made, {}))
    assert (found.prepared, found.positions) == ({"mask": None}, ("cache_position",))
    assert (found.lasts, found.totals) == (("seqlens_k",), ("total_sequence_length",))
    counted = (("input_ids", 1), ("mask", 2), ("padding_mask", 1), ("cache_position", 0))
    assert (found.chunk_axes, found.total_axes) == (counted, (("mask", 3),))


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(("attention_mask", "mask", "src_mask", "padding_mask")),
    st.sampled_from(("encoder_length", 12)),
    st.sampled_from(("encoder_length", 12, "total", "n", 32, None)),
    st.integers(1, 3),
)
def test_a_mask_of_the_places_of_an_encoder_stays_for_a_sequence(
    name: str, length: str | int, extent: str | int | None, rank: int
) -> None:
    """Whatever its name is; one of all places, or of new ones, does not."""
    more = {
        "input_ids": ["batch", "n"],
        "encoder_hidden_states": ["batch", length, 32],
        name: [*["batch", 1][: rank - 1], extent],
    }
    made = model_of(("past_key_0", "present_key_0", CACHE), more=more)
    is_held = extent == length
    assert held_inputs(made) == ("encoder_hidden_states", *([name] if is_held else []))
    inputs = decoder_inputs(made, find_states(made), held_inputs(made))
    is_open = not isinstance(extent, int)
    found = (*inputs.masks, *inputs.prepared)
    assert found == ((name,) if is_open and extent != "n" and not is_held else ())
