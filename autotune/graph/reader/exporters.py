"""① Words with which exporters name the states of a decoder, and what they give beside them.

    past_key_values.0.key -> present.0.key        before: past, behind: present, state: key value

A row is an exporter, or a kind of model that its authors export by hand; what is known of names is
here and nowhere else. `tests/graph/test_graph_states.py` proves every word of every row, and has
whole signatures of these files.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exporter:
    """Words of names, in small letters and separated by spaces.

    `before`, `behind`: which value of a state it is. `port`: the same, where any input or output
    has such a word: only with one of `state` are two a pair. `grows`: of caches of attention, which
    have a row for each place. `fixed`: of an encoder. `tokens`, `positions`: inputs that number new
    places. `flag`: the words of the input that says whether there is a past. `lasts`, `totals`:
    parts of the names of the last filled place, and of the length with the new places.
    """

    name: str
    before: str = ""
    behind: str = ""
    port: str = ""
    state: str = ""
    grows: str = ""
    fixed: str = ""
    tokens: str = ""
    positions: str = ""
    flag: str = ""
    lasts: str = ""
    totals: str = ""


EXPORTERS = (
    Exporter(
        "optimum",
        before="past",
        behind="present",
        state="key value",
        grows="key value",
        fixed="encoder",
        tokens="ids embeds",
        positions="position",
        flag="use cache",
    ),
    Exporter("onnxruntime-genai", before="past", lasts="seqlens", totals="total_seq"),
    Exporter("PyTorch, dynamo", before="past", behind="present", state="cache", grows="key value"),
    Exporter("onnxruntime, GPT-2", before="past", behind="present", state="kv", grows="kv"),
    Exporter("onnxruntime, Whisper", before="past", behind="present", fixed="cross"),
    Exporter("static caches", behind="new updated", state="cache", positions="pos positions"),
    Exporter(
        "PyTorch, recurrent",
        before="initial init",
        behind="final n",
        port="in out",
        state="hidden cell h c rnn lstm gru",
    ),
    Exporter("Silero VAD", behind="n", state="state context"),
    Exporter("Robust Video Matting", port="i o", state="r"),
    Exporter("transducers", behind="new", port="in out", state="cached conv"),
    Exporter("streaming attention", behind="next", state="cache", grows="att attn attention"),
    Exporter(
        "streaming by hand",
        before="prev previous old last",
        behind="next cur current new",
        port="input output",
        state="buffer buf memory mem",
        tokens="tokens token embeddings",
    ),
)


def words_of(field: str) -> frozenset[str]:
    """Words of all rows in one of their fields."""
    return frozenset(word for row in EXPORTERS for word in str(getattr(row, field)).split())
