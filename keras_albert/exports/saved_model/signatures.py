"""The graph of a SavedModel, from strings to answers.

Import this module only to export or to test: it imports TensorFlow.
"""

import functools
import inspect
from collections.abc import Callable, Collection

import tensorflow as tf

from keras_albert.errors import check_choice
from keras_albert.exports.config import EXPORT_WEIGHTS
from keras_albert.finetuning.predictor import Predictor
from keras_albert.modeling.weight_checks import check_not_quantized
from keras_albert.tasks.graph import ServingGraph

WEIGHTS = EXPORT_WEIGHTS["saved_model"]

Signatures = dict[str, "tf.types.experimental.ConcreteFunction"]


def serving_module(
    predictor: Predictor,
    weights: str = "float32",
    only: Collection[str] | None = None,
    rows_leave: bool = True,
) -> tuple[tf.Module, Signatures]:
    """The module and the signatures that `tf.saved_model.save` takes.

    Texts are strings [B] in UTF-8; malformed bytes are ignored. Long texts are
    cut off as by `Predictor`, except contexts and lists of words, which are
    read to their end. Every model has the signatures `token_ids`, `embed` and
    `tokenize`, see `tasks.graph.ServingGraph`; its task adds
    `serving_default` and others, see `tasks.serving.Serving`. `only` are the
    names of the signatures to make; None for all.

    The graph has assertions that name the wrong input: another rank, unequal
    numbers of rows, in `token_ids` rows of no or too many tokens and ids out
    of range, and in `inputs` bytes that are not a tf.Example with a text. A
    LiteRT file has no assertions, as its converter drops them.

    Weights in "bfloat16" or "float16" are cast when the model is called, but
    for matrices of a layer that computes in the same data type. A quantized
    model cannot be stored in 16 bits, as its scales might not fit.

    `rows_leave` is that of `tasks.early_exit_graph.early_outputs`.
    """
    check_choice("weights", weights, WEIGHTS)
    if weights != "float32":
        check_not_quantized(predictor.model)
    task = predictor.definition
    inputs = list(task.inputs(predictor.columns))
    output = task.serving.output
    graph = ServingGraph(predictor, inputs, output, weights, rows_leave)
    functions = {
        "token_ids": graph.token_ids,
        "embed": graph.embed,
        "tokenize": graph.tokenize,
        **task.serving.signatures(graph),
    }
    module = tf.Module(name="albert_serving")
    # The module holds values of variables and no Keras object: otherwise every
    # weight would be stored twice.
    module.tokenizer = graph.tokenizer
    module.weights = graph.weights
    module.kept = graph.kept
    return module, {
        name: _traced(function)
        for name, function in functions.items()
        if only is None or name in only
    }


def _traced(function: Callable) -> tf.types.experimental.ConcreteFunction:
    """Traces a function; the names of its arguments determine their types."""
    types = {
        "token_ids": tf.TensorSpec([None, None], tf.int32),
        "choices": tf.TensorSpec([None, None], tf.string),
    }
    texts = tf.TensorSpec([None], tf.string)
    specs = [
        tf.TensorSpec.from_spec(types.get(each, texts), each)
        for each in inspect.signature(function).parameters
    ]

    @functools.wraps(function)
    def checked(*inputs):
        # Servers pass tensors of any rank on to the graph.
        pairs = zip(inputs, specs, strict=True)
        return function(*(tf.ensure_shape(x, spec.shape) for x, spec in pairs))

    return tf.function(
        checked,
        input_signature=specs,
        autograph=False,
        jit_compile=False,
    ).get_concrete_function()
