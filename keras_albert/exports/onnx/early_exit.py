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

State = dict[str, str]  # the names of the values


def early_outputs(
    writer: EncoderWriter, inputs: Inputs, rule: EarlyExit
) -> tuple[str, str]:
    """Adds a loop; `logits` float32 [B, C], and `layers` needed, int32 [B].

    Rows that have their answer leave the loop, and a layer is completed for
    the others only (tasks.early_exit_graph).
    """
    add, constant, model = writer.add, writer.constant, writer.model
    exits = _Exits(writer, rule)
    layers = rule.layers_of_all(model.config.num_hidden_layers)
    if layers is not None:  # no row is asked whether it stops
        first = writer.encoded(inputs, first_only=True, layers=layers)
        rows, used = add("Shape", first, end=1), constant(layers, "int32")
        logits = exits.logits(first, constant(layers - 1))
        return logits, add("Expand", used, rows)
    x, bias = writer.embedded(inputs)
    batch = add("Shape", x, end=1)
    labels = model.num_labels
    width = labels if model.problem == "multi_label" else 1

    def zeros(columns: int) -> str:
        shape = add("Concat", batch, constant([columns]), axis=0)
        return add("Expand", constant(0.0), shape)

    none = add("Expand", constant(0, "int32"), batch)
    before = {
        "bias": bias,
        "rows": add("Range", constant(0), add("Squeeze", batch), constant(1)),
        "answers": zeros(width),
        "agreements": none,
        "logits": zeros(labels),
        "layers": none,
    }
    state = exits.answered(before, x, constant(0))
    vectors = ("float32", ("rows", "tokens", model.config.hidden_size))
    specs = {
        "x": vectors,
        "context": vectors,
        "bias": ("float32", ("rows", 1, 1, "tokens")),
        "rows": ("int64", ("rows",)),
        "answers": ("float32", ("rows", width)),
        "agreements": ("int32", ("rows",)),
        "logits": ("float32", ("batch", labels)),
        "layers": ("int32", ("batch",)),
    }
    last = writer.graph.loop(
        model.config.num_hidden_layers - 1,
        exits.goes_on(state),
        {name: (state[name], *spec) for name, spec in specs.items()},
        exits.next_layer,
    )
    return last["logits"], last["layers"]


class _Exits:
    """Adds what an iteration of the loop consists of."""

    def __init__(self, writer: EncoderWriter, rule: EarlyExit):
        self._writer, self._rule = writer, rule
        self._kernels, self._biases = (
            writer.constant(array(each))
            for each in classifiers_of(writer.model)
        )

    def logits(self, first: str, number: str) -> str:
        """The logits of layer `number`, from 0, for its first tokens."""
        add = self._writer.add
        kernel = add("Gather", self._kernels, number)
        logits = add("MatMul", self._writer.pooled(first), kernel)
        return add("Add", logits, add("Gather", self._biases, number))

    def answered(self, state: State, x: str, number: str) -> State:
        """The state after layer `number`, whose input is `x`."""
        writer, add, constant = (
            self._writer,
            self._writer.add,
            self._writer.constant,
        )
        x, context = writer.up_to_attention(x, state["bias"])
        first = writer.rest_of_first_layer(
            writer.first(x), writer.first(context)
        )
        logits = self.logits(first, number)
        stops, answers, agreements = _stops_after(
            writer.graph,
            self._rule,
            writer.model.problem,
            number,
            logits,
            state,
        )
        kept = add("Squeeze", add("NonZero", add("Not", stops)), constant([0]))
        going_on = {
            "x": x,
            "context": context,
            "bias": state["bias"],
            "rows": state["rows"],
            "answers": answers,
            "agreements": agreements,
        }
        places = add("Unsqueeze", state["rows"], constant([1]))
        layer = add("Cast", add("Add", number, constant(1)), to=INT32)
        layers = add("Expand", layer, add("Shape", stops))
        return {
            **{name: add("Gather", v, kept) for name, v in going_on.items()},
            "logits": add("ScatterND", state["logits"], places, logits),
            "layers": add("ScatterND", state["layers"], places, layers),
        }

    def goes_on(self, state: State) -> str:
        """Whether a row has no answer yet."""
        writer = self._writer
        count = writer.add("Size", state["rows"])
        return writer.add("Greater", count, writer.constant(0))

    def next_layer(self, state: State, iteration: str) -> tuple[State, str]:
        """Completes a layer for the rows that go on, and adds the next one."""
        writer = self._writer
        x = writer.rest_of_first_layer(state["x"], state["context"])
        number = writer.add("Add", iteration, writer.constant(1))
        state = self.answered(state, x, number)
        return state, self.goes_on(state)


def _stops_after(
    graph: Graph, rule: EarlyExit, problem: str, number, logits, before
) -> tuple[str, str, str]:
    """Computes `tasks.early_exit.Stopping` for a layer.

    `rule` has a patience or a confidence; a number of layers needs no loop.
    `number` is that of the layer, from 0, and `logits` are float32 [R, C].
    `before` has `answers`, float32 [R, K], and `agreements`, int32 [R], of the
    layer before. Returns which rows stop, bool [R], and the answers and the
    agreements of this layer.
    """
    add, constant = graph.add, graph.constant
    answers, agreements = before["answers"], before["agreements"]

    def reduced(kind, values):
        """[R, C] -> [R]; without rows ONNX Runtime would return [0, C]."""
        each = add(kind, values, axes=[-1], keepdims=0)
        return add("Reshape", each, add("Shape", agreements))

    if rule.confidence is not None:
        if problem == "single_label":
            probs = add("Softmax", logits, axis=-1)
            certain = reduced("ReduceMax", probs)
        else:
            probs = add("Sigmoid", add("Abs", logits))
            certain = reduced("ReduceMin", probs)
        limit = constant(rule.confidence, "float32")
        return add("GreaterOrEqual", certain, limit), answers, agreements
    found = logits
    if problem == "single_label":
        found = add("Cast", add("ArgMax", logits, axis=-1), to=FLOAT)
    elif problem == "multi_label":
        found = add("Cast", add("Greater", logits, constant(0.0)), to=FLOAT)
    near = rule.tolerance if problem == "regression" else 0.5
    distance = add("Abs", add("Sub", found, answers))
    equal = add(
        "Less", reduced("ReduceMax", distance), constant(near, "float32")
    )
    equal = add("And", equal, add("Greater", number, constant(0)))
    more = add("Add", agreements, constant(1, "int32"))
    agreements = add("Where", equal, more, constant(0, "int32"))
    patience = constant(rule.patience, "int32")
    return add("GreaterOrEqual", agreements, patience), found, agreements
