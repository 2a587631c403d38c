"""Predictor: a model with its vocabulary, labels and task."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from scipy import special

from keras_albert.data.bad_rows import IN_MEMORY
from keras_albert.data.batches import Features
from keras_albert.data.config import OtherColumns, TableColumns
from keras_albert.data.frames import Frame
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import ConvertRun, PredictRun
from keras_albert.finetuning.task_model import TaskModel
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.inputs import as_list, check_equally_many
from keras_albert.tasks.config import SeveralModelsUse
from keras_albert.tasks.infer import decision_threshold, settled_settings
from keras_albert.tasks.labels import Names
from keras_albert.tasks.task_file import load_models, stored_settings
from keras_albert.text.tokenizer import check_batch
from keras_albert.text.unknown import warn_if_unreadable
from keras_albert.training.model_folder import ModelFolder


@dataclasses.dataclass(frozen=True)
class Predictor(TaskModel):
    """Predicts for texts, with a model, its vocabulary, labels and task.

    `Predictor(model)` takes every model of this package and infers the task
    from its head. `Predictor.load` reads any source of `load`.

    Args:
        model: a model with any head. A backbone gives a vector for each text,
            and a masked-LM head the pieces at each "[MASK]".
        task: a name that `finetune --task` takes, "embedding" or "fill_mask".
            It is needed if several tasks fit the head, as for task="pairs".
        labels: names of the classes in the order of the logits. The default
            is the model's own names, or "0", "1" and so on.
        tokenizer: the vocabulary, which is set in a model without one.
        lengths: ascending lengths of padded rows, in tokens; longer texts are
            cut off. By default powers of two, up to the most tokens that
            the model reads.
        columns: names of the columns in tables.
        reading: how contexts are read; by default in windows of 384 tokens, or
            as many as the model can read. None for a task without contexts.
        early_exit: when a model with `exits` stops before its last layer.
        threshold: of two labels, the probability of the second one above which
            it is predicted; with several labels for a text, a list of these
            for all labels. By default the most probable label is predicted,
            or every label with a probability above 0.5.
        long_texts: what becomes of a text that is longer than the longest of
            `lengths`: "cut"; or it is read in overlapping windows, of which the
            probabilities are averaged ("mean") or the highest logits count
            ("max"). For a label, labels or a number of single texts.

    Raises:
        AlbertError: an argument does not fit, or there is no vocabulary.
    """

    def __post_init__(self):
        stands_in = hasattr(self.model, "predict_on_batch") and not isinstance(
            self.model, keras.Model
        )
        if stands_in:  # an exported model; its caller gives all settings
            return
        if isinstance(self.model, str | os.PathLike):
            raise AlbertError(
                f"expected a model. Received: {str(self.model)!r}. Read it "
                "with Predictor.load."
            )
        for name, value in settled_settings(**vars(self)).items():
            object.__setattr__(self, name, value)

    @classmethod
    def load(
        cls,
        source: str | Path | Sequence[str | Path],
        *,
        average: str = SeveralModelsUse.average,
        gelu: str = ConvertRun.gelu,
        dtype: str | keras.DTypePolicy = "float32",
        loop: str | None = None,
        remat: bool | None = None,
        **settings: Any,
    ) -> "Predictor":
        """Reads a model from any source that `keras_albert.load` takes.

        Args:
            source: a folder of `finetune`, `save` or `convert`, a `.keras`
                file, a folder of transformers, `hf://...`, and so on. A list,
                or the output of `finetune --seeds`, is read as an ensemble.
            average: of several models, "predictions" or "weights".
            gelu, dtype, loop, remat: see `keras_albert.load`.
            settings: arguments of Predictor, which override stored ones.

        Raises:
            AlbertError: as `load`, and as Predictor itself.
        """
        loaded = load_models(
            source, average, gelu=gelu, dtype=dtype, loop=loop, remat=remat
        )
        return cls.of(loaded, **settings)

    @classmethod
    def of(cls, loaded: ModelFolder, **settings: Any) -> "Predictor":
        """The predictor of a loaded folder; `settings` as in `load`."""
        given = {
            name: value
            for name, value in settings.items()
            # A stored rule is taken off by `early_exit=None`.
            if value is not None or name == "early_exit"
        }
        stored = {"tokenizer": loaded.tokenizer}
        # The stored labels and lengths belong to the stored task.
        if given.get("task", loaded.task["task"]) == loaded.task["task"]:
            stored |= stored_settings(loaded.task)
        _check_labels(loaded.model, stored.get("labels"), given.get("labels"))
        named = given.get("columns")
        if isinstance(named, OtherColumns):
            trained = stored.get("columns") or TableColumns()
            given["columns"] = named.instead_of(trained)
        predictor = cls(loaded.model, **stored | given)
        if isinstance(named, OtherColumns):
            predictor.definition.check_columns(named, predictor.columns)
        return predictor

    def save(self, folder: str | Path) -> None:
        """Writes a model folder; if that fails, nothing remains of it.

        `Predictor.load`, `keras_albert.load` and the commands `predict`,
        `evaluate`, `export` and `finetune` read it, on any backend.

        Args:
            folder: an empty or new folder.
        """
        content = ModelFolder(self.model, self.tokenizer, self.settings())
        content.save_new(folder)

    def with_threshold(self, threshold: float | Sequence[float]) -> "Predictor":
        """A copy with another `threshold`.

        For questions it is the limit for "no answer", see `ReadingConfig`.

        Raises AlbertError if it does not fit the task, or the model was trained
        on questions that all have an answer.
        """
        if self.reading is None:  # checked here, as `model` may be exported
            limits = decision_threshold(threshold, self.task, self.labels)
            return dataclasses.replace(self, threshold=limits)
        if self.labels is None:
            raise AlbertError(
                "this model always answers, and no threshold changes that. "
                f"Received: threshold={threshold!r:.60}. Only one that was "
                "trained on questions without an answer has a threshold."
            )
        reading = dataclasses.replace(self.reading, threshold=threshold)
        return dataclasses.replace(self, reading=reading)

    def predict(
        self,
        texts: list,
        pairs: list[str] | None = None,
        *,
        questions: list[str] | None = None,
        choices: list[list[str]] | None = None,
        batch_size: int = PredictRun.batch_size,
    ) -> list:
        """The prediction for each text, or pair of texts.

        Args:
            texts: strings; lists of words, too, if each word gets a label.
            pairs: the second texts, for pairs of texts.
            questions: for multiple choice and question answering.
            choices: the choices of each text, for multiple choice.
            batch_size: examples at a time.

        Returns:
            A list with, for each text: a label, a number, a list of labels, a
            label for each word, the index of a choice, or an answer ("" if the
            text has none). For embedding: the vectors, float32
            [len(texts), D]. For similarity: the cosine of each pair. For
            fill_mask: see `model.fill_mask`.

        Raises:
            AlbertError: the inputs are not those of the task, are not equally
                many, or are no texts.
        """
        first, *_ = self.definition.inputs(self.columns)
        given = {
            first: texts,
            "pair": pairs,
            "question": questions,
            "choices": choices,
        }
        features = self._features_of(given)
        if features is None:
            return self.definition.no_answers(self.model)
        outputs = self.outputs(features, batch_size)
        return self.definition.answers(outputs, features, self.labels)

    def evaluate(
        self,
        data: str | Path | Frame,
        *,
        batch_size: int = PredictRun.batch_size,
        skip_bad: bool = False,
    ) -> dict[str, float]:
        """Scores the predictions for labelled examples.

        Args:
            data: a table (TSV, CSV, JSONL, Parquet, or SQuAD's JSON for
                questions); or a table in memory whose columns are named as in
                `self.columns`: {"text": [...], "label": [...]}, a frame of
                pandas or polars, a dataset, or a list of dicts.
            batch_size: examples at a time.
            skip_bad: leave out rows that cannot be read.

        Returns:
            the scores of the task by name: accuracy, and so on.

        Raises:
            AlbertError: a table that cannot be read, or an unknown label.
        """
        table = self.read(data, labelled=True, skip_bad=skip_bad)
        features = self.features(table)
        outputs = self.outputs(features, batch_size, title="Evaluating")
        scores = self.definition.measure(outputs, features, self.labels)
        return {name: float(value) for name, value in scores.values.items()}

    def probabilities(
        self,
        texts: list[str],
        pairs: list[str] | None = None,
        batch_size: int = PredictRun.batch_size,
    ) -> np.ndarray:
        """The probability of each class, float32 [len(texts), len(labels)].

        Raises AlbertError for a task without classes, or as `predict`.
        """
        if not self.definition.has_classes:
            raise AlbertError(
                "only a classifier has probabilities; this model was trained "
                f"for {self.task}. Call `predict`."
            )
        features = self._features_of({"text": texts, "pair": pairs})
        if features is None:
            return np.zeros((0, len(self.labels)), "float32")
        logits = np.stack(self.outputs(features, batch_size))
        return special.softmax(logits, axis=-1)

    def _features_of(self, given: dict[str, list | None]) -> Features | None:
        """The examples of values in Python; None if there are no texts."""
        values = {k: value for k, value in given.items() if value is not None}
        if not values:
            raise AlbertError("give a list of texts. Received: None.")
        expected = self.definition.inputs(self.columns)
        if values.keys() != expected.keys():
            remedy = ""
            if {*values} - {*expected} == {"question"}:  # of multiple choice
                remedy = (
                    " Make the Predictor with "
                    'columns=TableColumns(question="question").'
                )
            raise AlbertError(
                f"this model takes {_kind(expected)}. Received: "
                f"{_kind(values)}.{remedy}"
            )
        for name, value in values.items():
            check_batch(name, value)
            values[name] = list(as_list(value))
        check_equally_many(**values)
        count = len(next(iter(values.values())))
        if not count:
            return None
        for name, value in values.items():
            values[name] = self.definition.checked_input(name, value)
        lines = list(range(1, count + 1))
        table = Table(IN_MEMORY, values, [{}] * count, lines)
        features = self.features(table)
        warn_if_unreadable(*self.unreadable(features, table))
        return features


def _kind(names) -> str:
    others = sorted(set(names) - {"text", "context"})
    if others == ["pair"]:
        return "pairs of texts"
    return f"texts with {' and '.join(others)}" if others else "single texts"


def _check_labels(
    model: AlbertModel, stored: Names, given: Sequence[str] | None
) -> None:
    """Raises AlbertError if the model's labels are given in another order.

    Other names are fine: they may be those of the user's table.
    """
    own = list(map(str, stored or getattr(model, "labels", None) or ()))
    names = list(map(str, given)) if isinstance(given, list | tuple) else []
    if names != own and sorted(names) == sorted(own):
        raise AlbertError(
            "`labels` are named in the order of the model's outputs, which has "
            f"these names in another order: {', '.join(own[:20])}. Received: "
            f"labels={names!r:.80}. Leave `labels` out."
        )
