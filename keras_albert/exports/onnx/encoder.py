"""The encoder of a model as a graph of ONNX operations.

Letters: B batch, S sequence length, H hidden size, A heads, D = H / A.

This is the inference part of `modeling`. Nodes are written one by one and not
traced, so that the graph has nothing that a trace leaves behind, and ONNX
Runtime recognizes the operations that it fuses. If a model only reads [CLS],
its last layer is only computed for [CLS]: of 12 layers that saves a sixteenth.
"""

import functools
import math
import operator
from typing import NamedTuple

import keras
import numpy as np
import onnx
from keras import ops
from scipy.linalg import block_diag

from keras_albert.exports.onnx.graph_builder import Graph, Kernel
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import LAYER_NORM_EPSILON
from keras_albert.modeling.encoder import Block
from keras_albert.modeling.layers import MASKED_SCORE
from keras_albert.text.special_tokens import CLS_ID, PAD_ID, SEP_ID

INPUT = "token_ids"


class Inputs(NamedTuple):
    """The inputs of the encoder [B, S], computed from `token_ids`.

    They are computed as in `ServingGraph.rows_of_ids` of `tasks.graph`.
    """

    token_ids: str  # int32, with PAD_ID for padding
    is_padding: str  # bool
    segment_ids: str | None  # int64; None if all are 0
    positions: str  # int64 [S]

    @classmethod
    def of(cls, graph: Graph, width: int, reads_pairs: bool) -> "Inputs":
        """Adds the nodes that compute the inputs.

        Rows shorter than `width` get padding. With `reads_pairs`, tokens after
        the first [SEP] are segment 1.
        """
        add, constant = graph.add, graph.constant
        ids = INPUT
        # Some heads need a least number of tokens, such as the beam search of
        # SQuAD 2.0, whatever the length of the rows.
        if width > 1:
            length = add("Shape", ids, start=1)
            missing = add("Sub", constant([width]), length)
            missing = add("Max", missing, constant([0]))
            pads = add("Concat", constant([0, 0, 0]), missing, axis=0)
            ids = add("Pad", ids, pads, constant(PAD_ID, "int32"))
        length = add("Squeeze", add("Shape", ids, start=1))
        positions = add("Range", constant(0), length, constant(1))
        is_cls = add("Equal", ids, constant(CLS_ID, "int32"))
        is_first = add("Equal", positions, constant(0))
        is_pad = add("Equal", ids, constant(PAD_ID, "int32"))
        is_later_cls = add("And", is_cls, add("Not", is_first))
        is_padding = add("Or", is_pad, is_later_cls)
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


class EncoderWriter:
    """Adds an encoder to a graph, in parts that heads also use.

    Values of the graph are known by their names, strings.
    """

    def __init__(self, graph: Graph, model: AlbertModel):
        self.graph, self.model = graph, model
        self.config = model.config
        self.add, self.constant = graph.add, graph.constant

    def dense(self, layer: keras.layers.Dense, x: str, exact=False) -> str:
        """Adds a Dense layer; if `exact`, its kernel is not stored in int8."""
        kernel = array(layer.kernel)
        if exact:
            kernel = Kernel(self.constant(kernel), None)
        else:
            kernel = self.graph.kernel(kernel)
        y = self.graph.matmul(x, kernel)
        if layer.bias is None:
            return y
        return self.add("Add", y, self.constant(array(layer.bias)))

    def layer_norm(self, layer: keras.layers.LayerNormalization, x: str) -> str:
        weights = layer.gamma, layer.beta
        gamma, beta = (self.constant(array(each)) for each in weights)
        return self._normalized(gamma, beta, x)

    def first(self, x: str) -> str:
        """The first tokens: [B, S, ...] -> [B, 1, ...]."""
        return self.add("Slice", x, *map(self.constant, ([0], [1], [1])))

    def encoded(
        self, inputs: Inputs, first_only: bool, layers: int | None = None
    ) -> str:
        """The last layer, [B, S, H], or only its first tokens, [B, 1, H].

        `layers` is how many are computed, by default all.
        """
        x, bias = self.embedded(inputs)
        *others, last = self._blocks(layers)
        for block in others:
            x = self._block(block, x, bias)
        return self._block(last, x, bias, first_only)

    def layers(self, x: str, bias: str) -> list[str]:
        """The output of each layer, [B, S, H], for what `embedded` returns."""
        found = []
        for number, block in enumerate(self._blocks(), 1):
            x = self._block(block, x, bias)
            if number % self.config.inner_group_num == 0:
                found.append(x)
        return found

    def embedded(self, inputs: Inputs) -> tuple[str, str]:
        """What the layers read: vectors [B, S, H], and a bias [B, 1, 1, S].

        Attention adds the bias to its scores, so that padding gets none.
        """
        backbone: AlbertBackbone = self.model.backbone
        x = self._embedded(backbone.embeddings, inputs)
        masked, zero = self.constant(MASKED_SCORE), self.constant(0.0)
        bias = self.add("Where", inputs.is_padding, masked, zero)
        return x, self.add("Unsqueeze", bias, self.constant([1, 2]))

    def up_to_attention(self, x: str, bias: str) -> tuple[str, str]:
        """The first layer, of its last block only attention.

        Returns the input of that block and its context vectors, [B, S, H].
        """
        *others, last = self._blocks(1)
        for block in others:
            x = self._block(block, x, bias)
        return x, self._attention(last, x, bias)

    def rest_of_first_layer(self, x: str, context: str) -> str:
        """The rest of that block, of all tokens or of some of them."""
        return self._rest_of_block(self._blocks(1)[-1], x, context)

    def pooled(self, x: str) -> str:
        """The output of the pooler, [B, H], for the first tokens, [B, 1, H]."""
        x = self.add("Squeeze", x, self.constant([1]))
        return self.add("Tanh", self.dense(self.model.backbone.pooler, x))

    def _normalized(self, gamma: str, beta: str, x: str) -> str:
        return self.add(
            "LayerNormalization", x, gamma, beta, epsilon=LAYER_NORM_EPSILON
        )

    def _embedded(self, embeddings, inputs: Inputs) -> str:
        """The vectors that `modeling.layers.FactorizedEmbedding` computes."""
        segment = array(embeddings.segment.embeddings)
        position = array(embeddings.position.embeddings)
        # If all tokens are in segment 0, its vector is the same for each of
        # them, and is added to the positions now and not at every call.
        if inputs.segment_ids is None:
            position = position + segment[0]
        x = self.graph.rows(array(embeddings.word.embeddings), inputs.token_ids)
        rows = self.constant(position)
        x = self.add("Add", x, self.add("Gather", rows, inputs.positions))
        if inputs.segment_ids is not None:
            rows = self.constant(segment)
            x = self.add("Add", x, self.add("Gather", rows, inputs.segment_ids))
        x = self.layer_norm(embeddings.layer_norm, x)
        if embeddings.projection is not None:
            x = self.dense(embeddings.projection, x)
        return x

    def _blocks(self, layers: int | None = None) -> list[dict]:
        """The weights of each block in turn; shared ones are stored once.

        `layers` is how many of them have their blocks in the list.
        """
        encoder = self.model.backbone.encoder
        shared, own = (
            [[self._stored(block) for block in row] for row in rows]
            for rows in (encoder.shared, encoder.own)
        )
        found = []
        for layer in range(layers or self.config.num_hidden_layers):
            group = self.config.group_of(layer)
            parts = filter(None, (shared[group], own[layer]))
            found += [
                functools.reduce(operator.or_, block)
                for block in zip(*parts, strict=True)
            ]
        return found

    def _stored(self, block: Block) -> dict:
        """The constants of `Block.tensors`, the query scaled by D ** -0.5."""
        # The scores of attention are divided by the square root of D. Scaling
        # the weights of the query instead saves an operation on [B, A, S, S].
        tensors = keras.tree.map_structure(array, block.tensors())
        size = self.config.hidden_size
        scale = (size // self.config.num_attention_heads) ** -0.5
        if "attention" in tensors:
            for each in tensors["attention"]["qkv"].values():
                each[..., :size] *= scale
        # Of a low-rank term x A B only B is scaled; its first matrix is that of
        # the query.
        if "attention_delta" in tensors:
            tensors["attention_delta"]["qkv"]["b"][0] *= scale

        def stored(part: dict):
            if "a" in part:
                return _low_rank(self.graph, part)
            if "kernel" in part:
                bias = self.constant(part["bias"])
                return self.graph.kernel(part["kernel"]), bias
            return {name: self.constant(value) for name, value in part.items()}

        return {
            half: {name: stored(part) for name, part in parts.items()}
            for half, parts in tensors.items()
        }

    def _linear(self, weights: dict, half: str, name: str, x: str) -> str:
        kernel, bias = weights[half][name]
        y = self.add("Add", self.graph.matmul(x, kernel), bias)
        delta = weights.get(f"{half}_delta", {}).get(name)
        if delta is None:
            return y
        for each in delta:
            x = self.add("MatMul", x, each)
        return self.add("Add", y, x)

    def _block(self, weights, x: str, bias: str, first_only=False) -> str:
        """Computes `modeling.encoder.block`: [B, S, H] -> [B, S, H].

        With `first_only`, the result is that of the first token, [B, 1, H].
        """
        context = self._attention(weights, x, bias, first_only)
        if first_only:
            x = self.first(x)
        return self._rest_of_block(weights, x, context)

    def _rest_of_block(self, weights, x: str, context: str) -> str:
        """Computes `modeling.encoder.rest_of_block`."""
        output = self._linear(weights, "attention", "output", context)
        x = self._summed(weights["attention"], x, output)
        inner = self._linear(weights, "feed_forward", "intermediate", x)
        inner = _ACTIVATIONS[self.config.hidden_act](self.graph, inner)
        output = self._linear(weights, "feed_forward", "output", inner)
        return self._summed(weights["feed_forward"], x, output)

    def _summed(self, half: dict, x: str, output: str) -> str:
        norm, x = half["layer_norm"], self.add("Add", output, x)
        return self._normalized(norm["gamma"], norm["beta"], x)

    def _attention(self, weights, x: str, bias: str, first_only=False) -> str:
        """The context vectors of all heads, side by side, [B, S, H]."""
        heads, hidden = self.config.num_attention_heads, self.config.hidden_size
        qkv = self._linear(weights, "attention", "qkv", x)
        sizes = self.constant([hidden] * 3)
        query, key, value = self.add("Split", qkv, sizes, outputs=3, axis=2)
        # Keys and values are needed for all tokens, as [CLS] attends to them.
        if first_only:
            query = self.first(query)
        # In the shape of ONNX's Reshape, 0 copies the size of the input's axis:
        # B and S are only known at a call.
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


def _low_rank(graph: Graph, part: dict) -> tuple[str, str]:
    """The two kernels of `modeling.layers._low_rank`, A and B.

    The second one is a single matrix, with the n matrices of B on its diagonal,
    so that one product computes all of them.
    """
    diagonal = block_diag(*part["b"])  # of [n, R, O]
    return graph.constant(part["a"]), graph.constant(diagonal)


def _gelu(graph: Graph, x: str) -> str:
    """The tanh form, in the order of operations that ONNX Runtime fuses."""
    add, constant = graph.add, graph.constant
    cube = add("Pow", x, constant(3.0))
    inner = add("Add", x, add("Mul", cube, constant(0.044715)))
    inner = add("Mul", inner, constant(math.sqrt(2 / math.pi)))
    upper = add("Add", add("Tanh", inner), constant(1.0))
    return add("Mul", add("Mul", x, constant(0.5)), upper)


def _gelu_erf(graph: Graph, x: str) -> str:
    add, constant = graph.add, graph.constant
    inner = add("Div", x, constant(math.sqrt(2)))
    upper = add("Add", add("Erf", inner), constant(1.0))
    return add("Mul", add("Mul", x, upper), constant(0.5))


_ACTIVATIONS = {  # by the names of modeling.layers.ACTIVATIONS
    "gelu": _gelu,
    "gelu_new": _gelu,
    "gelu_erf": _gelu_erf,
    "relu": lambda graph, x: graph.add("Relu", x),
}


def array(tensor) -> np.ndarray:
    """A tensor of any backend as float32."""
    return np.array(ops.convert_to_numpy(tensor), "float32")
