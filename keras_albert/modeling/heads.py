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
from keras_albert.modeling.inputs import as_texts, round_length
from keras_albert.modeling.model import AlbertModel

IMPOSSIBLE = -1e30  # logit of a position that holds no answer
SENTENCE_TASKS = ("sop", "nsp", None)
PROBLEMS = ("single_label", "multi_label", "regression")
POOLINGS = ("mean", "cls")


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
        logits = {"mlm": self.masked_lm(x, word_table=self.backbone.embeddings.word)}
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
        longest = self.config.max_position_embeddings
        tokenizer = self.vocabulary()
        if isinstance(texts, tuple) and len(texts) == 2:
            pairs = zip(*map(as_texts, texts), strict=True)
        else:
            pairs = ((text, None) for text in as_texts(texts))
        rows = [
            tokenizer.pack(
                _masked_ids(tokenizer, a),
                None if b is None else _masked_ids(tokenizer, b),
                longest,
            )
            for a, b in pairs
        ]
        return round_length(tokenizer.pad(rows), longest)

    def fill_mask(
        self, texts: list[str], top_k: int = FILL_MASK_CHOICES
    ) -> list[list[list[Fill]]]:
        """What may stand where the texts have "[MASK]".

        Args:
            texts: B texts, each with at least one "[MASK]".
            top_k: most probable pieces for each.

        Returns:
            For each text, for each of its masks, `top_k` `Fill`s, the most
            probable first.

        Raises:
            AlbertError: a text without "[MASK]", or one so long that a mask
                is cut off; a bare text.
        """
        check_positive("top_k", top_k)
        top_k = min(top_k, self.config.vocab_size)
        x = self.preprocess(texts)
        is_mask = x["token_ids"] == MASK_ID
        for text, found in zip(texts, is_mask.sum(-1), strict=True):
            written = str(text).count(SPECIAL_PIECES[MASK_ID])
            if found != written or not written:
                raise AlbertError(
                    'each text needs "[MASK]" within the first '
                    f"{self.config.max_position_embeddings} tokens. "
                    f"Received: {text!r:.80} ({written} masks, {found} of "
                    "them in reach)."
                )
        logits = self.predict(x, verbose=0)
        return [
            [
                self._fills(text, number, logits[row, column], top_k)
                for number, column in enumerate(np.flatnonzero(is_mask[row]))
            ]
            for row, text in enumerate(texts)
        ]

    def _fills(self, text, number, logits, top_k) -> list[Fill]:
        probabilities = np.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        mask = SPECIAL_PIECES[MASK_ID]
        before, after = text.split(mask)[: number + 1], text.split(mask)
        before, after = mask.join(before), mask.join(after[number + 1 :])
        fills = []
        for index in np.argsort(-probabilities)[:top_k]:
            piece = self.tokenizer.id_to_piece(int(index))
            word = piece.replace("▁", " ").lstrip()
            fills.append(
                Fill(piece, float(probabilities[index]), before + word + after)
            )
        return fills


def _masked_ids(tokenizer, text) -> list[int]:
    parts = text.split(SPECIAL_PIECES[MASK_ID])
    ids = tokenizer.encode(parts[0])
    for part in parts[1:]:
        following = tokenizer.encode(part)
        # "[MASK]." : the word mark that SentencePiece puts before "." would
        # say that a blank stands there.
        if not part[:1].isspace() and following[:1] == [
            tokenizer.piece_to_id("▁")
        ]:
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
                range, a word without a piece.
        """
        tokenizer = self.vocabulary()
        longest = self.config.max_position_embeddings
        rows, starts = [], []
        for text in words:
            if isinstance(text, str):
                raise AlbertError(
                    f"each text must be a list of words. Received: {text!r:.60}."
                )
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
            first = [i for i in first if i < longest - 1]
            weights[row, first] = 1
            if labels is not None:
                _check_word_labels(words[row], labels[row], self.num_labels)
                y[row, first] = labels[row][: len(first)]
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
            name: ops.reshape(value, (-1, length))  # [B C, S]
            for name, value in inputs.items()
        }
        pooled = self.backbone(rows, training=training)["pooled_output"]
        logits = self.classifier(self.dropout(pooled, training=training))
        return ops.cast(ops.reshape(logits, (-1, choices)), "float32")

    def preprocess(self, texts) -> dict:
        """Texts -> the arrays that the model is called with.

        Args:
            texts: dict of `context`, B texts; `choices`, B lists of C texts;
                and `question`, B texts that stand before each choice, where
                there are any.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, int32 [B, C, S].
        """
        needed, allowed = {"context", "choices"}, {"question"}
        if not isinstance(texts, dict) or not (
            needed <= texts.keys() <= needed | allowed
        ):
            raise AlbertError(
                "multiple choice takes a dict of `context`, `choices` and, "
                f"where there is one, `question`. Received: {_names(texts)}."
            )
        contexts, choices = texts["context"], texts["choices"]
        questions = texts.get("question", [""] * len(contexts))
        counts = {len(each) for each in choices}
        sizes = {len(contexts), len(choices), len(questions)}
        if len(sizes) != 1 or len(counts) != 1 or counts == {0}:
            raise AlbertError(
                "`context`, `choices` and `question` must be equally many, "
                "with the same number of choices for each. Received: "
                f"{len(contexts)} contexts, {len(questions)} questions, "
                f"{len(choices)} rows of {sorted(counts)} choices."
            )
        count = counts.pop()
        arrays = self.tokenized(
            [context for context in contexts for _ in range(count)],
            [
                f"{question} {choice}".strip()
                for question, row in zip(questions, choices, strict=True)
                for choice in row
            ],
        )
        return {
            name: value.reshape(len(contexts), count, -1)
            for name, value in arrays.items()
        }

    def get_config(self):
        """Serializable arguments of the constructor."""
        return {**super().get_config(), "dropout": self.dropout.rate}


class _QuestionModel(HeadedModel):
    """Abstract: reads a question and a context that may hold the answer."""

    def preprocess(self, texts) -> dict:
        """Texts -> the arrays that the model is called with.

        Args:
            texts: dict of `question` and `context`, B texts each. What is too
                long is cut off the end of the context; of the question, what
                would leave the context less than half of the tokens.

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
        questions, contexts = map(
            as_texts, (texts["question"], texts["context"])
        )
        if len(questions) != len(contexts) or not questions:
            raise AlbertError(
                "`question` and `context` must be equally many, one or more. "
                f"Received: {len(questions)} questions, {len(contexts)} "
                "contexts."
            )
        tokenizer = self.vocabulary()
        longest = self.config.max_position_embeddings
        room = longest - 3
        rows = []
        for question, context in zip(
            tokenizer.encode_batch(questions),
            tokenizer.encode_batch(contexts),
            strict=True,
        ):
            question = question[: room // 2]
            context = context[: room - len(question)]
            rows.append(tokenizer.pack(question, context, longest))
        return round_length(tokenizer.pad(rows), longest)


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
        start_top = ops.top_k(ops.log_softmax(start), beam)  # [B, K]
        end = self._end(x, start_top[1], answerable)  # [B, K, S]
        end_top = ops.top_k(ops.log_softmax(end), beam)  # [B, K, K]
        return {
            "start_top_log_probs": start_top[0],
            "start_top_index": start_top[1],
            "end_top_log_probs": end_top[0],
            "end_top_index": end_top[1],
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
            mask = ops.not_equal(inputs["token_ids"], 0)
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
    if isinstance(labels, str) or len(set(labels)) != num_labels:
        raise AlbertError(
            f"`labels` must be {num_labels} different names (num_labels="
            f"{num_labels}). Received: {labels!r:.80}."
        )
    return tuple(labels)


def _check_word_labels(words, labels, num_labels: int) -> None:
    if len(words) != len(labels):
        raise AlbertError(
            "each word needs a label. Received: "
            f"{len(words)} words, {len(labels)} labels in {words!r:.60}."
        )
    for word, label in zip(words, labels, strict=True):
        if not 0 <= label < num_labels:
            raise AlbertError(
                f"a label must be from 0 to {num_labels - 1}. "
                f"Received: {label} for {word!r}."
            )


def _names(texts):
    return sorted(texts) if isinstance(texts, dict) else type(texts).__name__
