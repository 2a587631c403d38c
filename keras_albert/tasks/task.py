"""The interface of a task: what a model is fine-tuned or used for.

A task defines its columns, the head and the loss, the meaning of the outputs
for a user, their scores, and how they are computed inside a serving graph.
`tasks.registry` has all tasks by their names.

Letters: N examples, C labels or choices, S tokens of a row.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_albert.data.batches import Features
from keras_albert.data.config import TableColumns
from keras_albert.data.frames import Frame
from keras_albert.data.tables import Field, Table, read_parts
from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.ensemble import AlbertEnsemble
from keras_albert.tasks.config import CUT, HeadOptions
from keras_albert.tasks.decisions import Threshold
from keras_albert.tasks.labels import LABEL, Labels, Names, NoLabels
from keras_albert.tasks.metrics import Scores
from keras_albert.tasks.names import BENCHMARK_TASKS, GLUE_TASKS
from keras_albert.tasks.question_answering.config import ReadingConfig
from keras_albert.tasks.serving import Serving
from keras_albert.text.model_inputs import Row
from keras_albert.text.tokenizer import Tokenizer

PAIR = "pair"  # the field of second texts, and its column if none is named

# How inputs are passed to `Predictor.predict`, in the order of its arguments.
_CALLS = {
    PAIR: "['its second text']",
    "question": "questions=['a question']",
    "choices": "choices=[['one', 'another']]",
}

# the outputs of each example: logits [C], or [S, C] of tokens; or a dict
Outputs = list


class Task(abc.ABC):
    """A task that models are used for.

    Subclasses are final; constructor arguments configure them. Tasks that
    models are fine-tuned for are subclasses of `LearnedTask`.
    """

    # what a fitting head predicts, in words -> the classes of such models
    heads: Mapping[str, type | tuple[type, ...]]
    # where the names of the model's outputs come from
    labels: Labels = NoLabels()
    serving: Serving  # how the task is served
    # names of the columns that `decode` returns
    adds = frozenset({"prediction", "score"})
    target = LABEL  # name of the learned field; `TableColumns` has its column
    is_learned = False  # whether models are fine-tuned for the task
    has_classes = False  # whether each example has exactly one of the labels
    # whether contexts are read in windows, as a ReadingConfig says
    reads_contexts = False
    rows = "rows"  # what the rows of tokens are called in messages
    makes_vectors = False  # whether the head computes vectors of texts
    searches = False  # whether texts are found among others by their vectors
    # For tasks that can read long texts in windows, else None: a method as
    # `features` with a last argument, see `Features.pooling`; and one from the
    # outputs of windows and the features to the outputs of texts.
    windows: Callable[..., Features] | None = None
    pooled: Callable[[Outputs, Features], Outputs] | None = None

    def __init__(self, name: str):
        self.name = name

    @property
    def is_published(self) -> bool:
        """Whether this is a published task, whose benchmark has its files."""
        return self.name in BENCHMARK_TASKS

    @property
    def is_of_glue(self) -> bool:
        """Whether predictions of this task can be submitted to GLUE."""
        return self.name in GLUE_TASKS

    @abc.abstractmethod
    def inputs(self, columns: TableColumns) -> dict[str, Field]:
        """The fields that a prediction needs, the main text first."""

    def reads_pairs(self, columns: TableColumns) -> bool:
        """Whether rows have two segments."""
        return PAIR in self.inputs(columns)

    def label_reader(self, names: Names) -> Callable[[object], object]:
        """Reads a value of the label's column; `names` are the known labels."""
        raise AlbertError(
            "labelled examples are for a fine-tuned model, and this one "
            "was only pretrained. Run `keras-albert finetune` first."
        )

    def fields(
        self, columns: TableColumns, labelled: bool, names: Names = None
    ) -> dict[str, Field]:
        """The fields of a file, with the target if it is `labelled`."""
        fields = self.inputs(columns)
        if labelled:
            column = getattr(columns, self.target)
            fields[self.target] = Field(column, self.label_reader(names))
        return fields

    def check_columns(self, named: TableColumns, columns: TableColumns) -> None:
        """Raises AlbertError if a column is named that the task does not have.

        `named` are the names that a user gave, and `columns` all names.
        """
        known = self.fields(columns, labelled=self.is_learned)
        for field in dataclasses.fields(named):
            value = getattr(named, field.name)
            if value != field.default and field.name not in known:
                raise AlbertError(
                    f"`columns.{field.name}` has no meaning for the task "
                    f"{self.name}. Received: {value!r}. Leave --columns."
                    f"{field.name} out."
                )

    def parts(self, *arguments: Any, **options: Any) -> Iterator[Table]:
        """Reads a file in parts; the arguments are those of `read_parts`."""
        return read_parts(*arguments, **options)

    def read(
        self,
        path: str | Path | Frame,
        columns: TableColumns,
        labelled: bool,
        skip_bad: bool = False,
        names: Names = None,
    ) -> Table:
        """Reads a whole file, or columns by their names."""
        fields = self.fields(columns, labelled, names)
        (table,) = self.parts(path, fields, skip_bad)
        return table

    def checked_input(self, name: str, values: list) -> list:
        """Checks the values of an input that a user passes in Python."""
        return values

    @abc.abstractmethod
    def features(
        self, tokenizer: Tokenizer, table: Table, names: Names, length: int
    ) -> Features:
        """The examples of a table, with their target if it has labels.

        Rows have `length` tokens at most. Tasks that read contexts get a
        ReadingConfig in place of the length.
        """

    def examples(
        self, tokenizer, table, names, length, reading=None, long_texts=CUT
    ) -> Features:
        """The examples of a table, with the group of the row each came from.

        The arguments are those of `features`. Tasks that read contexts have
        `reading`. `long_texts`, one of LONG_TEXT_MODES, says whether long texts
        are cut or read in windows.
        """
        if long_texts == CUT:
            found = self.features(tokenizer, table, names, reading or length)
        else:
            found = self.windows(tokenizer, table, names, length, long_texts)
        return dataclasses.replace(found, groups=table.groups)

    def compute(self, model: AlbertModel, x: Mapping[str, np.ndarray]) -> Any:
        """The outputs of the model for a batch."""
        return model.predict_on_batch(x)

    def unpadded(self, output: Any, row: Row) -> Any:
        """The output of an example, without what belongs to padding.

        How much padding there is depends on the other rows of a batch, and on
        the lengths for which a backend or an exported model is compiled.
        """
        return output

    @abc.abstractmethod
    def decode(
        self, outputs: Outputs, features: Features, names: Names
    ) -> list[dict[str, object]]:
        """The columns that a prediction adds, for each example."""

    def answers(
        self, outputs: Outputs, features: Features, names: Names
    ) -> Any:
        """The answers to all examples, as `Predictor.predict` returns them."""
        decoded = self.decode(outputs, features, names)
        return [row["prediction"] for row in decoded]

    def no_answers(self, model: AlbertModel) -> Any:
        """What `answers` returns if there are no examples."""
        return []

    def predicts(self, model: AlbertModel) -> str | None:
        """The key of `heads` that fits the head of the model.

        None if the head is for other tasks.
        """
        if isinstance(model, AlbertEnsemble):
            model = model.members[0]
        for words, classes in self.heads.items():
            # One class has three problems, each with a task of its own.
            problem = getattr(model, "problem", words)
            if isinstance(model, classes) and problem == words:
                return words
        return None

    def thresholds(self, names: Names) -> int:
        """How many decision thresholds a user may set; 0 for none."""
        return 0

    def fits(self, model: AlbertModel) -> bool:
        """Whether the model can be used for the task."""
        return self.predicts(model) is not None

    def model_of(self, model: AlbertModel) -> AlbertModel:
        """The model that computes the outputs of this task.

        It is `model`, for which `fits` is true, or is made from it.
        """
        return model

    def too_long(self, length: int, reading: ReadingConfig | None) -> str:
        """The part of a message that says which examples are cut."""
        return f"are longer than {length} tokens"

    def card(
        self, columns: TableColumns, length: int, reading: ReadingConfig | None
    ) -> tuple[str, str]:
        """Two texts for the model card: a call of the model, and its limits.

        The call is Python code to be written behind `ka.`, in which MODEL
        stands for the folder of the model. The limit is how long a text may be.
        """
        inputs = self.inputs(columns)
        first = "a passage" if "question" in inputs else "a text"
        others = [_CALLS[name] for name in _CALLS if name in inputs]
        given = ", ".join([f"[{first!r}]", *others]).replace("'", '"')
        call = f"Predictor.load(MODEL).predict({given})"
        return call, f"A text is cut after {length:,} tokens."


class LearnedTask(Task):
    """A task that models are fine-tuned for."""

    is_learned = True
    # name of the score by which models are compared; higher is better
    best: str
    highest = 1.0  # the value of that score for perfect predictions
    # the constant answer with the best score, in words
    constant = "the most frequent label"
    # what computes the outputs of `linear_outputs`, in words
    of_words = "a linear model of words"
    # whether the model has a score before it is fine-tuned
    measures_start = False
    # whether reports have all scores of what the model is compared with, and
    # not only the one by which models are compared
    compares_all_scores = False
    # Method from outputs and features to how wrong each prediction is, float
    # [N], and 0 for a right one: the probability of what is wrong, or the
    # difference of a number. None: mistakes have no order.
    wrongness: Callable[[Outputs, Features], np.ndarray] | None = None
    # Method from outputs and features to the thresholds with the best F1.
    tuned: Callable[[Outputs, Features], Threshold] | None = None

    @abc.abstractmethod
    def head(
        self, backbone: AlbertBackbone, names: Names, options: HeadOptions
    ) -> AlbertModel:
        """A model for the task, whose head has fresh weights."""

    def continued(self, names: Names) -> type[AlbertModel] | None:
        """The class of models whose head a run trains further.

        Started from any other model, or if it is None, the run has a new head:
        a head for labels was learned for its own labels.
        """
        return None

    def continued_options(
        self, options: HeadOptions, source: AlbertModel, name: str
    ) -> HeadOptions:
        """The options of a run, completed by those of the model it continues.

        `source` is a model of the class that `continued` names, and `name` is
        what the user calls it. Raises AlbertError if both do not fit.
        """
        return options

    def describe_head(self, options: HeadOptions) -> str:
        """The head with these options, in words."""
        return "the head"

    def head_is_learned(self, options: HeadOptions) -> bool:
        """Whether the head has weights that training changes."""
        return True

    def start_head(
        self, model: AlbertModel, source: AlbertModel | None, rows: list[Row]
    ) -> None:
        """Sets the weights of a head that do not start at random.

        `source` is the model that training starts from, if it is of the class
        that `continued` names; `rows` are the training texts.
        """

    @abc.abstractmethod
    def loss(
        self, names: Names
    ) -> keras.losses.Loss | dict[str, keras.losses.Loss]:
        """The loss; or one for each output, weighted by 0.5 and summed."""

    def training_loss(
        self, names: Names, options: HeadOptions
    ) -> keras.losses.Loss | dict[str, keras.losses.Loss]:
        """The loss of a run with these options, as `loss` returns it."""
        return self.loss(names)

    def check_training(
        self,
        train: Table,
        options: HeadOptions,
        tokenizer: Tokenizer,
        dropout: float,
    ) -> None:
        """Raises AlbertError if nothing can be learned from a table.

        `dropout` is that of the encoder.
        """

    def check_target(self, table: Table, options: HeadOptions) -> None:
        """Raises AlbertError if the options exclude a target of the table."""

    @abc.abstractmethod
    def scores(
        self, outputs: Outputs, features: Features, names: Names
    ) -> Scores:
        """Compares the outputs with the labels in `features`."""

    def can_measure(self, columns: TableColumns) -> bool:
        """Whether a table with these columns can tell how good a model is."""
        return True

    def baseline(self, features: Features) -> float | None:
        """The score `best` of always giving the best constant answer.

        None if no constant answer has a score.
        """
        return None

    def logits_and_target(
        self, outputs: Outputs, features: Features
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits and target of all examples, for `held_out_loss`."""
        return np.stack(outputs), features.target

    def held_out_loss(
        self, outputs: Outputs, features: Features, names: Names
    ) -> dict[str, float]:
        """The mean loss over all examples, {"loss": value}; {} if undefined."""
        logits, target = self.logits_and_target(outputs, features)
        loss = self.loss(names)(target, logits)
        return {"loss": float(keras.ops.convert_to_numpy(loss))}

    def linear_outputs(
        self, train: Table, held_out: Table, names: Names
    ) -> np.ndarray | None:
        """Predictions of a linear model of words, as a baseline.

        The linear model is fitted to the table `train`. Returns its outputs for
        each row of `held_out`, in the form of the outputs of the head; None for
        a task without such a baseline (see `bag_of_words.py`).
        """
        return None

    def scores_of_sizes(
        self, outputs: Outputs, features: Features, sizes: Sequence[int]
    ) -> dict[str, float]:
        """The scores of outputs cut to these sizes, if that has a meaning."""
        return {}

    def measure(
        self, outputs: Outputs, features: Features, names: Names
    ) -> Scores:
        """The scores of all examples, and the `best` one of each group."""
        found = self.scores(outputs, features, names)
        groups = np.array(features.groups or [])
        values = dict(found.values)
        for group in dict.fromkeys(features.groups or []):
            chosen = np.flatnonzero(groups == group)
            part = self.scores(
                [outputs[i] for i in chosen], features.take(chosen), names
            )
            values[f"{group}_{self.best}"] = part.values[self.best]
        return dataclasses.replace(found, values=values)
