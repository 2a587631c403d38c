"""A model with exits as ONNX operations: layers until every row has its answer.

Letters: B batch, R rows that go on, C labels, K numbers that make an answer: 1,
or C with several labels.
"""

import onnx

from keras_albert.exports.onnx.encoder import EncoderWriter, Inputs, array
from keras_albert.exports.onnx.graph_builder import Graph
from keras_albert.modeling.exits import classifiers_of
from keras_albert.tasks.config import EarlyExit

FLOAT, INT32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32


def early_outputs(
    writer: EncoderWriter, inputs: Inputs, rule: EarlyExit
) -> tuple[str, str]:
    """Adds a loop; `logits` float32 [B, C], and `layers` needed, int32 [B].

    Rows that have their answer leave the loop (tasks.early_exit_graph).
    """
    add, constant, model = writer.add, writer.constant, writer.model
    kernels, biases = (constant(array(each)) for each in classifiers_of(model))
    x, bias = writer.embedded(inputs)
    batch = add("Shape", x, end=1)
    rows = add("Range", constant(0), add("Squeeze", batch), constant(1))
    labels = model.num_labels
    width = labels if model.problem == "multi_label" else 1

    def zeros(columns: int) -> str:
        shape = add("Concat", batch, constant([columns]), axis=0)
        return add("Expand", constant(0.0), shape)

    none = add("Expand", constant(0, "int32"), batch)

    def step(state, number):
        x = writer.first_layer(state["x"], state["bias"])
        pooled = writer.pooled(writer.first(x))
        logits = add("MatMul", pooled, add("Gather", kernels, number))
        logits = add("Add", logits, add("Gather", biases, number))
        stops, answers, agreements = _stops_after(
            writer.graph, rule, model.problem, number, logits, state
        )
        kept = add("Squeeze", add("NonZero", add("Not", stops)), constant([0]))
        going_on = {
            "x": x,
            "bias": state["bias"],
            "rows": state["rows"],
            "answers": answers,
            "agreements": agreements,
        }
        places = add("Unsqueeze", state["rows"], constant([1]))
        layer = add("Cast", add("Add", number, constant(1)), to=INT32)
        layers = add("Expand", layer, add("Shape", stops))
        some = add("Greater", add("Size", kept), constant(0))
        return {
            **{name: add("Gather", v, kept) for name, v in going_on.items()},
            "logits": add("ScatterND", state["logits"], places, logits),
            "layers": add("ScatterND", state["layers"], places, layers),
        }, some

    hidden = model.config.hidden_size
    last = writer.graph.loop(
        model.config.num_hidden_layers,
        add("Greater", add("Squeeze", batch), constant(0)),
        {
            "x": (x, "float32", ("rows", "tokens", hidden)),
            "bias": (bias, "float32", ("rows", 1, 1, "tokens")),
            "rows": (rows, "int64", ("rows",)),
            "answers": (zeros(width), "float32", ("rows", width)),
            "agreements": (none, "int32", ("rows",)),
            "logits": (zeros(labels), "float32", ("batch", labels)),
            "layers": (none, "int32", ("batch",)),
        },
        step,
    )
    return last["logits"], last["layers"]


def _stops_after(
    graph: Graph, rule: EarlyExit, problem: str, number, logits, before
) -> tuple[str, str, str]:
    """Computes `tasks.early_exit.Stopping` for the layer of an iteration.

    `number` is that of the iteration, from 0, and `logits` are float32 [R, C].
    `before` has `answers`, float32 [R, K], and `agreements`, int32 [R], of the
    layer before. Returns which rows stop, bool [R], and the answers and the
    agreements of this layer.
    """
    add, constant = graph.add, graph.constant
    answers, agreements = before["answers"], before["agreements"]
    if rule.layers is not None:
        is_last = add("Equal", number, constant(rule.layers - 1))
        stops = add("Expand", is_last, add("Shape", agreements))
        return stops, answers, agreements
    if rule.confidence is not None:
        if problem == "single_label":
            probs = add("Softmax", logits, axis=-1)
            certain = add("ReduceMax", probs, axes=[-1], keepdims=0)
        else:
            probs = add("Sigmoid", add("Abs", logits))
            certain = add("ReduceMin", probs, axes=[-1], keepdims=0)
        limit = constant(rule.confidence, "float32")
        return add("GreaterOrEqual", certain, limit), answers, agreements
    found = logits
    if problem == "single_label":
        found = add("Cast", add("ArgMax", logits, axis=-1), to=FLOAT)
    elif problem == "multi_label":
        found = add("Cast", add("Greater", logits, constant(0.0)), to=FLOAT)
    near = rule.tolerance if problem == "regression" else 0.5
    distance = add("Abs", add("Sub", found, answers))
    distance = add("ReduceMax", distance, axes=[-1], keepdims=0)
    equal = add("Less", distance, constant(near, "float32"))
    equal = add("And", equal, add("Greater", number, constant(0)))
    more = add("Add", agreements, constant(1, "int32"))
    agreements = add("Where", equal, more, constant(0, "int32"))
    patience = constant(rule.patience, "int32")
    return add("GreaterOrEqual", agreements, patience), found, agreements
