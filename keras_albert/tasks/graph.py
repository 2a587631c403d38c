"""Functions that the serving graphs of all tasks share.

Letters: B examples, S tokens of the longest row, R rows (parts of long texts),
H hidden size.

Import this module and others named `*graph.py` only to export or to test: they
import TensorFlow.
"""

import collections
from collections.abc import Callable
from typing import Protocol

import keras
import tensorflow as tf

from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.inputs import ROW
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.private_apis import sublayers
from keras_albert.tasks.config import EarlyExit
from keras_albert.tasks.decisions import Threshold
from keras_albert.tasks.early_exit import check_can_export
from keras_albert.tasks.early_exit_graph import Tensors, early_outputs
from keras_albert.tasks.question_answering.config import ReadingConfig
from keras_albert.text.graph_characters import equally_many
from keras_albert.text.graph_tokenizer import GraphTokenizer
from keras_albert.text.special_tokens import CLS_ID, PAD_ID, SEP_ID
from keras_albert.text.tokenizer import Tokenizer

WINDOWS_AT_ONCE = 32  # of long texts, so that memory does not grow with them
# Texts of a request that are computed together: few, so that short texts are
# not padded to the longest one, and the activations fit the cache.
TEXTS_AT_ONCE = 8


class ServedPredictor(Protocol):
    """A model and its settings: a `Predictor`."""

    model: AlbertModel
    labels: tuple[str, ...] | None
    tokenizer: Tokenizer
    reading: ReadingConfig | None
    early_exit: EarlyExit | None
    threshold: Threshold | None
    sequence_length: int
    reads_pairs: bool


class ServingGraph:
    """The functions from which tasks make the signatures of a SavedModel.

    Every signature consists of two shared functions, one from texts to ids and
    one from rows of ids to the outputs of the model, so that the graph only has
    one copy of the tokenizer's tables and of the encoder. The exception is
    `embed`: it needs outputs that no head has, and has a second copy of the
    encoder's operations, with the same weights.

    `inputs` are the fields that a prediction needs, `output` is the name of
    the output if there is a single one, and `weights` the data type in which
    weights are stored; `scope` says when 16 bits are cast. `rows_leave` says
    what becomes of rows that have an answer early, see `early_outputs`.
    """

    def __init__(
        self,
        predictor: ServedPredictor,
        inputs: list[str],
        output: str,
        weights: str,
        rows_leave: bool = True,
    ):
        if predictor.early_exit is not None:
            check_can_export(predictor.model)
        self.predictor = predictor
        self.inputs = inputs
        self.output = output
        self._rows_leave = rows_leave
        self.tokenizer = GraphTokenizer(predictor.tokenizer)
        # Further objects with tables or weights that a function needs: a
        # SavedModel only contains what is reachable from its attributes.
        self.kept = []
        model = predictor.model
        self._stored = [
            (variable, _stored(variable, weights)) for variable in model.weights
        ]
        self.weights = [value for _, value in self._stored]
        # function from rows, int32 [R, S] by name, to the outputs by name
        self.rows = self.of_rows(self._outputs)
        self._vectors = self.of_rows(self._embedding)
        is_embedder = isinstance(model, AlbertForTextEmbedding)
        self._embedder = (
            model if is_embedder else AlbertForTextEmbedding(model.backbone)
        )

    def of_rows(self, function: Callable) -> tf.types.experimental.Callable:
        """A function of rows [R, S] that is traced once for all signatures."""
        row = tf.TensorSpec([None, None], tf.int32)
        names = ("token_ids", "segment_ids", "padding_mask")
        return tf.function(
            function,
            input_signature=[dict.fromkeys(names, row)],
            autograph=False,
            jit_compile=False,
        )

    def scope(self) -> keras.StatelessScope:
        """The scope in which the model computes with the stored weights.

        A matrix that is stored in the data type in which its layer computes is
        used as it is: to cast all of them to float32 and back takes a seventh
        of the time of a short request. Vectors are small, and some of them stay
        float32 in a layer that computes in another data type.
        """
        scope = keras.StatelessScope()
        computed = _computed_in(self.predictor.model)
        for variable, value in self._stored:
            is_matrix = len(value.shape) > 1
            as_stored = {value.dtype.name} == computed[id(variable)]
            dtype = value.dtype if is_matrix and as_stored else variable.dtype
            # A mapping that is given to the scope would be cast to the data
            # type of the variable.
            scope.add_update((variable, tf.cast(value, dtype)))
        return scope

    def _outputs(self, rows: Tensors) -> Tensors:
        model = self.predictor.model
        if model.axes != ROW:  # an example with a single choice
            rows = {name: row[:, tf.newaxis] for name, row in rows.items()}
        beam = getattr(model, "beam", 1)  # the beam needs as many tokens
        short = tf.maximum(beam - tf.shape(rows["token_ids"])[-1], 0)
        if beam > 1:
            rows = {
                name: tf.pad(row, [[0, 0], [0, short]])
                for name, row in rows.items()
            }
        with self.scope():
            if (rule := self.predictor.early_exit) is not None:
                return early_outputs(model, rule, rows, self._rows_leave)
            outputs = model(rows, training=False)
        return outputs if isinstance(outputs, dict) else {self.output: outputs}

    def _embedding(self, rows: Tensors) -> Tensors:
        with self.scope():
            return {"embedding": self._embedder(rows, training=False)}

    def in_parts(self, rows: Tensors) -> Tensors:
        """The outputs for any number of rows, a few at a time."""
        return _in_parts(self.rows, rows, WINDOWS_AT_ONCE)

    def by_length(self, text: tf.Tensor, *pair: tf.Tensor) -> Tensors:
        """The outputs for texts or pairs of texts, strings [B].

        The shortest ones come first, a few at a time, so that they are not
        padded to the length of the longest one. The outputs must not have an
        axis of tokens.
        """
        return _by_length(self.rows, self.packed(text, *pair))

    def packed(self, text: tf.Tensor, pair: tf.Tensor | None = None) -> Tensors:
        """Rows of ids [B, S] of texts or pairs of texts, strings [B]."""
        length = self.predictor.sequence_length
        if pair is None:
            return self.tokenizer.pack(self.tokenizer(text), None, length)
        text, pair = equally_many(text=text, pair=pair)
        ids = self.tokenizer(text), self.tokenizer(pair)
        return self.tokenizer.pack(*ids, length)

    def rows_of_ids(self, token_ids: tf.Tensor) -> Tensors:
        """Checked rows of ids, with their segments and padding.

        Padding is PAD, or CLS after the first token, since servers that pad a
        batch repeat the first id of a row.
        """
        token_ids = self._checked(token_ids)
        position = tf.range(tf.shape(token_ids)[1])[tf.newaxis]
        is_padding = token_ids == PAD_ID
        is_padding |= (token_ids == CLS_ID) & (position > 0)
        token_ids = tf.where(is_padding, PAD_ID, token_ids)
        padding_mask = tf.cast(~is_padding, tf.int32)
        segment_ids = tf.zeros_like(token_ids)
        if self.predictor.reads_pairs:
            is_sep = tf.cast(token_ids == SEP_ID, tf.int32)
            behind = tf.cumsum(is_sep, axis=1, exclusive=True) > 0
            segment_ids = tf.cast(behind, tf.int32) * padding_mask
        return {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": padding_mask,
        }

    def _checked(self, token_ids: tf.Tensor) -> tf.Tensor:
        """Returns `token_ids`; the graph fails if the model lacks one of them.

        Otherwise devices would behave differently: raise an error that names no
        input, or return zeros or the vectors of other pieces.
        """
        config = self.predictor.model.config
        longest, pieces = config.max_position_embeddings, config.vocab_size
        width = tf.shape(token_ids)[1]
        known = (token_ids >= 0) & (token_ids < pieces)
        checks = [
            tf.debugging.Assert(
                (width >= 1) & (width <= longest),
                [f"`token_ids` must have 1 to {longest} tokens a row. "
                 "Received:", width],
            ),
            tf.debugging.Assert(
                tf.reduce_all(known),
                [f"`token_ids` must be from 0 to {pieces - 1}, the pieces of "
                 "the vocabulary. Received, lowest and highest:",
                 tf.reduce_min(token_ids), tf.reduce_max(token_ids)],
            ),
        ]  # fmt: skip
        with tf.control_dependencies(checks):
            return tf.identity(token_ids)

    # The signatures of every task.

    def token_ids(self, token_ids: tf.Tensor) -> Tensors:
        """The outputs of the model for int32 [B, S] ids."""
        return self.rows(self.rows_of_ids(token_ids))

    def embed(self, text: tf.Tensor) -> Tensors:
        """`embedding` float32 [B, D]: the vectors of AlbertForTextEmbedding.

        Of any other model they are means of the last layer's vectors (D = H).
        """
        return _by_length(self._vectors, self.packed(text))

    def tokenize(self, text: tf.Tensor) -> Tensors:
        """`token_ids` int32 [B, S], padded with 0, and `lengths` int32 [B]."""
        packed = self.packed(text)
        return {
            "token_ids": packed["token_ids"],
            "lengths": tf.reduce_sum(packed["padding_mask"], axis=1),
        }


def _by_length(function: Callable, rows: Tensors) -> Tensors:
    """Applies a function to rows in ascending order of length, a few at a time.

    In this order the rows of a part have similar lengths, and little padding is
    computed. `function` is a result of `ServingGraph.of_rows`. Its outputs are
    returned in the order in which the rows were given.
    """
    lengths = tf.reduce_sum(rows["padding_mask"], axis=1)
    order = tf.argsort(lengths)
    rows = {name: tf.gather(row, order) for name, row in rows.items()}
    outputs = _in_parts(
        function, rows, TEXTS_AT_ONCE, tf.gather(lengths, order)
    )
    places = tf.math.invert_permutation(order)
    return {name: tf.gather(each, places) for name, each in outputs.items()}


def _in_parts(
    function: Callable,
    rows: Tensors,
    at_once: int,
    lengths: tf.Tensor | None = None,
) -> Tensors:
    """Applies a function to `at_once` rows at a time, and joins its outputs.

    `function` is a result of `ServingGraph.of_rows`. With `lengths`, int32 [R],
    the tokens of each row, each part is cut to its longest row.
    """
    specs = function.get_concrete_function().structured_outputs
    count = tf.shape(rows["token_ids"])[0]
    # At least one part, even without rows, for the shapes of the outputs.
    parts = tf.maximum((count - 1) // at_once + 1, 1)
    arrays = {
        name: tf.TensorArray(spec.dtype, parts, infer_shape=False)
        for name, spec in specs.items()
    }

    def step(part, arrays):
        chosen = slice(part * at_once, (part + 1) * at_once)
        few = {name: row[chosen] for name, row in rows.items()}
        if lengths is not None:  # [CLS] and [SEP] at least, even without rows
            longest = tf.reduce_max(tf.concat([lengths[chosen], [2]], axis=0))
            few = {name: row[:, :longest] for name, row in few.items()}
        outputs = function(few)
        return part + 1, {
            name: array.write(part, outputs[name])
            for name, array in arrays.items()
        }

    # One part after another, as parallel parts would need their memory at the
    # same time.
    _, arrays = tf.while_loop(
        lambda part, arrays: part < parts,
        step,
        (0, arrays),
        parallel_iterations=1,
    )
    outputs = {name: array.concat() for name, array in arrays.items()}
    for name, spec in specs.items():
        outputs[name].set_shape(spec.shape)
    return outputs


def _computed_in(model: keras.Model) -> dict[int, set[str]]:
    """The data types in which layers compute with a weight, by its `id()`."""
    found = collections.defaultdict(set)
    for layer in sublayers(model):
        for variable in layer.weights:
            found[id(variable)].add(layer.compute_dtype)
    return found


def _stored(variable: keras.Variable, weights: str) -> tf.Variable:
    """The value of a weight as it is stored: a copy if the data type differs.

    Only float32 weights are converted to the data type `weights`.
    """
    if variable.dtype != "float32" or weights == "float32":
        return variable.value
    return tf.Variable(
        tf.cast(variable.value, weights), trainable=False, name=variable.name
    )
