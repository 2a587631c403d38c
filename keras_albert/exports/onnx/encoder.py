"""A fine-tuned model as a graph of ONNX operations.

Letters: B batch, S sequence length, H hidden size, A heads, D = H / A, L
layers, C labels, K beam.

The twin of `modeling`, for inference: what is in parentheses below is what it
equals. Written directly and not traced, so that nothing is in it that a trace
leaves behind, and that ONNX Runtime finds what it fuses. Of a model that reads
[CLS] alone the last layer is computed there alone: of 12 layers that saves a
sixteenth.

Import this module only to export or to test: it imports onnx.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import onnx
from keras import ops

from keras_albert.errors import AlbertError
from keras_albert.exports.onnx.graph_builder import Graph, Kernel
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel, check_not_quantized
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from keras_albert.modeling.config import LAYER_NORM_EPSILON
from keras_albert.modeling.encoder import MASKED_SCORE, Block
from keras_albert.modeling.question_answering import (
    IMPOSSIBLE,
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.text.special_tokens import CLS_ID, PAD_ID, SEP_ID

INPUT = "token_ids"
BATCH, LENGTH = "batch", "length"  # sizes that the file leaves open

Outputs = dict[str, tuple[str, str, tuple]]
"""of each its value, dtype and shape"""


def onnx_model(
    model: AlbertModel, reads_pairs: bool, int8: bool
) -> onnx.ModelProto:
    """`token_ids` int32 [B, S] -> what the model gives, by name.

    Padding and segments are found in the ids, see `serving.token_ids`; of a
    model of choices each is a row of its own, with logits [B, 1].

    Args:
        model: with the head of a task, on any backend.
        reads_pairs: whether what stands behind the first [SEP] is segment 1.
        int8: store kernels and the word embeddings in 8 bits. Heads that are
            one small kernel stay as they are.

    Raises:
        AlbertError: a model without such a head, or one that Keras quantized.
    """
    head = _HEADS.get(type(model))
    if head is None:
        known = ", ".join(each.__name__ for each in _HEADS)
        raise AlbertError(
            f"only a model of {known} becomes an ONNX file. Received: "
            f"{type(model).__name__}. Put such a head on it."
        )
    check_not_quantized(model)
    graph = Graph(int8)
    width = getattr(model, "beam", 1)
    inputs = _Inputs.of(graph, width, reads_pairs)
    outputs = head(_Writer(graph, model), inputs)
    return graph.model({INPUT: ("int32", (BATCH, LENGTH))}, outputs)


class _Inputs(NamedTuple):
    """(serving.token_ids); [B, S]"""

    token_ids: str
    """int32, PAD_ID where padding is"""
    is_padding: str
    """bool"""
    segment_ids: str | None
    """int64; None: all of them 0"""
    positions: str
    """int64 [S]"""

    @classmethod
    def of(cls, graph: Graph, width: int, reads_pairs: bool) -> "_Inputs":
        add, constant = graph.add, graph.constant
        ids = INPUT
        if width > 1:  # what is shorter gets padding
            length = add("Shape", ids, start=1)
            missing = add("Sub", constant([width]), length)
            missing = add("Max", missing, constant([0]))
            pads = add("Concat", constant([0, 0, 0]), missing, axis=0)
            ids = add("Pad", ids, pads, constant(PAD_ID, "int32"))
        length = add("Squeeze", add("Shape", ids, start=1))
        positions = add("Range", constant(0), length, constant(1))
        is_cls = add("Equal", ids, constant(CLS_ID, "int32"))
        is_first = add("Equal", positions, constant(0))
        is_padding = add(
            "Or",
            add("Equal", ids, constant(PAD_ID, "int32")),
            add("And", is_cls, add("Not", is_first)),
        )
        ids = add("Where", is_padding, constant(PAD_ID, "int32"), ids)
        segment_ids = None
        if reads_pairs:
            is_sep = add("Equal", ids, constant(SEP_ID, "int32"))
            is_sep = add("Cast", is_sep, to=onnx.TensorProto.INT32)
            seen = add("CumSum", is_sep, constant(1), exclusive=1)
            behind = add("Greater", seen, constant(0, "int32"))
            behind = add("And", behind, add("Not", is_padding))
            segment_ids = add("Cast", behind, to=onnx.TensorProto.INT64)
        return cls(ids, is_padding, segment_ids, positions)


class _Writer:
    """The parts of a model, in a graph.

    Args:
        graph: gets the nodes.
        model: with a head.
    """

    def __init__(self, graph: Graph, model: AlbertModel):
        self.graph, self.model = graph, model
        self.config = model.config
        self.add, self.constant = graph.add, graph.constant

    # Layers.

    def dense(self, layer: keras.layers.Dense, x: str, exact=False) -> str:
        """A layer that is used once; `exact`: never in 8 bits."""
        kernel = _array(layer.kernel)
        stored = (
            Kernel(self.constant(kernel), None)
            if exact
            else self.graph.kernel(kernel)
        )
        y = self.graph.matmul(x, stored)
        if layer.bias is None:
            return y
        return self.add("Add", y, self.constant(_array(layer.bias)))

    def normalize(self, gamma: str, beta: str, x: str) -> str:
        """(normalize)"""
        return self.add(
            "LayerNormalization", x, gamma, beta, epsilon=LAYER_NORM_EPSILON
        )

    def layer_norm(self, layer: keras.layers.LayerNormalization, x: str) -> str:
        """A layer that is used once."""
        return self.normalize(
            self.constant(_array(layer.gamma)),
            self.constant(_array(layer.beta)),
            x,
        )

    def first(self, x: str) -> str:
        """[B, S, ...] -> [B, 1, ...]"""
        return self.add("Slice", x, *map(self.constant, ([0], [1], [1])))

    # The encoder.

    def encoded(self, inputs: _Inputs, first_only: bool) -> str:
        """The last layer, [B, S, H]; or of the first tokens, [B, 1, H]."""
        backbone: AlbertBackbone = self.model.backbone
        x = self._embedded(backbone.embeddings, inputs)
        bias = self.add(
            "Where",
            inputs.is_padding,
            self.constant(MASKED_SCORE),
            self.constant(0.0),
        )
        bias = self.add("Unsqueeze", bias, self.constant([1, 2]))
        *others, last = self._blocks()
        for block in others:
            x = self._block(block, x, bias)
        return self._block(last, x, bias, first_only)

    def pooled(self, inputs: _Inputs) -> str:
        """[B, H]"""
        x = self.encoded(inputs, first_only=True)
        x = self.add("Squeeze", x, self.constant([1]))
        return self.add("Tanh", self.dense(self.model.backbone.pooler, x))

    def _embedded(self, embeddings, inputs: _Inputs) -> str:
        """(FactorizedEmbedding)"""
        segment = _array(embeddings.segment.embeddings)
        position = _array(embeddings.position.embeddings)
        if inputs.segment_ids is None:
            position = position + segment[0]
        x = self.graph.rows(
            _array(embeddings.word.embeddings), inputs.token_ids
        )
        x = self.add(
            "Add",
            x,
            self.add("Gather", self.constant(position), inputs.positions),
        )
        if inputs.segment_ids is not None:
            rows = self.constant(segment)
            x = self.add("Add", x, self.add("Gather", rows, inputs.segment_ids))
        x = self.layer_norm(embeddings.layer_norm, x)
        if embeddings.projection is not None:
            x = self.dense(embeddings.projection, x)
        return x

    def _blocks(self) -> list[dict]:
        """The weights of each block in turn, stored once (SharedEncoder)."""
        encoder, config = self.model.backbone.encoder, self.config
        shared, own = (
            [
                [self._stored(self._tensors(block)) for block in row]
                for row in rows
            ]
            for rows in (encoder.shared, encoder.own)
        )
        found = []
        for layer in range(config.num_hidden_layers):
            parts = [
                row
                for row in (shared[config.group_of(layer)], own[layer])
                if row
            ]
            found += [
                functools.reduce(operator.or_, block)
                for block in zip(*parts, strict=True)
            ]
        return found

    def _tensors(self, block: Block) -> dict:
        """`Block.tensors` as arrays, the query scaled by D ** -0.5."""
        tensors = keras.tree.map_structure(_array, block.tensors())
        size = self.config.hidden_size
        scale = (size // self.config.num_attention_heads) ** -0.5
        if "attention" in tensors:
            for each in tensors["attention"]["qkv"].values():
                each[..., :size] *= scale
        if "attention_delta" in tensors:
            tensors["attention_delta"]["qkv"]["b"][0] *= scale
        return tensors

    def _stored(self, block: dict) -> dict:
        """`Block.tensors` with what `_linear` and `normalize` take."""

        def kept(part: dict):
            if "kernel" in part:
                bias = self.constant(part["bias"])
                return self.graph.kernel(part["kernel"]), bias
            return {name: self.constant(value) for name, value in part.items()}

        return {
            half: {
                name: self._low_rank(part) if "a" in part else kept(part)
                for name, part in parts.items()
            }
            for half, parts in block.items()
        }

    def _low_rank(self, part: dict) -> tuple[str, str]:
        """(_low_rank) as two kernels: the second one has B on its diagonal."""
        b = part["b"]  # [n, R, O]
        count, rank, size = b.shape
        diagonal = np.zeros((count, rank, count, size), b.dtype)
        diagonal[range(count), :, range(count)] = b
        return (
            self.constant(part["a"]),
            self.constant(diagonal.reshape(count * rank, count * size)),
        )

    def _linear(self, weights: dict, half: str, name: str, x: str) -> str:
        """(linear)"""
        kernel, bias = weights[half][name]
        y = self.add("Add", self.graph.matmul(x, kernel), bias)
        delta = weights.get(f"{half}_delta", {}).get(name)
        if delta is None:
            return y
        for each in delta:
            x = self.add("MatMul", x, each)
        return self.add("Add", y, x)

    def _block(self, weights, x: str, bias: str, first_only=False) -> str:
        """(block): [B, S, H] -> [B, S, H], or [B, 1, H] of the first tokens."""
        context = self._attention(weights, x, bias, first_only)
        if first_only:
            x = self.first(x)
        output = self._linear(weights, "attention", "output", context)
        x = self._summed(weights["attention"], x, output)
        inner = self._linear(weights, "feed_forward", "intermediate", x)
        inner = _ACTIVATIONS[self.config.hidden_act](self, inner)
        output = self._linear(weights, "feed_forward", "output", inner)
        return self._summed(weights["feed_forward"], x, output)

    def _summed(self, half: dict, x: str, output: str) -> str:
        return self.normalize(
            half["layer_norm"]["gamma"],
            half["layer_norm"]["beta"],
            self.add("Add", output, x),
        )

    def _attention(self, weights, x: str, bias: str, first_only: bool) -> str:
        """What heads see, side by side; the query is scaled already."""
        heads, hidden = self.config.num_attention_heads, self.config.hidden_size
        query, key, value = self.add(
            "Split",
            self._linear(weights, "attention", "qkv", x),
            self.constant([hidden] * 3),
            outputs=3,
            axis=2,
        )
        if first_only:
            query = self.first(query)
        shape = self.constant([0, 0, heads, hidden // heads])
        query, key, value = (
            self.add("Transpose", self.add("Reshape", each, shape), perm=perm)
            for each, perm in (
                (query, [0, 2, 1, 3]),  # [B, A, S, D]
                (key, [0, 2, 3, 1]),  # [B, A, D, S]
                (value, [0, 2, 1, 3]),
            )
        )
        scores = self.add("Add", self.add("MatMul", query, key), bias)
        probs = self.add("Softmax", scores, axis=-1)  # [B, A, S, S]
        context = self.add("MatMul", probs, value)
        context = self.add("Transpose", context, perm=[0, 2, 1, 3])
        return self.add("Reshape", context, self.constant([0, 0, hidden]))

    # Activations.

    def gelu(self, x: str) -> str:
        """The tanh form, in the order that ONNX Runtime knows."""
        cube = self.add("Pow", x, self.constant(3.0))
        inner = self.add("Mul", cube, self.constant(0.044715))
        inner = self.add("Add", x, inner)
        inner = self.add("Mul", inner, self.constant(math.sqrt(2 / math.pi)))
        upper = self.add("Add", self.add("Tanh", inner), self.constant(1.0))
        return self.add("Mul", self.add("Mul", x, self.constant(0.5)), upper)

    def gelu_erf(self, x: str) -> str:
        """The exact form."""
        inner = self.add("Div", x, self.constant(math.sqrt(2)))
        upper = self.add("Add", self.add("Erf", inner), self.constant(1.0))
        return self.add("Mul", self.add("Mul", x, upper), self.constant(0.5))

    def relu(self, x: str) -> str:
        """max(x, 0)"""
        return self.add("Relu", x)

    # Heads.

    def classify(self, inputs: _Inputs) -> Outputs:
        """(AlbertForSequenceClassification, AlbertForMultipleChoice)"""
        classifier = self.model.classifier
        logits = self.dense(classifier, self.pooled(inputs), exact=True)
        return {"logits": (logits, "float32", (BATCH, classifier.units))}

    def classify_tokens(self, inputs: _Inputs) -> Outputs:
        """(AlbertForTokenClassification)"""
        classifier = self.model.classifier
        x = self.encoded(inputs, first_only=False)
        logits = self.dense(classifier, x, exact=True)
        return {
            "logits": (logits, "float32", (BATCH, LENGTH, classifier.units))
        }

    def embed(self, inputs: _Inputs) -> Outputs:
        """(AlbertForTextEmbedding)"""
        is_first = self.model.pooling == "cls"
        x = self.encoded(inputs, first_only=is_first)
        if is_first:
            vector = self.add("Squeeze", self.first(x), self.constant([1]))
        else:
            mask = self.add("Not", inputs.is_padding)
            mask = self.add("Cast", mask, to=onnx.TensorProto.FLOAT)
            mask = self.add("Unsqueeze", mask, self.constant([2]))
            axis = self.constant([1])
            total = self.add(
                "ReduceSum", self.add("Mul", x, mask), axis, keepdims=0
            )
            count = self.add("ReduceSum", mask, axis, keepdims=0)
            count = self.add("Max", count, self.constant(1.0))
            vector = self.add("Div", total, count)
        shape = (BATCH, self.model.config.hidden_size)
        return {"embedding": (vector, "float32", shape)}

    def spans(self, inputs: _Inputs) -> Outputs:
        """(AlbertForQuestionAnswering)"""
        x = self.encoded(inputs, first_only=False)
        both = self.dense(self.model.span, x, exact=True)
        both = self.add("Split", both, outputs=2, axis=2)
        return {
            name: (
                self.add("Squeeze", each, self.constant([2])),
                "float32",
                (BATCH, LENGTH),
            )
            for name, each in zip(("start", "end"), both, strict=True)
        }

    def beam(self, inputs: _Inputs) -> Outputs:
        """(AlbertForQuestionAnsweringV2)"""
        model, beam = self.model, self.model.beam
        x = self.encoded(inputs, first_only=False)
        answerable = self._answerable(inputs)
        start = self.dense(model.start, x, exact=True)
        start = self._masked(start, answerable)  # [B, S]
        start_scores, start_index = self._best(start)  # [B, K]
        # Of [x, start] the two halves of the kernel on their own, so that no
        # token is read again for each start.
        kernels = np.split(_array(model.end_dense.kernel), 2)
        index = self.add("Unsqueeze", start_index, self.constant([2]))
        starts = self.add("GatherND", x, index, batch_dims=1)  # [B, K, H]
        of_x, of_starts = (
            self.graph.matmul(vectors, self.graph.kernel(kernel))
            for vectors, kernel in zip((x, starts), kernels, strict=True)
        )
        hidden = self.add(
            "Add",
            self.add("Unsqueeze", of_x, self.constant([1])),
            self.add("Unsqueeze", of_starts, self.constant([2])),
        )  # [B, K, S, H]
        bias = self.constant(_array(model.end_dense.bias))
        hidden = self.add("Tanh", self.add("Add", hidden, bias))
        hidden = self.layer_norm(model.end_layer_norm, hidden)
        end = self._masked(
            self.dense(model.end, hidden, exact=True),
            self.add("Unsqueeze", answerable, self.constant([1])),
        )
        end_scores, end_index = self._best(end)  # [B, K, K]
        return {
            "start_top_log_probs": (start_scores, "float32", (BATCH, beam)),
            "start_top_index": (
                self._int32(start_index), "int32", (BATCH, beam)
            ),
            "end_top_log_probs": (end_scores, "float32", (BATCH, beam, beam)),
            "end_top_index": (
                self._int32(end_index), "int32", (BATCH, beam, beam)
            ),
            "answer_class": (
                self._answer_class(x, start), "float32", (BATCH, 1)
            ),
        }  # fmt: skip

    def _answerable(self, inputs: _Inputs) -> str:
        """bool [B, S]"""
        is_sep = self.add(
            "Equal", inputs.token_ids, self.constant(SEP_ID, "int32")
        )
        in_context = self.add(
            "And",
            self.add("Equal", inputs.segment_ids, self.constant(1)),
            self.add("Not", is_sep),
        )
        is_first = self.add("Equal", inputs.positions, self.constant(0))
        return self.add("Or", in_context, is_first)

    def _masked(self, logits: str, answerable: str) -> str:
        """[..., S, 1] -> [..., S]"""
        logits = self.add("Squeeze", logits, self.constant([-1]))
        return self.add("Where", answerable, logits, self.constant(IMPOSSIBLE))

    def _best(self, logits: str) -> list[str]:
        """Log-probabilities and positions, int64, of the best."""
        return self.add(
            "TopK",
            self.add("LogSoftmax", logits, axis=-1),
            self.constant([self.model.beam]),
            outputs=2,
        )

    def _answer_class(self, x: str, start: str) -> str:
        """[B, 1]"""
        probs = self.add("Softmax", start, axis=-1)
        probs = self.add("Unsqueeze", probs, self.constant([1]))
        expected = self.add("MatMul", probs, x)  # [B, 1, H]
        both = self.add("Concat", expected, self.first(x), axis=2)
        both = self.add("Squeeze", both, self.constant([1]))
        hidden = self.add("Tanh", self.dense(self.model.answer_dense, both))
        return self.dense(self.model.answer, hidden, exact=True)

    def _int32(self, x: str) -> str:
        return self.add("Cast", x, to=onnx.TensorProto.INT32)


_Head = Callable[[_Writer, _Inputs], Outputs]
_HEADS: dict[type, _Head] = {
    AlbertForSequenceClassification: _Writer.classify,
    AlbertForMultipleChoice: _Writer.classify,
    AlbertForTokenClassification: _Writer.classify_tokens,
    AlbertForTextEmbedding: _Writer.embed,
    AlbertForQuestionAnswering: _Writer.spans,
    AlbertForQuestionAnsweringV2: _Writer.beam,
}
# As modeling/layers.py, ACTIVATIONS.
_ACTIVATIONS = {
    "gelu": _Writer.gelu,
    "gelu_new": _Writer.gelu,
    "gelu_erf": _Writer.gelu_erf,
    "relu": _Writer.relu,
}


def _array(tensor) -> np.ndarray:
    return np.array(ops.convert_to_numpy(tensor), "float32")
