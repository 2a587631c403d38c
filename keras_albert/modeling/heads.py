"""What stands on the encoder: a head for each kind of task.

Every logit is float32, whatever the encoder computes in.

Letters: B batch, C labels or choices, S sequence length, P predicted
positions, E embedding size, H hidden size, V vocabulary, K beam.
"""

from typing import NamedTuple

import keras
import numpy as np
from keras import layers, ops

from keras_albert.config import (
    CLASSIFIER_DROPOUT,
    FILL_MASK_CHOICES,
    MASK_ID,
    PAD_ID,
    QA_BEAM,
    SEP_ID,
    SPECIAL_PIECES,
    AlbertError,
    check_choice,
    check_positive,
    check_probability,
)
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.block import ACTIVATIONS
from keras_albert.modeling.embeddings import initializer, layer_norm
from keras_albert.modeling.inputs import (
    TOKEN_INPUTS,
    as_texts,
    check_equally_many,
    round_length,
)
from keras_albert.modeling.model import AlbertModel
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer

IMPOSSIBLE = -1e30  # logit of a position that holds no answer
SENTENCE_TASKS = ("sop", "nsp", None)
PROBLEMS = ("single_label", "multi_label", "regression")
POOLINGS = ("mean", "cls")
MASK = SPECIAL_PIECES[MASK_ID]


class HeadedModel(AlbertModel):
    """Abstract: a model that holds a backbone and is saved with it."""

    needs_pooler = False

    def __init__(self, backbone: AlbertBackbone, **kwargs):
        if not isinstance(backbone, AlbertBackbone):
            raise AlbertError(
                "`backbone` must be an AlbertBackbone: "
                "AlbertBackbone(VARIANTS['base_v2']). "
                f"Received: {type(backbone).__name__}."
            )
        if self.needs_pooler and backbone.pooler is None:
            raise AlbertError(
                f"{type(self).__name__} stands on the pooled output: the "
                "backbone needs `pooler=True`. Received: pooler=False."
            )
        kwargs.setdefault("dtype", backbone.dtype_policy)
        super().__init__(**kwargs)
        self.backbone = backbone
        self.config = backbone.config

    def _dense(self, units: int, name: str, **kwargs) -> layers.Dense:
        return layers.Dense(
            units,
            kernel_initializer=initializer(self.config),
            dtype=self.dtype_policy,
            name=name,
            **kwargs,
        )

    def _dropout(self, rate: float) -> layers.Dropout:
        check_probability("dropout", rate)
        return layers.Dropout(rate, dtype=self.dtype_policy)

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {
            **super().get_config(),
            "backbone": keras.saving.serialize_keras_object(self.backbone),
        }

    @classmethod
    def from_config(cls, config):
        """The inverse of `get_config`."""
        backbone = keras.saving.deserialize_keras_object(config["backbone"])
        return super().from_config({**config, "backbone": backbone})


class MaskedLMHead(layers.Layer):
    """H -> E -> activation -> LayerNorm -> logits through the word table.

    Source: reference run_pretraining.py, get_masked_lm_output.
    """

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.dense = layers.Dense(
            config.embedding_size,
            activation=ACTIVATIONS[config.hidden_act],
            kernel_initializer=initializer(config),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.layer_norm = layer_norm("layer_norm", self.dtype_policy)

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.dense.build((None, None, self.config.hidden_size))
        self.layer_norm.build((None, None, self.config.embedding_size))
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(self.config.vocab_size,),
            initializer="zeros",
        )
        self.built = True

    def call(self, x, word_table):
        """float [B, P, H], the embedding layer -> float32 [B, P, V]."""
        x = self.layer_norm(self.dense(x))  # [B, P, E]
        logits = word_table(x, reverse=True)  # [B, P, V]
        return ops.cast(logits, "float32") + ops.cast(
            self.output_bias, "float32"
        )


def masked_vectors(x, inputs):
    """float [B, S, H] -> [B, P, H] at `masked_positions`, where given."""
    positions = inputs.get("masked_positions")
    if positions is None:
        return x
    return ops.take_along_axis(x, ops.expand_dims(positions, 2), axis=1)


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForPretraining(HeadedModel):
    """Masked-LM and a task on the pair of sentences (Paper 3.1, Table 5).

    Args:
        backbone: the encoder; its word embeddings are the decoder's weights.
        sentence_task: "sop", sentence order; "nsp", next sentence; None.

    Call arguments:
        inputs: those of AlbertBackbone and `masked_positions`, int [B, P],
            the positions to predict; every position when absent.

    Returns:
        dict of float32 logits: `mlm` [B, P, V] and `sop` or `nsp` [B, 2]. In
        both, class 1 is the pair that was tampered with: swapped, or with a
        second text from elsewhere.
    """

    needs_pooler = True

    def __init__(
        self,
        backbone: AlbertBackbone,
        sentence_task: str | None = "sop",
        **kwargs,
    ):
        super().__init__(backbone, **kwargs)
        check_choice("sentence_task", sentence_task, SENTENCE_TASKS)
        self.sentence_task = sentence_task
        self.masked_lm = MaskedLMHead(
            self.config, dtype=self.dtype_policy, name="masked_lm"
        )
        self.sentence_pair = None
        if sentence_task:
            self.sentence_pair = self._dense(2, "sentence_pair")
        self.build()

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.masked_lm.build()
        if self.sentence_pair is not None:
            self.sentence_pair.build((None, self.config.hidden_size))
        self.built = True

    def call(self, inputs, training=None):
        """See the class."""
        outputs = self.backbone(inputs, training=training)
        x = masked_vectors(outputs["sequence_output"], inputs)
        logits = {
            "mlm": self.masked_lm(x, word_table=self.backbone.embeddings.word)
        }
        if self.sentence_pair is not None:
            pair = self.sentence_pair(outputs["pooled_output"])  # [B, 2]
            logits[self.sentence_task] = ops.cast(pair, "float32")
        return logits

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {**super().get_config(), "sentence_task": self.sentence_task}


class Fill(NamedTuple):
    """What may stand at a [MASK]."""

    piece: str
    """as in the vocabulary: the word mark shows where a word begins"""
    probability: float
    text: str
    """the whole text with this piece (and [MASK] where others are)"""


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForMaskedLM(HeadedModel):
    """Masked-LM alone.

    Args:
        backbone: the encoder; its word embeddings are the decoder's weights.

    Call arguments:
        inputs: those of AlbertBackbone, where "[MASK]" in a text is the mask;
            and `masked_positions`, int [B, P], every position when absent.

    Returns:
        float32 logits [B, P, V].
    """

    def __init__(self, backbone: AlbertBackbone, **kwargs):
        super().__init__(backbone, **kwargs)
        self.masked_lm = MaskedLMHead(
            self.config, dtype=self.dtype_policy, name="masked_lm"
        )
        self.build()

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.masked_lm.build()
        self.built = True

    def call(self, inputs, training=None):
        """See the class."""
        outputs = self.backbone(inputs, training=training)
        x = masked_vectors(outputs["sequence_output"], inputs)
        return self.masked_lm(x, word_table=self.backbone.embeddings.word)

    def preprocess(self, texts) -> dict:
        """As `AlbertModel.preprocess`; "[MASK]" in a text is the mask."""
        tokenizer = self.vocabulary()
        pairs = None
        if isinstance(texts, tuple) and len(texts) == 2:
            texts, pairs = texts
        texts = as_texts(texts)
        rows_a = [_masked_ids(tokenizer, text) for text in texts]
        rows_b = [None] * len(rows_a)
        if pairs is not None:
            pairs = as_texts(pairs, "pairs")
            check_equally_many(texts=texts, pairs=pairs)
            rows_b = [_masked_ids(tokenizer, text) for text in pairs]
        longest = self.config.max_position_embeddings
        rows = [
            tokenizer.pack(a, b, longest)
            for a, b in zip(rows_a, rows_b, strict=True)
        ]
        return round_length(tokenizer.pad(rows), longest)

    def fill_mask(
        self, texts: list[str], top_k: int = FILL_MASK_CHOICES
    ) -> list[list[list[Fill]]]:
        """What may stand where the texts have "[MASK]".

        Args:
            texts: B texts (not pairs), each with at least one "[MASK]".
            top_k: most probable pieces for each.

        Returns:
            For each text, for each of its masks, `top_k` `Fill`s, the most
            probable first.

        Raises:
            AlbertError: a text without "[MASK]", or one so long that a mask
                is cut off; a bare text.
        """
        check_positive("top_k", top_k)
        texts = as_texts(texts)
        x = self.preprocess(texts)
        masks = [np.flatnonzero(row == MASK_ID) for row in x["token_ids"]]
        for text, found in zip(texts, masks, strict=True):
            written = text.count(MASK)
            if len(found) != written or not written:
                raise AlbertError(
                    f'each text needs "{MASK}" within the first '
                    f"{self.config.max_position_embeddings} tokens. "
                    f"Received: {text!r:.80} ({written} masks, {len(found)} "
                    "of them in reach). Write one, or shorten the text."
                )
        positions = np.zeros((len(texts), max(map(len, masks))), "int32")
        for row, found in enumerate(masks):
            positions[row, : len(found)] = found
        logits = self.predict({**x, "masked_positions": positions}, verbose=0)
        return [
            [
                self._fills(text, number, logits[row, number], top_k)
                for number in range(len(masks[row]))
            ]
            for row, text in enumerate(texts)
        ]

    def _fills(
        self, text: str, number: int, logits: np.ndarray, top_k: int
    ) -> list[Fill]:
        probabilities = np.exp(logits - logits.max())  # [V]
        probabilities /= probabilities.sum()
        # The model may know more ids than the vocabulary has pieces.
        named = probabilities[: self.tokenizer.vocab_size]
        parts = text.split(MASK)
        before = MASK.join(parts[: number + 1])
        after = MASK.join(parts[number + 1 :])
        fills = []
        for index in np.argsort(-named)[:top_k]:
            piece = self.tokenizer.id_to_piece(index)
            word = piece.replace(WORD_MARK, " ").lstrip()
            fills.append(
                Fill(piece, float(named[index]), before + word + after)
            )
        return fills


def _masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    first, *others = text.split(MASK)
    ids = tokenizer.encode(first)
    blank = tokenizer.piece_to_id(WORD_MARK)
    for part in others:
        following = tokenizer.encode(part)
        # "[MASK]." : the word mark that SentencePiece puts before "." would
        # say that a blank stands there.
        if not part[:1].isspace() and following[:1] == [blank]:
            following = following[1:]
        ids += [MASK_ID, *following]
    return ids


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForSequenceClassification(HeadedModel):
    """One label, several labels, or a number for a text or a pair of texts.

    Args:
        backbone: the encoder, usually pretrained.
        num_labels: C, number of labels; 1 for a regression.
        problem: "single_label" (train with SparseCategoricalCrossentropy),
            "multi_label" (BinaryCrossentropy) or "regression" (mean squared
            error); the losses with `from_logits=True`.
        dropout: before the classifier (Paper Table 14).
        labels: names of the labels, where they are known.

    Call arguments:
        inputs: those of AlbertBackbone.

    Returns:
        float32 logits [B, C].

    Source: reference classifier_utils.py L768-812.
    """

    needs_pooler = True

    def __init__(
        self,
        backbone: AlbertBackbone,
        num_labels: int,
        dropout: float = CLASSIFIER_DROPOUT,
        problem: str = "single_label",
        labels: tuple[str, ...] | None = None,
        **kwargs,
    ):
        super().__init__(backbone, **kwargs)
        check_choice("problem", problem, PROBLEMS)
        self.labels = _checked_labels(
            num_labels, labels, least=2 if problem == "single_label" else 1
        )
        self.num_labels = num_labels
        self.problem = problem
        self.dropout = self._dropout(dropout)
        self.classifier = self._dense(num_labels, "classifier")
        self.build()

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.classifier.build((None, self.config.hidden_size))
        self.built = True

    def call(self, inputs, training=None):
        """See the class."""
        pooled = self.backbone(inputs, training=training)["pooled_output"]
        logits = self.classifier(self.dropout(pooled, training=training))
        return ops.cast(logits, "float32")  # [B, C]

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {
            **super().get_config(),
            "num_labels": self.num_labels,
            "dropout": self.dropout.rate,
            "problem": self.problem,
            "labels": self.labels,
        }


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForTokenClassification(HeadedModel):
    """A label for each token.

    Args:
        backbone: the encoder; its pooler is not used.
        num_labels: C, number of labels.
        dropout: before the classifier.
        labels: names of the labels, where they are known.

    Call arguments:
        inputs: those of AlbertBackbone.

    Returns:
        float32 logits [B, S, C].
    """

    def __init__(
        self,
        backbone: AlbertBackbone,
        num_labels: int,
        dropout: float = CLASSIFIER_DROPOUT,
        labels: tuple[str, ...] | None = None,
        **kwargs,
    ):
        super().__init__(backbone, **kwargs)
        self.labels = _checked_labels(num_labels, labels, least=2)
        self.num_labels = num_labels
        self.dropout = self._dropout(dropout)
        self.classifier = self._dense(num_labels, "classifier")
        self.build()

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.classifier.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, inputs, training=None):
        """See the class."""
        x = self.backbone(inputs, training=training)["sequence_output"]
        logits = self.classifier(self.dropout(x, training=training))
        return ops.cast(logits, "float32")  # [B, S, C]

    def word_examples(
        self, words: list[list[str]], labels: list[list[int]] | None = None
    ):
        """Texts that are split into words -> what `fit` takes.

        Args:
            words: B texts, each a list of words.
            labels: the label of each word, from 0 to C - 1.

        Returns:
            x; y int32 [B, S], a word's label at its first piece; and its
            sample weights float32 [B, S], 1 at those pieces, 0 elsewhere.
            Without labels y is 0.

        Raises:
            AlbertError: unequal numbers of words and labels, a label out of
                range, a word without a piece, a text that is not a list.
        """
        tokenizer = self.vocabulary()
        longest = self.config.max_position_embeddings
        # A text is the mistake that would pass: it is a list of characters.
        if (
            not isinstance(words, list | tuple)
            or not words
            or any(isinstance(text, str) for text in words)
        ):
            raise AlbertError(
                "`words` must be a list of texts, each of them a list of "
                f"words. Received: {words!r:.60}."
            )
        texts = [as_texts(text, "words") for text in words]
        if labels is None:
            labels = [[0] * len(text) for text in texts]
        check_equally_many(texts=texts, labels=labels)
        rows, starts = [], []
        for text, text_labels in zip(texts, labels, strict=True):
            _check_word_labels(text, text_labels, self.num_labels)
            ids, first = [], []
            for word, pieces in zip(
                text, tokenizer.encode_batch(text), strict=True
            ):
                if not pieces:
                    raise AlbertError(
                        f"the word {word!r} has no piece of text. Leave it out."
                    )
                first.append(len(ids) + 1)  # after [CLS]
                ids += pieces
            rows.append(tokenizer.pack(ids, None, longest))
            starts.append(first)
        x = round_length(tokenizer.pad(rows), longest)
        y = np.zeros(x["token_ids"].shape, "int32")
        weights = np.zeros(y.shape, "float32")
        for row, first in enumerate(starts):
            kept = [start for start in first if start < longest - 1]  # [SEP]
            weights[row, kept] = 1
            y[row, kept] = labels[row][: len(kept)]
        return x, y, weights

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {
            **super().get_config(),
            "num_labels": self.num_labels,
            "dropout": self.dropout.rate,
            "labels": self.labels,
        }


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForMultipleChoice(HeadedModel):
    """The right one of C choices, each read with its context (as in RACE).

    Args:
        backbone: the encoder, usually pretrained.
        dropout: before the classifier (Paper Table 14).

    Call arguments:
        inputs: those of AlbertBackbone with one more axis, [B, C, S]; or a
            dict of texts, see `preprocess`.

    Returns:
        float32 logits [B, C].

    Source: reference race_utils.py, create_model.
    """

    needs_pooler = True
    axes = ("batch", "choice", "sequence")

    def __init__(
        self,
        backbone: AlbertBackbone,
        dropout: float = CLASSIFIER_DROPOUT,
        **kwargs,
    ):
        super().__init__(backbone, **kwargs)
        self.dropout = self._dropout(dropout)
        self.classifier = self._dense(1, "classifier")
        self.build()

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.classifier.build((None, self.config.hidden_size))
        self.built = True

    def call(self, inputs, training=None):
        """See the class."""
        choices, length = ops.shape(inputs["token_ids"])[1:]
        rows = {
            name: ops.reshape(inputs[name], (-1, length))  # [B C, S]
            for name in TOKEN_INPUTS
            if name in inputs
        }
        pooled = self.backbone(rows, training=training)["pooled_output"]
        logits = self.classifier(self.dropout(pooled, training=training))
        return ops.cast(ops.reshape(logits, (-1, choices)), "float32")

    def preprocess(self, texts) -> dict:
        """Texts -> the arrays that the model is called with.

        Args:
            texts: dict of `context`, B texts; `choices`, B lists of C texts;
                and `question`, B texts, where there are any: a choice fills
                the blank "_" in its question, or stands behind it. What is
                too long is cut off the end of the context; of question and
                choice, which differ at the end, off the start.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, int32 [B, C, S].

        Source: reference race_utils.py, which gives question and choice 128
        of 512 tokens; here it is half, or what the context leaves.
        """
        needed, allowed = {"context", "choices"}, {"question"}
        if not isinstance(texts, dict) or not (
            needed <= texts.keys() <= needed | allowed
        ):
            raise AlbertError(
                "multiple choice takes a dict of `context`, `choices` and, "
                f"where there is one, `question`. Received: {_names(texts)}."
            )
        contexts = as_texts(texts["context"], "context")
        if not hasattr(texts["choices"], "__len__"):
            raise AlbertError(
                "`choices` must be a list of lists of texts. Received: "
                f"{texts['choices']!r:.60}."
            )
        choices = [as_texts(row, "choices") for row in texts["choices"]]
        questions = [""] * len(contexts)
        if "question" in texts:
            questions = as_texts(texts["question"], "question")
        check_equally_many(
            context=contexts, choices=choices, question=questions
        )
        counts = {len(row) for row in choices}
        if len(counts) != 1:
            raise AlbertError(
                "each context needs the same number of choices. Received: "
                f"{sorted(counts)}."
            )
        tokenizer = self.vocabulary()
        longest = self.config.max_position_embeddings
        room = longest - 3  # [CLS], two [SEP]
        rows = []
        for context, question, row in zip(
            tokenizer.encode_batch(contexts), questions, choices, strict=True
        ):
            least = max(room // 2, room - len(context))
            for ids in tokenizer.encode_batch(
                _with_choice(question, choice) for choice in row
            ):
                rows.append(tokenizer.pack(context, ids[-least:], longest))
        arrays = round_length(tokenizer.pad(rows), longest)
        count = counts.pop()
        return {
            name: value.reshape(len(contexts), count, -1)
            for name, value in arrays.items()
        }

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {**super().get_config(), "dropout": self.dropout.rate}


def _with_choice(question: str, choice: str) -> str:
    if "_" in question:
        return question.replace("_", choice)
    return f"{question} {choice}"


class _QuestionModel(HeadedModel):
    """Abstract: reads a question and a context that may hold the answer."""

    def preprocess(self, texts) -> dict:
        """Texts -> the arrays that the model is called with.

        Args:
            texts: dict of `question` and `context`, B texts each. What is too
                long is cut off the end of the longer of the two.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, int32 [B, S]; segment
            1 is the context.
        """
        if not isinstance(texts, dict) or texts.keys() != {
            "question",
            "context",
        }:
            raise AlbertError(
                "question answering takes a dict of `question` and "
                f"`context`. Received: {_names(texts)}."
            )
        questions = as_texts(texts["question"], "question")
        contexts = as_texts(texts["context"], "context")
        check_equally_many(question=questions, context=contexts)
        return self.tokenized(questions, contexts)


def _answerable(inputs):
    """bool [B, S]: the context, without its [SEP]; and [CLS]."""
    token_ids = inputs["token_ids"]
    segment_ids = inputs.get("segment_ids")
    if segment_ids is None:
        segment_ids = ops.zeros_like(token_ids)
    in_context = ops.logical_and(
        ops.equal(segment_ids, 1), ops.not_equal(token_ids, SEP_ID)
    )
    padding_mask = inputs.get("padding_mask")
    if padding_mask is not None:
        in_context = ops.logical_and(in_context, ops.cast(padding_mask, "bool"))
    first = ops.equal(ops.cumsum(ops.ones_like(token_ids), axis=1), 1)
    return ops.logical_or(in_context, first)


def _best(logits, count: int):
    """The log-probabilities and positions of the best, the best first."""
    log_probs, index = ops.top_k(ops.log_softmax(logits), count)
    return log_probs, ops.cast(index, "int32")  # int64 on torch


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForQuestionAnswering(_QuestionModel):
    """Where an answer starts and ends (SQuAD 1.1).

    Args:
        backbone: the encoder; its pooler is not used.

    Call arguments:
        inputs: those of AlbertBackbone; segment 1 is the context. Or a dict
            of texts, see `preprocess`.

    Returns:
        dict of float32 logits [B, S]: `start` and `end`, of every position,
        as the reference: nothing is masked.

    Source: reference squad_utils.py, create_v1_model.
    """

    def __init__(self, backbone: AlbertBackbone, **kwargs):
        super().__init__(backbone, **kwargs)
        self.span = self._dense(2, "span")
        self.build()

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        self.span.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, inputs, training=None):
        """See the class."""
        x = self.backbone(inputs, training=training)["sequence_output"]
        start, end = ops.unstack(ops.cast(self.span(x), "float32"), axis=-1)
        return {"start": start, "end": end}


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForQuestionAnsweringV2(_QuestionModel):
    """Where an answer starts and ends, and whether there is one (SQuAD 2.0).

    The end is predicted from a given start: the true one in training, each of
    the K best ones afterwards.

    Args:
        backbone: the encoder; its pooler is not used.
        beam: K, starts that are followed, and ends for each.
        dropout: of the answer class.

    Call arguments:
        inputs: those of AlbertBackbone; segment 1 is the context. In training
            also `start_positions`, int [B], the true start.

    Returns:
        With `start_positions`, a dict of float32 logits: `start` [B, S],
        `end` [B, S], `answer_class` [B] (above 0: no answer). The loss of the
        reference is half the cross-entropy of each of the three.
        Without, the beam: `start_top_log_probs` and `start_top_index` [B, K],
        `end_top_log_probs` and `end_top_index` [B, K, K] (the ends of each
        start), and `answer_class` [B].

    Source: reference squad_utils.py L1428-1575.
    """

    def __init__(
        self,
        backbone: AlbertBackbone,
        beam: int = QA_BEAM,
        dropout: float = CLASSIFIER_DROPOUT,
        **kwargs,
    ):
        super().__init__(backbone, **kwargs)
        check_positive("beam", beam)
        size = self.config.hidden_size
        self.beam = beam
        self.start = self._dense(1, "start")
        self.end_dense = self._dense(size, "end_dense", activation="tanh")
        self.end_layer_norm = layer_norm("end_layer_norm", self.dtype_policy)
        self.end = self._dense(1, "end")
        self.answer_dense = self._dense(size, "answer_dense", activation="tanh")
        self.dropout = self._dropout(dropout)
        self.answer = self._dense(1, "answer", use_bias=False)
        self.build()

    def build(self, input_shape=None):
        """Makes the weights; their shapes follow from the config."""
        size = self.config.hidden_size
        self.start.build((None, None, size))
        self.end_dense.build((None, None, 2 * size))
        self.end_layer_norm.build((None, None, size))
        self.end.build((None, None, size))
        self.answer_dense.build((None, 2 * size))
        self.answer.build((None, size))
        self.built = True

    def call(self, inputs, training=None):
        """See the class."""
        x = self.backbone(inputs, training=training)["sequence_output"]
        answerable = _answerable(inputs)
        start = self._masked(self.start(x), answerable)  # [B, S]
        answer_class = self._answer_class(x, start, training)
        start_positions = inputs.get("start_positions")
        if start_positions is not None:
            end = self._end(x, ops.expand_dims(start_positions, 1), answerable)
            return {
                "start": start,
                "end": end[:, 0],
                "answer_class": answer_class,
            }
        beam = min(self.beam, x.shape[1] or self.beam)
        start_log_probs, start_index = _best(start, beam)  # [B, K]
        end = self._end(x, start_index, answerable)  # [B, K, S]
        end_log_probs, end_index = _best(end, beam)  # [B, K, K]
        return {
            "start_top_log_probs": start_log_probs,
            "start_top_index": start_index,
            "end_top_log_probs": end_log_probs,
            "end_top_index": end_index,
            "answer_class": answer_class,
        }

    def _masked(self, logits, answerable):
        """[..., S, 1] -> float32 [..., S], IMPOSSIBLE where no answer is."""
        logits = ops.cast(ops.squeeze(logits, -1), "float32")
        return ops.where(answerable, logits, IMPOSSIBLE)

    def _end(self, x, starts, answerable):
        """Of K starts, int [B, K], the logits of the ends, [B, K, S]."""
        start_vectors = ops.take_along_axis(
            x, ops.expand_dims(starts, 2), axis=1
        )  # [B, K, H]
        start_vectors = ops.expand_dims(start_vectors, 2)  # [B, K, 1, H]
        batch, length, hidden = ops.shape(x)
        shape = (batch, ops.shape(starts)[1], length, hidden)  # [B, K, S, H]
        both = ops.concatenate(
            [
                ops.broadcast_to(ops.expand_dims(x, 1), shape),
                ops.broadcast_to(start_vectors, shape),
            ],
            axis=-1,
        )
        hidden = self.end_layer_norm(self.end_dense(both))  # [B, K, S, H]
        return self._masked(self.end(hidden), ops.expand_dims(answerable, 1))

    def _answer_class(self, x, start, training):
        """float32 [B]: of the expected start's vector beside [CLS]."""
        probs = ops.cast(ops.softmax(start), x.dtype)  # [B, S]
        start_vector = ops.einsum("bs,bsh->bh", probs, x)
        both = ops.concatenate([start_vector, x[:, 0]], axis=-1)  # [B, 2 H]
        hidden = self.dropout(self.answer_dense(both), training=training)
        return ops.cast(ops.squeeze(self.answer(hidden), -1), "float32")

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {
            **super().get_config(),
            "beam": self.beam,
            "dropout": self.dropout.rate,
        }


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForTextEmbedding(HeadedModel):
    """A vector for a text.

    A pretrained encoder alone gives poor ones: fine-tune it on pairs first.

    Args:
        backbone: the encoder; its pooler is not used.
        pooling: "mean" of the vectors of all tokens, or "cls", the first one.

    Call arguments:
        inputs: those of AlbertBackbone.

    Returns:
        float32 [B, H].
    """

    def __init__(
        self, backbone: AlbertBackbone, pooling: str = "mean", **kwargs
    ):
        super().__init__(backbone, **kwargs)
        check_choice("pooling", pooling, POOLINGS)
        self.pooling = pooling
        self.build()

    def build(self, input_shape=None):
        """There are no weights beside the encoder's."""
        self.built = True

    def call(self, inputs, training=None):
        """See the class."""
        x = self.backbone(inputs, training=training)["sequence_output"]
        x = ops.cast(x, "float32")
        if self.pooling == "cls":
            return x[:, 0]
        mask = inputs.get("padding_mask")
        if mask is None:
            mask = ops.not_equal(inputs["token_ids"], PAD_ID)
        mask = ops.expand_dims(ops.cast(mask, "float32"), -1)  # [B, S, 1]
        return ops.sum(x * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1)

    def encode(
        self, texts: list[str], batch_size: int = 32, normalize: bool = True
    ) -> np.ndarray:
        """The vectors of texts.

        Args:
            texts: N texts.
            batch_size: texts at a time.
            normalize: to length 1.

        Returns:
            float32 [N, H].
        """
        vectors = self.predict(texts, batch_size=batch_size, verbose=0)
        if not normalize:
            return vectors
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

    def similarity(self, a: list[str], b: list[str]) -> np.ndarray:
        """Cosine of the angle between texts, float32 [len(a), len(b)]."""
        return self.encode(a) @ self.encode(b).T

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {**super().get_config(), "pooling": self.pooling}


def _checked_labels(num_labels: int, labels, least: int):
    if type(num_labels) is not int or num_labels < least:
        raise AlbertError(
            f"`num_labels` must be an integer of {least} or more. "
            f"Received: {num_labels!r}."
        )
    if labels is None:
        return None
    is_list = isinstance(labels, list | tuple)
    if not is_list or not len(labels) == len({*map(str, labels)}) == num_labels:
        raise AlbertError(
            f"`labels` must be a list of {num_labels} different names "
            f"(num_labels={num_labels}). Received: {labels!r:.80}."
        )
    return tuple(labels)


def _check_word_labels(words, labels, num_labels: int) -> None:
    if not hasattr(labels, "__len__") or len(words) != len(labels):
        raise AlbertError(
            f"each of the words {words!r:.60} needs a label. Received: "
            f"{labels!r:.60} for {len(words)} words."
        )
    for word, label in zip(words, labels, strict=True):
        if type(label) is bool or not (
            isinstance(label, int | np.integer) and 0 <= label < num_labels
        ):
            raise AlbertError(
                f"a label must be an integer from 0 to {num_labels - 1}. "
                f"Received: {label!r} for {word!r}."
            )


def _names(texts):
    return sorted(texts) if isinstance(texts, dict) else type(texts).__name__
