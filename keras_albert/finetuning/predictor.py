"""Predictor: a model with its vocabulary, labels and task."""

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.console import Console
from rich.progress import track
from scipy import special

from keras_albert.data.batches import Features, sorted_plan
from keras_albert.data.config import TableColumns
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError, check_positive
from keras_albert.finetuning.config import ConvertRun, PredictRun
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.inputs import check_equally_many
from keras_albert.storage import written_whole
from keras_albert.tasks.infer import settled_settings
from keras_albert.tasks.question_answering.config import ReadingConfig
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.task import Outputs, Task
from keras_albert.tasks.task_file import load_with_task, stored_settings
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.text.unknown import PieceCount, judged, warn_if_unreadable
from keras_albert.training.model_folder import ModelFolder


@dataclasses.dataclass(frozen=True)
class Predictor:
    """Predicts for texts, with a model, its vocabulary, labels and task.

    `Predictor(model)` accepts every model of this package and infers the task
    from its head. `Predictor.load` reads a folder or a checkpoint of another
    library.

    Args:
        model: a model with any head. A backbone gives a vector for each text,
            and a masked-LM head the pieces at each "[MASK]".
        task: a name that `finetune --task` takes, "embedding" or "fill_mask".
            It is needed if several tasks fit the head, above all for pairs of
            texts (task="pairs").
        labels: names of the classes in the order of the logits. The default
            is the model's own names, or "0", "1" and so on.
        tokenizer: the vocabulary, if the model has none. It is then set in the
            model.
        lengths: lengths that rows are padded to, in tokens, ascending; longer
            texts are cut off. The default is powers of two up to
            `max_position_embeddings`.
        columns: names of the columns in tables.
        reading: how contexts are read; by default in windows of 384 tokens, or
            as many as the model can read. None for a task without contexts.

    Raises:
        AlbertError: an argument does not fit the head, or there is no
            vocabulary.
    """

    model: AlbertModel
    task: str | None = None
    labels: Sequence[str] | None = None
    tokenizer: Tokenizer | None = None
    lengths: Sequence[int] | None = None
    columns: TableColumns | None = None
    reading: ReadingConfig | None = None

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
        source: str | Path,
        *,
        gelu: str = ConvertRun.gelu,
        dtype: str | keras.DTypePolicy = "float32",
        loop: str | None = None,
        remat: bool | None = None,
        **settings: Any,
    ) -> "Predictor":
        """Reads a model from any source that `keras_albert.load` takes.

        Args:
            source: the output folder of `finetune`, `save` or `convert`, a
                `.keras` file, a folder of transformers, `hf://...`, and so on.
            gelu, dtype, loop, remat: see `keras_albert.load`.
            settings: arguments of Predictor, which override those that are
                stored in a folder of this package.

        Raises:
            AlbertError: as `load`, and as Predictor itself.
        """
        loaded = load_with_task(
            source, gelu, dtype=dtype, loop=loop, remat=remat
        )
        return cls.of(loaded, **settings)

    @classmethod
    def of(cls, loaded: ModelFolder, **settings: Any) -> "Predictor":
        """The predictor of a loaded folder; `settings` as in `load`."""
        given = {k: value for k, value in settings.items() if value is not None}
        stored = {"tokenizer": loaded.tokenizer}
        # The stored labels and lengths belong to the stored task.
        if given.get("task", loaded.task["task"]) == loaded.task["task"]:
            stored |= stored_settings(loaded.task)
        return cls(loaded.model, **stored | given)

    def save(self, folder: str | Path) -> None:
        """Writes a model folder; if that fails, nothing remains of it.

        `Predictor.load`, `keras_albert.load` and the commands `predict`,
        `evaluate`, `export` and `finetune` read it, on any backend.

        Args:
            folder: an empty or new folder.
        """
        content = ModelFolder(self.model, self.tokenizer, self.settings())
        with written_whole(folder) as unfinished:
            content.save(unfinished)

    def settings(self) -> dict:
        """The content of task.json, see `ModelFolder.task`."""
        settings = {
            "task": self.task,
            "labels": self.labels,
            "lengths": self.lengths,
            "columns": dataclasses.asdict(self.columns),
        }
        if self.reading is not None:
            settings["reading"] = dataclasses.asdict(self.reading)
        return settings

    def with_threshold(self, threshold: float) -> "Predictor":
        """A copy with another limit for "no answer", see `ReadingConfig`."""
        reading = dataclasses.replace(self.reading, threshold=threshold)
        return dataclasses.replace(self, reading=reading)

    @property
    def definition(self) -> Task:
        """The task itself; `task` is its name."""
        return ALL_TASKS[self.task]

    @property
    def sequence_length(self) -> int:
        """The most tokens of a row."""
        return self.lengths[-1]

    @property
    def reads_pairs(self) -> bool:
        """Whether rows have two parts, with segment ids 0 and 1."""
        return self.definition.reads_pairs(self.columns)

    def read(
        self,
        path: str | Path | Mapping[str, Sequence],
        labelled: bool,
        skip_bad: bool = False,
    ) -> Table:
        """Reads a file or columns, named as in the training table."""
        return self.definition.read(
            path, self.columns, labelled, skip_bad, self.labels
        )

    def parts(
        self, path: str | Path, skip_bad: bool, rows_at_once: int
    ) -> Iterator[Table]:
        """Reads a file in parts, without labels, see `read_parts`."""
        fields = self.definition.fields(self.columns, labelled=False)
        return self.definition.parts(path, fields, skip_bad, rows_at_once)

    def features(self, table: Table) -> Features:
        """The examples of a table, with targets if it has labels."""
        return self.definition.examples(
            self.tokenizer,
            table,
            self.labels,
            self.sequence_length,
            self.reading,
        )

    def unreadable(
        self, features: Features, table: Table
    ) -> tuple[PieceCount, str]:
        """Counts the unknown pieces of a table; see `text.unknown.judged`."""
        names = self.definition.inputs(self.columns)
        return judged(self.tokenizer, features.rows, table.values, names)

    def outputs(
        self,
        features: Features,
        batch_size: int = PredictRun.batch_size,
        stopped: Callable[[], bool] = lambda: False,
        title: str = "Predicting",
        compute: Callable | None = None,
    ) -> Outputs:
        """Logits of each example, in order.

        Args:
            features: the examples.
            batch_size: examples at a time.
            stopped: called before each batch; if it returns True, the outputs
                of the remaining examples are None.
            title: title of the progress bar.
            compute: function (model, inputs) -> outputs; by default that of
                the task.
        """
        check_positive("batch_size", batch_size)
        batch_size = min(batch_size, len(features))
        plan = sorted_plan(features.lengths, np.array(self.lengths), batch_size)
        batches = track(
            plan,
            description=title,
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        compute = compute or self.definition.compute
        run = functools.partial(compute, self.model)
        return _outputs(features, batches, batch_size, run, stopped)

    def warn_of_cut(self, cut: int, count: int) -> None:
        """Prints how many of the examples are cut off."""
        if cut:
            length, reading = self.sequence_length, self.reading
            what = self.definition.too_long(length, reading)
            print(f"{cut:,} of {count:,} {what} and cut", file=sys.stderr)

    @property
    def added_columns(self) -> frozenset[str]:
        """The names of the columns that `decode` returns."""
        return self.definition.adds

    def decode(
        self, outputs: Outputs, features: Features
    ) -> list[dict[str, object]]:
        """The predicted columns of each example."""
        return self.definition.decode(outputs, features, self.labels)

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
            texts: strings. If each word gets a label: lists of words, or
                strings with spaces between the words.
            pairs: the second texts, for pairs of texts.
            questions: the questions, for multiple choice and question
                answering.
            choices: the choices of each text, for multiple choice.
            batch_size: examples at a time.

        Returns:
            A list with, for each text: a label, a number, a list of labels, a
            label for each word, the index of a choice, or an answer ("" if the
            text has none). For embedding: the vectors, float32
            [len(texts), H]. For fill_mask: see `model.fill_mask`.
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
            return []
        outputs = self.outputs(features, batch_size)
        return self.definition.answers(outputs, features, self.labels)

    def evaluate(
        self,
        data: str | Path | Mapping[str, Sequence],
        *,
        batch_size: int = PredictRun.batch_size,
        skip_bad: bool = False,
    ) -> dict[str, float]:
        """Scores the predictions for labelled examples.

        Args:
            data: a table (TSV, CSV, JSONL, Parquet, or SQuAD's JSON for
                questions); or columns of equal length by their names in
                `self.columns`: {"text": [...], "label": [...]}.
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
        """The probability of each class, float32 [len(texts), len(labels)]."""
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
        values = {
            name: value for name, value in given.items() if value is not None
        }
        expected = self.definition.inputs(self.columns)
        if values.keys() != expected.keys():
            raise AlbertError(
                f"this model takes {_kind(expected)}. Received: "
                f"{_kind(values)}."
            )
        check_equally_many(**values)
        count = len(next(iter(values.values())))
        if not count:
            return None
        for name, value in values.items():
            values[name] = self.definition.given(name, value)
        table = Table(
            Path("texts"), values, [{}] * count, list(range(1, count + 1))
        )
        features = self.features(table)
        warn_if_unreadable(*self.unreadable(features, table))
        return features


def _outputs(
    features: Features,
    batches: Iterable[tuple[np.ndarray, int]],
    batch_size: int,
    run: Callable[[dict], Any],
    stopped: Callable[[], bool],
) -> Outputs:
    """See `Predictor.outputs`."""
    outputs = [None] * len(features)
    for chosen, length in batches:
        if stopped():
            break
        x, _, _ = features.batch(chosen, batch_size, length)
        found = keras.tree.map_structure(np.asarray, run(x))
        for row, index in enumerate(chosen):
            outputs[index] = keras.tree.map_structure(
                lambda values, row=row: values[row], found
            )
            if features.token_target is not None:
                length = len(features.rows[index].token_ids)
                outputs[index] = outputs[index][:length]
    return outputs


def _kind(names) -> str:
    """A description of the inputs, for messages."""
    others = sorted(set(names) - {"text", "context"})
    if others == ["pair"]:
        return "pairs of texts"
    return f"texts with {' and '.join(others)}" if others else "single texts"
