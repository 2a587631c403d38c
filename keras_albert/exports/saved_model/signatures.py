"""A model as one graph: strings in, answers out.

Letters: B examples, S tokens of the longest row, C labels or choices, H hidden
size, R rows (windows of contexts, parts of long texts), M masks of the text
with most of them, K pieces for a mask.

Every signature is made of two shared functions, one from texts to ids and one
from rows of ids to the model's outputs, so that the tables and the encoder are
in the graph once. The exception is `embed`, which needs what no head gives: it
has an encoder of its own, of the same weights.

Import this module only to export or to test: it imports TensorFlow.
"""

import functools
import inspect
from collections.abc import Callable, Collection

import keras
import tensorflow as tf

from keras_albert.errors import check_choice
from keras_albert.exports.config import EXPORT_WEIGHTS
from keras_albert.finetuning.predictor import Predictor
from keras_albert.modeling.base import check_not_quantized
from keras_albert.modeling.classification import AlbertForTokenClassification
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.tasks.fill_mask_graph import (
    best_pieces,
    mask_positions,
    serve_masks,
)
from keras_albert.tasks.names import EMBEDDING, FILL_MASK
from keras_albert.tasks.pretrained import USES
from keras_albert.tasks.question_answering.graph import serve_questions
from keras_albert.tasks.task import PAIR
from keras_albert.tasks.token_classification_graph import serve_words
from keras_albert.text.graph_characters import equally_many
from keras_albert.text.graph_rows import pack_choices
from keras_albert.text.graph_tokenizer import GraphTokenizer
from keras_albert.text.special_tokens import CLS_ID, PAD_ID, SEP_ID

WEIGHTS = EXPORT_WEIGHTS["saved_model"]
ROWS_AT_ONCE = 32  # of a long text, so that its length needs no memory

Signatures = dict[str, "tf.types.experimental.ConcreteFunction"]
Outputs = dict[str, tf.Tensor]


def serving_module(
    predictor: Predictor,
    weights: str = "float32",
    only: Collection[str] | None = None,
) -> tuple[tf.Module, Signatures]:
    """What `tf.saved_model.save` takes: a module and its signatures.

    Texts are strings [B], UTF-8 whose malformed parts are ignored; what is too
    long is cut off as in `Predictor`, but contexts and texts of words, which
    are read to their end. `serving_default` takes and gives, by the task:

    - a label: `text` (and `pair`) -> `label` string [B], `score` float32 [B],
      `probabilities` float32 [B, C] and the `labels` string [B, C] they are of;
    - a number: `text` (and `pair`) -> `score` float32 [B];
    - several labels: -> `probabilities`, `labels`, `chosen` bool [B, C];
    - a choice: `text` [B], `choices` [B, C] (and `question` [B]) -> `choice`
      int32 [B], `probabilities` float32 [B, C];
    - labels of words: see `word_labels.serve_words`;
    - answers: see `answers.serve_questions`;
    - a vector: as `embed`;
    - masked words: as `fill_mask`.

    The others: `pair`, of a model of pairs, is the same as `serving_default`;
    `token_ids` int32 [B, S] -> the outputs of the model; `embed`: `text` ->
    `embedding` float32 [B, H]; `tokenize`: `text` -> `token_ids` int32 [B, S],
    padded with 0, and `lengths` int32 [B]; `classify`, where a single text has
    a label: `inputs`, tf.Example [B] with `text` -> `classes`, `scores` [B, C];
    `fill_mask`, of a masked-LM head: see `masks.serve_masks`. There `token_ids`
    gives the same outputs, for the ids of [MASK], as the scores of all pieces
    at all places would be too many.

    A graph refuses inputs of another rank, unequal numbers of rows, in
    `token_ids` rows of no or too many tokens and ids that are no piece, and in
    `inputs` what is no tf.Example with a text; its error names the input.
    LiteRT and ONNX have no assertions: converters drop these.

    Args:
        predictor: of a model on Keras's TensorFlow backend.
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
    graph = _Graph(predictor, weights)
    module = tf.Module(name="albert_serving")
    # The module sees values of variables and no Keras object: else every
    # weight would be stored twice.
    module.tokenizer = graph.tokenizer
    module.weights = graph.weights
    functions = {
        "token_ids": graph.token_ids,
        "embed": graph.embed,
        "tokenize": graph.tokenize,
    }
    names = USES[predictor.task].inputs(predictor.columns)
    if predictor.task == FILL_MASK:
        fills = serve_masks(
            predictor.tokenizer,
            graph.tokenizer,
            predictor.sequence_length,
            graph.at_masks,
        )
        functions["fill_mask"] = serve = fills
        functions["token_ids"] = graph.fill_ids
    elif predictor.task == EMBEDDING:
        serve = graph.embed
    elif "context" in names:
        module.aligner, serve = serve_questions(
            predictor.tokenizer,
            graph.tokenizer,
            predictor.reading,
            may_refuse=predictor.labels is not None,
            beam=getattr(predictor.model, "beam", 1),
            outputs=graph.in_parts,
        )
    elif "choices" in names:
        serve = graph.choose_for_question
        if "question" not in names:
            serve = graph.choose
    elif isinstance(predictor.model, AlbertForTokenClassification):
        serve = serve_words(
            predictor.labels,
            graph.tokenizer,
            predictor.sequence_length,
            graph.in_parts,
        )
    else:
        decode = graph.decode()
        if PAIR in names:
            functions["pair"] = serve = graph.of_pairs(decode)
        else:
            serve = graph.of_texts(decode)
            if USES[predictor.task].has_classes:
                functions["classify"] = graph.of_examples(decode)
    functions["serving_default"] = serve
    return module, {
        name: _traced(function)
        for name, function in functions.items()
        if only is None or name in only
    }


class _Graph:
    """The parts that signatures are made of."""

    def __init__(self, predictor: Predictor, weights: str):
        self.predictor = predictor
        self.tokenizer = GraphTokenizer(predictor.tokenizer)
        model = predictor.model
        self._stored = [
            (variable, _stored(variable, weights)) for variable in model.weights
        ]
        self.weights = [value for _, value in self._stored]
        self._has_choices = "choices" in self._inputs
        self._rows = self._of_rows(self._outputs)
        self._vectors = self._of_rows(self._embedding)
        self._at_masks = self._of_rows(self._masked_logits)
        is_embedder = isinstance(model, AlbertForTextEmbedding)
        self._embedder = (
            model if is_embedder else AlbertForTextEmbedding(model.backbone)
        )

    @property
    def _inputs(self):
        predictor = self.predictor
        return USES[predictor.task].inputs(predictor.columns)

    # Rows of ids to outputs.

    def _of_rows(self, function: Callable) -> tf.types.experimental.Callable:
        """A function of rows [R, S], traced once for all signatures."""
        row = tf.TensorSpec([None, None], tf.int32)
        names = ("token_ids", "segment_ids", "padding_mask")
        return tf.function(
            function,
            input_signature=[dict.fromkeys(names, row)],
            autograph=False,
            jit_compile=False,
        )

    def _scope(self) -> keras.StatelessScope:
        """In which the model computes with the stored weights."""
        return keras.StatelessScope(
            state_mapping=[
                (variable, tf.cast(value, variable.dtype))
                for variable, value in self._stored
            ]
        )

    def _outputs(self, rows: Outputs) -> Outputs:
        if self._has_choices:  # each row is one, here
            rows = {name: row[:, tf.newaxis] for name, row in rows.items()}
        beam = getattr(self.predictor.model, "beam", 1)  # needs as many tokens
        short = tf.maximum(beam - tf.shape(rows["token_ids"])[-1], 0)
        if beam > 1:
            rows = {
                name: tf.pad(row, [[0, 0], [0, short]])
                for name, row in rows.items()
            }
        with self._scope():
            outputs = self.predictor.model(rows, training=False)
        if isinstance(outputs, dict):
            return outputs
        is_vector = self.predictor.task == EMBEDDING
        return {"embedding" if is_vector else "logits": outputs}

    def _masked_logits(self, rows: Outputs) -> Outputs:
        positions, is_given = mask_positions(rows["token_ids"])
        with self._scope():
            outputs = self.predictor.model(
                {**rows, "masked_positions": positions}, training=False
            )
        if isinstance(outputs, dict):
            outputs = outputs["mlm"]
        return {"logits": outputs, "is_given": is_given}

    def _embedding(self, rows: Outputs) -> Outputs:
        with self._scope():
            return {"embedding": self._embedder(rows, training=False)}

    def in_parts(self, rows: Outputs) -> Outputs:
        """The outputs for any number of rows, a few at a time."""
        function = self._rows.get_concrete_function()
        count = tf.shape(rows["token_ids"])[0]
        # One part even of no rows, for the shapes of the outputs.
        parts = tf.maximum((count - 1) // ROWS_AT_ONCE + 1, 1)
        arrays = {
            name: tf.TensorArray(spec.dtype, parts, infer_shape=False)
            for name, spec in function.structured_outputs.items()
        }

        def step(part, arrays):
            chosen = slice(part * ROWS_AT_ONCE, (part + 1) * ROWS_AT_ONCE)
            outputs = self._rows({n: row[chosen] for n, row in rows.items()})
            return part + 1, {
                name: array.write(part, outputs[name])
                for name, array in arrays.items()
            }

        _, arrays = tf.while_loop(
            lambda part, arrays: part < parts,
            step,
            (0, arrays),
            parallel_iterations=1,
        )
        return {name: array.concat() for name, array in arrays.items()}

    def at_masks(self, rows: Outputs) -> Outputs:
        """`logits` float32 [B, M, V] and `is_given` bool [B, M]."""
        return self._at_masks(rows)

    # Texts to rows of ids.

    def _packed(self, text: tf.Tensor, pair: tf.Tensor | None = None):
        length = self.predictor.sequence_length
        if pair is None:
            return self.tokenizer.pack(self.tokenizer(text), None, length)
        text, pair = equally_many(text=text, pair=pair)
        ids = self.tokenizer(text), self.tokenizer(pair)
        return self.tokenizer.pack(*ids, length)

    # Signatures of every task.

    def token_ids(self, token_ids: tf.Tensor) -> Outputs:
        """The outputs of the model, for rows of ids.

        Padding is found by itself: PAD, or CLS behind the first place, since
        servers that pad a batch do it with the first id of a row.
        """
        return self._rows(self._rows_of_ids(token_ids))

    def fill_ids(self, token_ids: tf.Tensor) -> Outputs:
        """What may stand at the ids of [MASK], as `fill_mask` gives it."""
        rows = self._rows_of_ids(token_ids)
        return best_pieces(self.predictor.tokenizer, self.at_masks(rows))

    def _rows_of_ids(self, token_ids: tf.Tensor) -> Outputs:
        """Checked rows, with their segments and padding."""
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
        """The same; an error of the graph unless the model knows such rows.

        Without it a device would choose: an error that names no input, zeros,
        or the vectors of other pieces.
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

    def embed(self, text: tf.Tensor) -> Outputs:
        """The mean of the last layer over the tokens of each text."""
        return self._vectors(self._packed(text))

    def tokenize(self, text: tf.Tensor) -> Outputs:
        """The rows of ids that the model reads."""
        packed = self._packed(text)
        return {
            "token_ids": packed["token_ids"],
            "lengths": tf.reduce_sum(packed["padding_mask"], axis=1),
        }

    # What is answered to a text or a pair.

    def decode(self) -> Callable[[tf.Tensor], Outputs]:
        """Logits [B, C] to what `serving_default` gives."""
        if not self.predictor.labels:
            return lambda logits: {"score": logits[:, 0]}
        names = tf.constant(self.predictor.labels)

        def beside(probabilities):
            # Servers want one batch size for all outputs.
            count = tf.shape(probabilities)[0]
            return {
                "probabilities": probabilities,
                "labels": tf.tile(names[tf.newaxis], [count, 1]),
            }

        def several(logits):
            odds = tf.sigmoid(logits)
            return {**beside(odds), "chosen": odds > 0.5}

        def one(logits):
            odds = tf.nn.softmax(logits)
            best = tf.argmax(odds, axis=-1)
            return {
                "label": tf.gather(names, best),
                "score": tf.reduce_max(odds, axis=-1),
                **beside(odds),
            }

        return one if USES[self.predictor.task].has_classes else several

    def of_texts(self, decode: Callable) -> Callable:
        """The answers to texts."""

        def serve(text):
            return decode(self._rows(self._packed(text))["logits"])

        return serve

    def of_pairs(self, decode: Callable) -> Callable:
        """The answers to pairs."""

        def serve(text, pair):
            return decode(self._rows(self._packed(text, pair))["logits"])

        return serve

    def of_examples(self, decode: Callable) -> Callable:
        """TensorFlow Serving's classification."""
        serve = self.of_texts(decode)

        def classify(inputs):
            form = {"text": tf.io.FixedLenFeature([], tf.string)}
            # The parser's errors name no input but the operation alone, so
            # its name says what was expected.
            found = tf.io.parse_example(_examples(inputs), form, name=_EXPECTED)
            answers = serve(found["text"])
            return {
                "classes": answers["labels"],
                "scores": answers["probabilities"],
            }

        return classify

    # The right one of several choices; see text/rows.py, choice_rows.

    def choose(self, text: tf.Tensor, choices: tf.Tensor) -> Outputs:
        """Where there are no questions."""
        text, choices = equally_many(text=text, choices=choices)
        return self._choose(text, tf.zeros_like(text), choices)

    def choose_for_question(
        self, text: tf.Tensor, question: tf.Tensor, choices: tf.Tensor
    ) -> Outputs:
        """Where there are questions."""
        return self._choose(
            *equally_many(text=text, question=question, choices=choices)
        )

    def _choose(self, text, question, choices) -> Outputs:
        batch, count = tf.unstack(tf.shape(choices))
        packed = pack_choices(
            self.tokenizer,
            text,
            question,
            choices,
            self.predictor.sequence_length,
        )
        logits = self._rows(packed)["logits"]
        odds = tf.nn.softmax(tf.reshape(logits, [batch, count]))
        return {
            "choice": tf.argmax(odds, axis=-1, output_type=tf.int32),
            "probabilities": odds,
        }


_EXPECTED = "inputs_must_be_tf.Examples_with_one_string_as_the_feature_text"


def _examples(inputs: tf.Tensor) -> tf.Tensor:
    """The same; an error of the graph unless each may be a tf.Example.

    All of its content is in one field, number 1, so that its first byte is
    always 10. What is wrong behind that the parser finds.
    """
    first = tf.strings.substr(inputs, 0, 1)
    may_be = (first == b"\n") | (inputs == b"")
    check = tf.debugging.Assert(
        tf.reduce_all(may_be),
        ["`inputs` must be serialized tf.Example messages with a string "
         "feature `text`; for plain texts there is `serving_default`. "
         "Received something else in row:", tf.where(~may_be)[:1, 0]],
    )  # fmt: skip
    with tf.control_dependencies([check]):
        return tf.identity(inputs)


def _stored(variable: keras.Variable, weights: str) -> tf.Variable:
    """The variable itself, or one of another type; integers stay."""
    if variable.dtype != "float32" or weights == "float32":
        return variable.value
    return tf.Variable(
        tf.cast(variable.value, weights), trainable=False, name=variable.name
    )


def _traced(function: Callable) -> tf.types.experimental.ConcreteFunction:
    """A signature: strings [B] by the names of its arguments, or what fits."""
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
