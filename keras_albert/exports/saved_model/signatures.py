"""A model as one graph: strings in, answers out.

`tasks.graph` has what all tasks share, and each task its own functions.

Import this module only to export or to test: it imports TensorFlow.
"""

import functools
import inspect
from collections.abc import Callable, Collection

import tensorflow as tf

from keras_albert.errors import check_choice
from keras_albert.exports.config import EXPORT_WEIGHTS
from keras_albert.finetuning.predictor import Predictor
from keras_albert.modeling.base import check_not_quantized
from keras_albert.tasks.graph import ServingGraph

WEIGHTS = EXPORT_WEIGHTS["saved_model"]

Signatures = dict[str, "tf.types.experimental.ConcreteFunction"]


def serving_module(
    predictor: Predictor,
    weights: str = "float32",
    only: Collection[str] | None = None,
) -> tuple[tf.Module, Signatures]:
    """The module and the signatures that `tf.saved_model.save` takes.

    Texts are strings [B], UTF-8 whose malformed parts are ignored; what is too
    long is cut off as in `Predictor`, but contexts and texts of words, which
    are read to their end. Every model has `token_ids`, `embed` and `tokenize`,
    see `tasks.graph.ServingGraph`; `serving_default` and others are those of
    its task, see `tasks.serving.Serving`.

    A graph refuses inputs of another rank, unequal numbers of rows, in
    `token_ids` rows of no or too many tokens and ids that are no piece, and in
    `inputs` what is no tf.Example with a text; its error names the input.
    LiteRT and ONNX have no assertions: converters drop these.

    Args:
        predictor: its model is on Keras's TensorFlow backend.
        weights: how they are stored: "float32", or "bfloat16" or "float16",
            cast when the model is called. It computes in float32 always.
        only: names of signatures; all of them when not given.

    Raises:
        AlbertError: another kind of weights; 16 bits of a model that is
            quantized, whose scales they might not hold.
    """
    check_choice("weights", weights, WEIGHTS)
    if weights != "float32":
        check_not_quantized(predictor.model)
    task = predictor.definition
    inputs = list(task.inputs(predictor.columns))
    graph = ServingGraph(predictor, inputs, task.serving.output, weights)
    functions = {
        "token_ids": graph.token_ids,
        "embed": graph.embed,
        "tokenize": graph.tokenize,
        **task.serving.signatures(graph),
    }
    module = tf.Module(name="albert_serving")
    # The module sees values of variables and no Keras object: else every
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
    """Traces a function; the names of its arguments say what they are."""
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
        # A server feeds what it gets, of any rank.
        pairs = zip(inputs, specs, strict=True)
        return function(*(tf.ensure_shape(x, spec.shape) for x, spec in pairs))

    return tf.function(
        checked,
        input_signature=specs,
        autograph=False,
        jit_compile=False,
    ).get_concrete_function()
