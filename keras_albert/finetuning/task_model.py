"""A model with everything that its task needs to run on tables."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
from rich.console import Console
from rich.progress import track

from keras_albert.data.batches import Features, sorted_plan
from keras_albert.data.config import TableColumns
from keras_albert.data.frames import Frame
from keras_albert.data.saved_dataset import is_saved_dataset
from keras_albert.data.tables import Table
from keras_albert.errors import check_positive
from keras_albert.finetuning.config import PredictRun
from keras_albert.finetuning.layer_by_layer import LayerByLayer
from keras_albert.modeling.base import AlbertModel
from keras_albert.tasks.config import CUT, EarlyExit
from keras_albert.tasks.metrics import check_numbers
from keras_albert.tasks.question_answering.config import ReadingConfig
from keras_albert.tasks.registry import ALL_TASKS, read_split
from keras_albert.tasks.task import Outputs, Task
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.text.unknown import PieceCount, check_readable, count_in_table
from keras_albert.training.progress import is_terminal


@dataclasses.dataclass(frozen=True)
class TaskModel:
    """The steps from a table to predictions; see `Predictor` for the fields."""

    model: AlbertModel
    task: str | None = None
    labels: Sequence[str] | None = None
    tokenizer: Tokenizer | None = None
    lengths: Sequence[int] | None = None
    columns: TableColumns | None = None
    reading: ReadingConfig | None = None
    early_exit: EarlyExit | None = None
    threshold: float | Sequence[float] | None = None
    long_texts: str = CUT

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
        if self.early_exit is not None:
            settings["early_exit"] = dataclasses.asdict(self.early_exit)
        if self.threshold is not None:
            settings["threshold"] = self.threshold
        if self.long_texts != CUT:
            settings["long_texts"] = self.long_texts
        return settings

    @functools.cached_property
    def layer_by_layer(self) -> LayerByLayer:
        """Computes the model with `early_exit`; it counts the layers used."""
        return LayerByLayer(self.model, self.early_exit)

    def read(
        self, path: str | Path | Frame, labelled: bool, skip_bad: bool = False
    ) -> Table:
        """Reads a file or columns, named as in the training table."""
        return self.definition.read(
            path, self.columns, labelled, skip_bad, self.labels
        )

    def read_labelled(
        self,
        path: Path,
        split: str = "dev",
        *,
        skip_bad: bool = False,
        any_size: bool = False,
    ) -> Table:
        """Reads a table with labels, or a split of a benchmark's folder."""
        is_folder = path.is_dir() and not is_saved_dataset(path)
        if is_folder and self.definition.is_published:
            options = {"skip_bad": skip_bad, "any_size": any_size}
            return read_split(self.task, path, split, **options)
        return self.read(path, labelled=True, skip_bad=skip_bad)

    def parts(
        self, path: str | Path, skip_bad: bool, rows_per_part: int
    ) -> Iterator[Table]:
        """Reads a file in parts, without labels, see `read_parts`."""
        fields = self.definition.fields(self.columns, labelled=False)
        return self.definition.parts(path, fields, skip_bad, rows_per_part)

    def features(self, table: Table) -> Features:
        """The examples of a table, with targets if it has labels."""
        found = self.definition.examples(
            self.tokenizer,
            table,
            self.labels,
            self.sequence_length,
            self.reading,
            self.long_texts,
        )
        return dataclasses.replace(found, threshold=self.threshold)

    def unreadable(
        self, features: Features, table: Table
    ) -> tuple[PieceCount, str]:
        """Counts the unknown pieces of a table; see `count_in_table`."""
        names = self.definition.inputs(self.columns)
        return count_in_table(
            self.tokenizer, features.rows, table.values, names
        )

    def readable_features(self, table: Table, any_text: bool) -> Features:
        """`features`; AlbertError if the vocabulary cannot read the texts.

        `any_text` accepts texts that it cannot read.
        """
        features = self.features(table)
        found = self.unreadable(features, table)
        check_readable(*found, table.path, any_text)
        return features

    def outputs(
        self,
        features: Features,
        batch_size: int = PredictRun.batch_size,
        stopped: Callable[[], bool] = lambda: False,
        title: str = "Predicting",
        compute: Callable | None = None,
    ) -> Outputs:
        """The outputs of each example, in order.

        A text that is read in several windows has one, pooled from theirs.

        `stopped` is called before each batch; if it returns True, the outputs
        of the remaining examples are None. `title` is that of the progress bar.
        `compute` is a function (model, inputs) -> outputs, by default that of
        the task, or one that stops early if the model shall.
        """
        check_positive("batch_size", batch_size)
        few_shapes = self.model.compiles_each_shape
        most = len(features)
        if few_shapes:  # a power of two, so that few numbers are compiled
            most = 1 << (most - 1).bit_length()
        batch_size = min(batch_size, most)
        lengths = self.lengths if few_shapes else np.unique(features.lengths)
        plan = sorted_plan(features.lengths, np.array(lengths), batch_size)
        if compute is None and self.early_exit is not None:
            compute = self.layer_by_layer
            if compute.needs_all_layers:
                compute.count_all(len(features))
                compute = None
        compute = compute or self.definition.compute
        # LayerByLayer chooses the number of rows itself.
        fills = few_shapes and not isinstance(compute, LayerByLayer)
        outputs = [None] * len(features)
        rows = features
        if features.pooling is not None:  # it has a label for each text
            rows = dataclasses.replace(features, target=None)
        for chosen, length in track(
            plan,
            description=title,
            console=Console(stderr=True),
            transient=True,
            disable=not is_terminal(sys.stderr),
        ):
            if stopped():
                return outputs
            # A model with a beam has as many columns as its beam, see `call`.
            length = max(length, getattr(self.model, "beam", 1))
            size = batch_size if fills else len(chosen)
            x, _, _ = rows.batch(chosen, size, length)
            found = compute(self.model, x)
            found = keras.tree.map_structure(np.asarray, found)
            check_numbers(keras.tree.flatten(found))
            for row, index in enumerate(chosen):
                output = keras.tree.map_structure(
                    lambda values, row=row: values[row], found
                )
                outputs[index] = self.definition.unpadded(
                    output, features.rows[index]
                )
        if features.pooling is not None:
            return self.definition.pooled(outputs, features)
        return outputs

    def warn_of_cut(self, cut: int, count: int) -> None:
        """Prints how many of the examples are cut off."""
        if cut:
            length, reading = self.sequence_length, self.reading
            what = self.definition.too_long(length, reading)
            print(f"{cut:,} of {count:,} {what} and cut", file=sys.stderr)

    def decode(
        self, outputs: Outputs, features: Features
    ) -> list[dict[str, object]]:
        """The predicted columns of each example."""
        return self.definition.decode(outputs, features, self.labels)
