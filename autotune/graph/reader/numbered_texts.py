"""① Strings of a model become numbers: constants, attributes, inputs and outputs.

    LabelEncoder <keys_strings = ["no", "yes"]> (x)  ->  LabelEncoder <keys_int64s = [0, 1]> (x)
    ZipMap <classlabels_strings = […]> (scores)      ->  Identity (scores), and keys at the border

An operator that reads or makes strings fits where its schema allows int64 in their place, and so
computes nothing of their letters; a list of strings among its attributes becomes the list of
integers that the schema has beside it. Where a model has others (`StringNormalizer`, a cast), it
stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.defs import OpSchema
from onnx.numpy_helper import from_array, to_array

from autotune.graph.reader.node_order import bodies, names_read
from autotune.graph.texts import NO_TEXTS, Keys, Texts

_ML = "ai.onnx.ml"
_STRING, _INT64, _FLOAT = TensorProto.STRING, TensorProto.INT64, TensorProto.FLOAT
_UNUSED = "_Unused"
"""What a LabelEncoder gives for keys that it does not have, unless it says so."""
_CONVERTS = "Cast"
_OF_RESULTS = ("classlabels", "value")
"""How attributes begin that hold what a result may be."""


class _NotNumbers(Exception):
    """Something reads the letters of strings."""


def number_texts(model: ModelProto) -> Texts:
    """Make numbers of all strings of `model`, in place; where that cannot be, nothing is changed.

    Only where inputs, outputs or constants are strings or maps; else there is nothing to do.
    """
    if not any(map(_is_of_texts, (*model.graph.input, *model.graph.output))) and not any(
        tensor.data_type == _STRING for tensor in model.graph.initializer
    ):
        return NO_TEXTS
    changed = ModelProto()
    changed.CopyFrom(model)
    try:
        texts = _Numbering(changed).run()
    except _NotNumbers:
        return NO_TEXTS
    model.CopyFrom(changed)
    return texts


def _is_of_texts(value: ValueInfoProto) -> bool:
    kind = value.type
    return kind.WhichOneof("value") == "sequence_type" or kind.tensor_type.elem_type == _STRING


class _Numbering:
    def __init__(self, model: ModelProto) -> None:
        if model.functions:
            raise _NotNumbers
        self.graph = model.graph
        self.opsets = {entry.domain or "": entry.version for entry in model.opset_import}
        self.words: dict[str, int] = {}
        self.texts: set[str] = set()
        self.maps: dict[str, Keys] = {}

    def run(self) -> Texts:
        """The strings that are numbers now."""
        for value in (*self.graph.input, *self.graph.value_info):
            self._value(value)
        for tensor in self.graph.initializer:
            if tensor.data_type == _STRING:
                self.texts.add(tensor.name)
                tensor.CopyFrom(self._tensor(tensor))
        for node in self.graph.node:
            self._node(node)
        ends = {end.name for end in (*self.graph.input, *self.graph.output)}
        for end in self.graph.output:
            self._value(end)
        return Texts(tuple(self.words), tuple(sorted(self.texts & ends)), self.maps)

    def number(self, word: str | bytes) -> int:
        """The number of a string."""
        try:
            text = word.decode() if isinstance(word, bytes) else word
        except UnicodeDecodeError:
            raise _NotNumbers from None
        return self.words.setdefault(text, len(self.words))

    def _tensor(self, tensor: TensorProto) -> TensorProto:
        words = to_array(tensor).reshape(-1)
        numbers = np.array([self.number(word) for word in words], np.int64)
        return from_array(numbers.reshape(tuple(tensor.dims)), tensor.name)

    def _value(self, value: ValueInfoProto) -> None:
        if value.type.tensor_type.elem_type == _STRING:
            self.texts.add(value.name)
            value.type.tensor_type.elem_type = _INT64
        elif value.name in self.maps:
            value.CopyFrom(helper.make_tensor_value_info(value.name, _FLOAT, None))
        elif value.type.WhichOneof("value") != "tensor_type":
            raise _NotNumbers

    def _node(self, node: NodeProto) -> None:
        if (node.domain, node.op_type) == (_ML, "ZipMap"):
            self._zip(node)
            return
        schema = self._schema(node)
        reads = {name for name in node.input if name in self.texts}
        reads |= {n for body in bodies(node) for n in names_read(body) if n in self.texts}
        makes = self._attributes(node, schema)
        if not (reads or makes):
            return
        if schema is None or any(True for _ in bodies(node)) or node.op_type == _CONVERTS:
            raise _NotNumbers
        kinds = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}
        formal = [*_formal(schema.inputs, len(node.input))]
        same = {kind for name, kind in zip(node.input, formal, strict=False) if name in reads}
        if any("tensor(int64)" not in kinds.get(kind, ()) for kind in same):
            raise _NotNumbers
        for name, kind in zip(node.output, _formal(schema.outputs, len(node.output)), strict=False):
            if kind in same or (makes and "tensor(string)" in kinds.get(kind, (kind,))):
                self.texts.add(name)

    def _schema(self, node: NodeProto) -> OpSchema | None:
        version = self.opsets.get(node.domain if node.domain != "ai.onnx" else "", 1)
        try:
            return onnx.defs.get_schema(node.op_type, version, node.domain)
        except onnx.defs.SchemaError:
            return None

    def _attributes(self, node: NodeProto, schema: OpSchema | None) -> bool:
        """Replace strings among the attributes of a node; whether results may be of them."""
        given = {a.name: a for a in node.attribute}
        replaced = {name: self._numbers(a, schema) for name, a in given.items()}
        found = {name: a for name, a in replaced.items() if a is not None}
        makes = any(name.startswith(_OF_RESULTS) for name in found)
        if "values_strings" in found:
            default = given.pop("default_string", None)
            word = helper.get_attribute_value(default) if default is not None else _UNUSED
            found["default"] = helper.make_attribute("default_int64", self.number(word))
            given.pop("default_int64", None)
        kept = [a for name, a in given.items() if name not in found]
        made = [*found.values()]
        if {a.name for a in kept} & {a.name for a in made}:
            raise _NotNumbers
        if found:
            changed = NodeProto()
            changed.CopyFrom(node)
            del changed.attribute[:]
            changed.attribute.extend([*kept, *made])
            node.CopyFrom(changed)
        return makes

    def _numbers(self, attribute: AttributeProto, schema: OpSchema | None) -> AttributeProto | None:
        """An attribute of numbers in place of one of strings."""
        name = attribute.name
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == _STRING:
            return helper.make_attribute(name, self._tensor(attribute.t))
        given: Any = helper.get_attribute_value(attribute)
        if name in ("value_string", "value_strings"):
            array = np.array(given, object)
            words = helper.make_tensor("", _STRING, array.shape, array.reshape(-1).tolist())
            return helper.make_attribute("value", self._tensor(words))
        if not name.endswith("_strings") or not given:
            return None
        known = schema.attributes if schema is not None else {}
        integers = (name.removesuffix("_strings") + end for end in ("_int64s", "_ints"))
        target = next((n for n in integers if n in known), None)
        if target is None:
            raise _NotNumbers
        return helper.make_attribute(target, [self.number(word) for word in given])

    def _zip(self, node: NodeProto) -> None:
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        words = attrs.get("classlabels_strings")
        numbers = [self.number(w) for w in words] if words else attrs.get("classlabels_int64s", ())
        name = node.output[0]
        is_result = any(end.name == name for end in self.graph.output)
        if not is_result or any(name in n.input for n in self.graph.node):
            raise _NotNumbers
        self.maps[name] = Keys(tuple(map(int, numbers)), bool(words))
        node.CopyFrom(helper.make_node("Identity", node.input[:1], [name], node.name))


def _formal(formal: Iterable[Any], n: int) -> Iterator[str]:
    """Type parameters of `n` operands or results, of which the last may stand for several."""
    last = ""
    for parameter in formal:
        last = parameter.type_str
        yield last
    for _ in range(n):
        yield last
