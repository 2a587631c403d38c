"""A model with a head as a graph of ONNX operations.

Letters: B batch, S sequence length, H hidden size, K beam.
"""

from collections.abc import Callable

import numpy as np
import onnx
from scipy.special import softmax

from keras_albert.errors import AlbertError
from keras_albert.exports.onnx.early_exit import early_outputs
from keras_albert.exports.onnx.encoder import (
    INPUT,
    EncoderWriter,
    Inputs,
    array,
)
from keras_albert.exports.onnx.graph_builder import Graph
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from keras_albert.modeling.config import IDF_FIRST_LAST
from keras_albert.modeling.pooling import LEAST_SUM, PADDED
from keras_albert.modeling.question_answering import (
    IMPOSSIBLE,
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.modeling.weight_checks import check_not_quantized
from keras_albert.tasks.config import EarlyExit
from keras_albert.tasks.early_exit import check_can_export
from keras_albert.text.special_tokens import SEP_ID

BATCH, LENGTH = "batch", "length"  # the sizes that the file leaves open

# by name: the value in the graph, its dtype and its shape
GraphOutputs = dict[str, tuple[str, str, tuple]]


def onnx_model(
    model: AlbertModel,
    reads_pairs: bool,
    int8: bool,
    early_exit: EarlyExit | None = None,
) -> onnx.ModelProto:
    """A function from `token_ids`, int32 [B, S], to the outputs of the model.

    Padding and segments are derived from the ids; with `reads_pairs`, tokens
    after the first [SEP] are segment 1. For multiple choice each choice is a
    row of its own, with logits [B, 1]. `int8` stores kernels and word
    embeddings in 8 bits, except heads that are a single small kernel. With
    `early_exit`, the output `layers`, int32 [B], says how many were needed.
    """
    head = _HEADS.get(type(model))
    if head is None:
        known = ", ".join(each.__name__ for each in _HEADS)
        raise AlbertError(
            f"only a model of {known} becomes an ONNX file. Received: "
            f"{type(model).__name__}. Put such a head on it, or average the "
            "weights of several models (--average weights)."
        )
    check_not_quantized(model)
    graph = Graph(int8)
    inputs = Inputs.of(graph, getattr(model, "beam", 1), reads_pairs)
    writer = EncoderWriter(graph, model)
    if early_exit is None:
        outputs = head(writer, inputs)
    else:
        check_can_export(model)
        logits, layers = early_outputs(writer, inputs, early_exit)
        outputs = {
            "logits": (logits, "float32", (BATCH, model.num_labels)),
            "layers": (layers, "int32", (BATCH,)),
        }
    return graph.model({INPUT: ("int32", (BATCH, LENGTH))}, outputs)


def _classify(writer: EncoderWriter, inputs: Inputs) -> GraphOutputs:
    """The logits of a classifier of texts, or of choices as rows."""
    classifier = writer.model.classifier
    pooled = writer.pooled(writer.encoded(inputs, first_only=True))
    logits = writer.dense(classifier, pooled, exact=True)
    return {"logits": (logits, "float32", (BATCH, classifier.units))}


def _classify_tokens(writer: EncoderWriter, inputs: Inputs) -> GraphOutputs:
    """The logits of AlbertForTokenClassification."""
    classifier = writer.model.classifier
    x = writer.encoded(inputs, first_only=False)
    logits = writer.dense(classifier, x, exact=True)
    return {"logits": (logits, "float32", (BATCH, LENGTH, classifier.units))}


def _embed(writer: EncoderWriter, inputs: Inputs) -> GraphOutputs:
    """The vectors of AlbertForTextEmbedding."""
    add, constant, model = writer.add, writer.constant, writer.model
    is_first = model.pooling == "cls"
    if model.pooling == IDF_FIRST_LAST:
        first, bias = writer.embedded(inputs)
        x = add("Concat", first, writer.layers(first, bias)[-1], axis=2)
    elif model.layer_weights is None:
        x = writer.encoded(inputs, first_only=is_first)
    else:
        shares = softmax(array(model.layer_weights)).tolist()
        layers = writer.layers(*writer.embedded(inputs))
        x = add("Sum", *(
            add("Mul", layer, constant(share))
            for layer, share in zip(layers, shares, strict=True)
        ))  # fmt: skip
    is_padding = add("Unsqueeze", inputs.is_padding, constant([2]))
    axis = constant([1])
    if is_first:
        vector = add("Squeeze", writer.first(x), axis)
    elif model.pooling == "max":
        x = add("Where", is_padding, constant(PADDED), x)
        vector = add("ReduceMax", x, axes=[1], keepdims=0)
    else:
        mask = add("Not", is_padding)
        mask = add("Cast", mask, to=onnx.TensorProto.FLOAT)
        if model.token_weights is not None:
            weights = constant(array(model.token_weights))
            weights = add("Gather", weights, inputs.token_ids)
            mask = add("Mul", mask, add("Unsqueeze", weights, constant([2])))
        total = add("ReduceSum", add("Mul", x, mask), axis, keepdims=0)
        count = add("ReduceSum", mask, axis, keepdims=0)
        vector = add("Div", total, add("Max", count, constant(LEAST_SUM)))
    if model.projection is not None:
        vector = writer.dense(model.projection, vector, exact=True)
    if model.normalize:
        vector = add("LpNormalization", vector, axis=1, p=2)
    return {"embedding": (vector, "float32", (BATCH, model.size))}


def _spans(writer: EncoderWriter, inputs: Inputs) -> GraphOutputs:
    """The logits of start and end of AlbertForQuestionAnswering."""
    x = writer.encoded(inputs, first_only=False)
    both = writer.dense(writer.model.span, x, exact=True)
    both = writer.add("Split", both, outputs=2, axis=2)
    axis = writer.constant([2])
    return {
        name: (writer.add("Squeeze", each, axis), "float32", (BATCH, LENGTH))
        for name, each in zip(("start", "end"), both, strict=True)
    }


def _beam(writer: EncoderWriter, inputs: Inputs) -> GraphOutputs:
    """The outputs of AlbertForQuestionAnsweringV2 for predictions."""
    add, constant, model = writer.add, writer.constant, writer.model
    x = writer.encoded(inputs, first_only=False)
    answerable = _answerable(writer, inputs)
    start = writer.dense(model.start, x, exact=True)
    start = _masked(writer, start, answerable)  # [B, S]
    start_scores, start_index = _best(writer, start)  # [B, K]
    # The kernel is applied to the two halves of [x, start] separately, so that
    # each token is only read once, and not for each start.
    kernels = np.split(array(model.end_dense.kernel), 2)
    index = add("Unsqueeze", start_index, constant([2]))
    starts = add("GatherND", x, index, batch_dims=1)  # [B, K, H]
    of_x, of_starts = (
        writer.graph.matmul(vectors, writer.graph.kernel(kernel))
        for vectors, kernel in zip((x, starts), kernels, strict=True)
    )
    of_x = add("Unsqueeze", of_x, constant([1]))
    of_starts = add("Unsqueeze", of_starts, constant([2]))
    hidden = add("Add", of_x, of_starts)  # [B, K, S, H]
    bias = constant(array(model.end_dense.bias))
    hidden = add("Tanh", add("Add", hidden, bias))
    hidden = writer.layer_norm(model.end_layer_norm, hidden)
    end = writer.dense(model.end, hidden, exact=True)
    end = _masked(writer, end, add("Unsqueeze", answerable, constant([1])))
    end_scores, end_index = _best(writer, end)  # [B, K, K]
    starts, ends = (BATCH, model.beam), (BATCH, model.beam, model.beam)
    int32 = {"to": onnx.TensorProto.INT32}
    answer_class = _answer_class(writer, x, start)
    return {
        "start_top_log_probs": (start_scores, "float32", starts),
        "start_top_index": (add("Cast", start_index, **int32), "int32", starts),
        "end_top_log_probs": (end_scores, "float32", ends),
        "end_top_index": (add("Cast", end_index, **int32), "int32", ends),
        "answer_class": (answer_class, "float32", (BATCH, 1)),
    }


def _answerable(writer: EncoderWriter, inputs: Inputs) -> str:
    """Whether an answer may begin or end at a token, bool [B, S]."""
    add, constant = writer.add, writer.constant
    is_sep = add("Equal", inputs.token_ids, constant(SEP_ID, "int32"))
    is_second = add("Equal", inputs.segment_ids, constant(1))
    in_context = add("And", is_second, add("Not", is_sep))
    is_first = add("Equal", inputs.positions, constant(0))
    return add("Or", in_context, is_first)


def _masked(writer: EncoderWriter, logits: str, answerable: str) -> str:
    """Logits [..., S, 1] -> [..., S], IMPOSSIBLE unless answerable."""
    logits = writer.add("Squeeze", logits, writer.constant([-1]))
    return writer.add("Where", answerable, logits, writer.constant(IMPOSSIBLE))


def _best(writer: EncoderWriter, logits: str) -> list[str]:
    """The log-probabilities and positions (int64) of the K best."""
    scores = writer.add("LogSoftmax", logits, axis=-1)
    return writer.add(
        "TopK", scores, writer.constant([writer.model.beam]), outputs=2
    )


def _answer_class(writer: EncoderWriter, x: str, start: str) -> str:
    add, axis = writer.add, writer.constant([1])
    probs = add("Unsqueeze", add("Softmax", start, axis=-1), axis)
    expected = add("MatMul", probs, x)  # [B, 1, H]
    both = add("Concat", expected, writer.first(x), axis=2)
    both = add("Squeeze", both, axis)
    hidden = add("Tanh", writer.dense(writer.model.answer_dense, both))
    return writer.dense(writer.model.answer, hidden, exact=True)


_HEADS: dict[type, Callable[[EncoderWriter, Inputs], GraphOutputs]] = {
    AlbertForSequenceClassification: _classify,
    AlbertForMultipleChoice: _classify,
    AlbertForTokenClassification: _classify_tokens,
    AlbertForTextEmbedding: _embed,
    AlbertForQuestionAnswering: _spans,
    AlbertForQuestionAnsweringV2: _beam,
}
