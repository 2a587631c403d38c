"""Heads that classify texts, tokens, or the choices of a question.

Letters: B batch, C labels or choices, S sequence length, H hidden size.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_albert.errors import AlbertError, check_choice, is_whole
from keras_albert.modeling.backbone import AlbertBackbone, HeadedModel
from keras_albert.modeling.config import CLASSIFIER_DROPOUT, EXITS
from keras_albert.modeling.exits import ExitClassifiers, loss_weights
from keras_albert.modeling.inputs import (
    TOKEN_INPUTS,
    as_list,
    as_texts,
    check_equally_many,
    names_of,
    round_length,
    vocabulary_of,
)
from keras_albert.modeling.labels import Classes
from keras_albert.text.model_inputs import Row, choice_rows, word_rows

PROBLEMS = ("single_label", "multi_label", "regression")


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForSequenceClassification(HeadedModel):
    """Predicts labels or a number for a text or a pair of texts.

    Args:
        backbone: the encoder, usually pretrained.
        num_labels: C, number of labels; 1 for a regression (a model of several
            numbers can be trained and loaded, but `Predictor`, the commands and
            exports take one of a single number); None for as many as `labels`.
        problem: "single_label" (train with SparseCategoricalCrossentropy),
            "multi_label" (BinaryCrossentropy) or "regression" (mean squared
            error); the losses with `from_logits=True`.
        dropout: dropout rate before the classifier (Paper Table 14).
        labels: C names of the labels; None if they have no names.
        exits: one of EXITS, to classify from lower layers, too, so that
            inference may stop there, see `EarlyExit`; or None. `fit` then
            minimizes the weighted sum of the losses of all layers.

    Call arguments:
        inputs: see AlbertBackbone.
        return_exits: return the logits of each layer; only with `exits`.

    Returns:
        float32 logits [B, C]; [B, L, C] with `return_exits`, and in training
        with `exits`.

    Raises:
        AlbertError: the backbone has no pooler, an argument is out of range,
            or `labels` are not C different names.

    Sources: reference classifier_utils.py L768-812; Zhou et al. 2020
    (arXiv:2006.04152) for `exits`.
    """

    needs_pooler = True
    has_one_class = True  # but for `problem`, see `classes`

    def __init__(
        self,
        backbone: AlbertBackbone,
        num_labels: int | None = None,
        dropout: float = CLASSIFIER_DROPOUT,
        problem: str = "single_label",
        labels: tuple[str, ...] | None = None,
        exits: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(backbone, **kwargs)
        check_choice("problem", problem, PROBLEMS)
        if exits is not None:
            check_choice("exits", exits, EXITS)
            if self.config.num_hidden_layers == 1:
                raise AlbertError(
                    "a model with a single layer cannot stop before it. "
                    f"Received: exits={exits!r}. Leave it out."
                )
        self.num_labels, self.labels = _checked_labels(
            num_labels, labels, least=2 if problem == "single_label" else 1
        )
        self.problem = problem
        self.dropout = self._dropout(dropout)
        self.classifier = self._logits(self.num_labels, "classifier")
        self.exits = exits
        self.exit_classifiers = None
        if exits == "own":
            self.exit_classifiers = ExitClassifiers(
                self.config, self.num_labels, name="exit_classifiers"
            )
        if exits == "drawn":
            self.drawn_layers = keras.random.SeedGenerator()
            self.drawn_layers.same_in_replicas = True
        self.build()

    def build(self, input_shape: Any = None) -> None:
        self.classifier.build((None, self.config.hidden_size))
        if self.exit_classifiers is not None:
            self.exit_classifiers.build()
        self.built = True

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        flat = keras.tree.flatten(inputs)
        if self.exits and any(isinstance(x, keras.KerasTensor) for x in flat):
            raise AlbertError(
                "a model with exits cannot be a part of a functional model, "
                "which would not weight the losses of its layers. Received: "
                f"exits={self.exits!r}. Make it with exits=None."
            )
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self,
        inputs: Mapping[str, Any],
        training: bool | None = None,
        return_exits: bool = False,
    ) -> Any:
        if return_exits and self.exits is None:
            raise AlbertError(
                "`return_exits` needs a model with `exits`. Received: "
                "exits=None."
            )
        if return_exits or (training and self.exits):
            return self._exit_logits(inputs, training)  # [B, L, C]
        pooled = self.pooled(inputs, training)
        logits = self.classifier(self.dropout(pooled, training=training))
        return logits  # [B, C]

    def _exit_logits(self, inputs, training):
        outputs = self.backbone(
            inputs, training=training, return_hidden_states=True
        )
        first = ops.stack([x[:, 0] for x in outputs["hidden_states"]], axis=1)
        pooled = self.backbone.pooler(first)  # [B, L, H]
        pooled = self.dropout(pooled, training=training)
        if self.exit_classifiers is None:
            return self.classifier(pooled)
        lower = self.exit_classifiers(pooled[:, :-1])
        return ops.concatenate([lower, self.classifier(pooled[:, -1:])], axis=1)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """The loss; for the logits of all layers, a weighted sum of losses."""
        if len(y_pred.shape) == 2:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        count = self.config.num_hidden_layers
        seed = self.drawn_layers if self.exits == "drawn" else None
        weights = loss_weights(self.exits, count, seed)
        losses = [
            super(AlbertForSequenceClassification, self).compute_loss(
                x, y, y_pred[:, layer], sample_weight, training
            )
            for layer in range(count)
        ]
        return ops.sum(weights * ops.stack(losses))

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        """The metrics of the last layer's logits."""
        if len(y_pred.shape) == 3:
            y_pred = y_pred[:, -1]
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def classes(self, shape: Any) -> dict[str | None, Classes]:
        """Labels are 0 to C - 1, or names; only with one label per example."""
        if self.problem != "single_label":
            return {}
        why = f"num_labels={self.num_labels}"
        return {None: Classes(self.num_labels, why, self.labels)}

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_labels": self.num_labels,
            "dropout": self.dropout.rate,
            "problem": self.problem,
            "labels": self.labels,
            "exits": self.exits,
        }


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForTokenClassification(HeadedModel):
    """Predicts a label for each token.

    Args:
        backbone: the encoder; its pooler is not used.
        num_labels: C, number of labels; None for as many as `labels`.
        dropout: dropout rate before the classifier.
        labels: C names of the labels; None if they have no names.

    Call arguments:
        inputs: see AlbertBackbone.

    Returns:
        float32 logits [B, S, C].

    Raises:
        AlbertError: an argument is out of range, or `labels` are not C
            different names.
    """

    def __init__(
        self,
        backbone: AlbertBackbone,
        num_labels: int | None = None,
        dropout: float = CLASSIFIER_DROPOUT,
        labels: tuple[str, ...] | None = None,
        **kwargs: Any,
    ):
        super().__init__(backbone, **kwargs)
        self.num_labels, self.labels = _checked_labels(
            num_labels, labels, least=2
        )
        self.dropout = self._dropout(dropout)
        self.classifier = self._logits(self.num_labels, "classifier")
        self.build()

    def build(self, input_shape: Any = None) -> None:
        self.classifier.build((None, None, self.config.hidden_size))
        self.built = True

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> Any:
        x = self.backbone(inputs, training=training)["sequence_output"]
        return self.classifier(self.dropout(x, training=training))  # [B, S, C]

    def classes(self, shape: Any) -> dict[str | None, Classes]:
        """Labels are 0 to C - 1, or names."""
        why = f"num_labels={self.num_labels}"
        return {None: Classes(self.num_labels, why, self.labels)}

    def word_examples(
        self, words: list[list[str]], labels: list[list[int]] | None = None
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Converts labelled words into the x, y and sample weights of `fit`.

        A text that is too long is cut after the last word that fits.

        Args:
            words: B texts, each a list of words.
            labels: the label of each word, from 0 to C - 1, or its name if
                the model has `labels`; None to predict.

        Returns:
            x, the ids; y, int32 [B, S], a word's label at its first piece and
            0 elsewhere; and sample weights, float32 [B, S], 1 at the first
            piece of each word and 0 elsewhere.

        Raises:
            AlbertError: the numbers of words and labels differ, a label is
                out of range, or a text is not a list of words.
        """
        tokenizer = vocabulary_of(self)
        longest = self.config.max_position_embeddings
        # A plain string must be refused: it is a sequence of characters.
        is_list = isinstance(words, list | tuple) and len(words) > 0
        if not is_list or any(isinstance(text, str) for text in words):
            raise AlbertError(
                "`words` must be a list of texts, each of them a list of "
                f"words. Received: {words!r:.60}."
            )
        texts = [as_texts(text, "words") for text in words]
        if labels is None:
            labels = [[0] * len(text) for text in texts]
        check_equally_many(texts=texts, labels=labels)
        numbers = {name: i for i, name in enumerate(self.labels or ())}
        labels = [
            [
                numbers.get(each, each) if isinstance(each, str) else each
                for each in row
            ]
            if isinstance(row, list | tuple)
            else row
            for row in labels
        ]
        rows, starts = [], []
        for text, text_labels in zip(texts, labels, strict=True):
            _check_word_labels(text, text_labels, self.num_labels, self.labels)
            (row, first), *_ = word_rows(tokenizer, text, longest)
            rows.append(row)
            starts.append(first)
        x = round_length(_padded(tokenizer, rows), longest)
        y = np.zeros(x["token_ids"].shape, "int32")
        weights = np.zeros(y.shape, "float32")
        for row, first in enumerate(starts):
            weights[row, first] = 1
            y[row, first] = labels[row][: len(first)]
        return x, y, weights

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_labels": self.num_labels,
            "dropout": self.dropout.rate,
            "labels": self.labels,
        }


@keras.saving.register_keras_serializable("keras_albert")
class AlbertForMultipleChoice(HeadedModel):
    """Picks one of C choices, each read with its context (as in RACE).

    Args:
        backbone: the encoder, usually pretrained.
        dropout: dropout rate before the classifier (Paper Table 14).

    Call arguments:
        inputs: as for AlbertBackbone, but [B, C, S]; or texts.

    Returns:
        float32 logits [B, C].

    Raises:
        AlbertError: the backbone has no pooler, or `dropout` is out of range.

    Source: reference race_utils.py, create_model.
    """

    needs_pooler = True
    axes = ("batch", "choice", "sequence")
    has_one_class = True

    def __init__(
        self,
        backbone: AlbertBackbone,
        dropout: float = CLASSIFIER_DROPOUT,
        **kwargs: Any,
    ):
        super().__init__(backbone, **kwargs)
        self.dropout = self._dropout(dropout)
        self.classifier = self._logits(1, "classifier")
        self.build()

    def build(self, input_shape: Any = None) -> None:
        self.classifier.build((None, self.config.hidden_size))
        self.built = True

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> Any:
        choices, length = ops.shape(inputs["token_ids"])[1:]
        rows = {
            name: ops.reshape(inputs[name], (-1, length))  # [B C, S]
            for name in TOKEN_INPUTS
            if name in inputs
        }
        pooled = self.pooled(rows, training)
        logits = self.classifier(self.dropout(pooled, training=training))
        return ops.reshape(logits, (-1, choices))

    def classes(self, shape: Any) -> dict[str | None, Classes]:
        """Labels are the indices of the choices, 0 to C - 1."""
        return {None: Classes(shape[1], "as many as there are choices")}

    def preprocess(self, texts: Any) -> dict:
        """Tokenizes texts into the arrays that the model is called with.

        Args:
            texts: dict of `context`, B texts; `choices`, B lists of C texts;
                and optionally `question`, B texts. `choice_rows` joins them.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask`, int32 [B, C, S].

        Raises:
            AlbertError: the keys differ, the parts are not equally many, or
                contexts have different numbers of choices.
        """
        texts = self.named_texts(texts)
        contexts = as_texts(texts["context"], "context")
        if not hasattr(texts["choices"], "__len__"):
            raise AlbertError(
                "`choices` must be a list of lists of texts. Received: "
                f"{texts['choices']!r:.60}."
            )
        choices = [as_texts(x, "choices") for x in as_list(texts["choices"])]
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
        tokenizer = vocabulary_of(self)
        longest = self.config.max_position_embeddings
        rows = choice_rows(tokenizer, contexts, questions, choices, longest)
        arrays = round_length(_padded(tokenizer, rows), longest)
        count = counts.pop()
        return {
            name: value.reshape(len(contexts), count, -1)
            for name, value in arrays.items()
        }

    def named_texts(self, texts: Any) -> dict:
        """The dict itself; raises AlbertError if it has other keys."""
        needed, allowed = {"context", "choices"}, {"question"}
        if not isinstance(texts, dict) or not (
            needed <= texts.keys() <= needed | allowed
        ):
            raise AlbertError(
                "multiple choice takes a dict of `context`, `choices` and, "
                f"where there is one, `question`. Received: {names_of(texts)}."
            )
        return texts

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dropout": self.dropout.rate}


def _padded(tokenizer, rows: list[Row]) -> dict[str, np.ndarray]:
    return tokenizer.pad(
        [(ids, np.arange(len(ids)) >= first) for ids, first, _ in rows]
    )


def default_labels(count: int) -> tuple[str, ...]:
    """Names for classes that have none: "0", "1" and so on."""
    return tuple(map(str, range(count)))


def _checked_labels(num_labels, labels, least: int):
    """The number of labels, by default that of their names; and the names."""
    if num_labels is None and hasattr(labels, "__len__"):
        num_labels = len(labels)
    if not is_whole(num_labels) or num_labels < least:
        raise AlbertError(
            f"`num_labels` must be an integer of {least} or more; or give "
            f"names, labels=[...]. Received: num_labels={num_labels!r}."
        )
    if labels is None:
        return int(num_labels), None
    if hasattr(labels, "tolist"):  # an array, or a column of a frame
        labels = labels.tolist()
    is_list = isinstance(labels, list | tuple)
    if not is_list or not len(labels) == len({*map(str, labels)}) == num_labels:
        raise AlbertError(
            f"`labels` must be a list of {num_labels} different names "
            f"(num_labels={num_labels}). Received: {labels!r:.80}."
        )
    # In `y` the number 1 is the second label, whatever its name. In tables it
    # is a name.
    for place, name in enumerate(labels):
        if isinstance(name, int | float | np.generic) and name != place:
            raise AlbertError(
                "a label that is named by a number must have its place, from "
                f"0 to {num_labels - 1}. Received: {labels!r:.80}. Give names "
                "that are texts, and labels by these names."
            )
    return int(num_labels), tuple(labels)


def _check_word_labels(words, labels, num_labels: int, names) -> None:
    if any(not word.strip() for word in words):
        raise AlbertError(
            f"a word is empty. Received: {words!r:.60}. Remove it, and its "
            "label."
        )
    if not hasattr(labels, "__len__") or len(words) != len(labels):
        raise AlbertError(
            f"each of the words {words!r:.60} needs a label. Received: "
            f"{labels!r:.60} for {len(words)} words."
        )
    for word, label in zip(words, labels, strict=True):
        if type(label) is bool or not (
            isinstance(label, int | np.integer) and 0 <= label < num_labels
        ):
            named = (
                ", or one of " + ", ".join(map(repr, names)) if names else ""
            )
            raise AlbertError(
                f"a label must be an integer from 0 to {num_labels - 1}"
                f"{named}. Received: {label!r} for {word!r}."
            )
