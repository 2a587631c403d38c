"""The names of a model's outputs: from a table, a head, or task.json."""

import abc
import dataclasses
from collections.abc import Callable, Sequence

from keras_albert.data.tables import Table, check_labels
from keras_albert.errors import AlbertError
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.classification import default_labels

LABEL = "label"  # the field of a table that is learned
MANY_LABELS = 20  # every table may have so many different labels

# the labels in the order of the logits; None for a task without labels
Names = tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Head:
    """The properties of a model that determine its labels."""

    # what it predicts, see `Task.heads`; None if no task fits it
    predicts: str | None
    positions: int  # most tokens that the model reads
    outputs: int | None = None  # number of labels, if the head has labels
    # names of the labels, if the model has them
    labels: tuple[str, ...] | None = None


def name_of(label: object) -> str:
    """The name of a label, as it is read from a table: True is "true"."""
    return str(label).lower() if isinstance(label, bool) else str(label)


class Labels(abc.ABC):
    """Which labels a task has, and where their names come from."""

    def of_table(self, table: Table) -> Names:
        """The labels of a table; AlbertError if they cannot be labels."""
        return None

    @abc.abstractmethod
    def of_head(
        self, model: AlbertModel, labels: Sequence[str] | None, task: str
    ) -> Names:
        """The given labels, checked against the head, or the model's own."""

    @abc.abstractmethod
    def check(self, labels: object, task: str) -> None:
        """Raises AlbertError unless `finetune` would write these labels."""

    def check_head(self, labels: list[str] | None, head: Head) -> None:
        """Raises AlbertError unless checked labels fit the head."""
        return None


class NoLabels(Labels):
    """A task without labels.

    The head must have the given number of outputs; None stands for any number.
    """

    def __init__(self, outputs: int | None = None):
        self.outputs = outputs

    def of_head(self, model, labels, task):
        count = getattr(model, "num_labels", None)
        if self.outputs is not None and count != self.outputs:
            raise AlbertError(
                "a regression has one number, num_labels=1. Received: "
                f"num_labels={count}."
            )
        if labels is not None:
            raise AlbertError(
                f"a model for {task} has no labels. Received: "
                f"labels={labels!r:.80}. Leave them out."
            )
        return None

    def check(self, labels, task):
        if labels is not None:
            raise AlbertError(
                f"`labels` must be null, with task={task!r}. "
                f"Received: {labels!r:.80}."
            )


@dataclasses.dataclass(frozen=True)
class ClassNames(Labels):
    """Classes, one for each output of the head."""

    # the classes of a published task; None for those of the table
    fixed: Names = None
    nested: bool = False  # whether a row of the table has a list of labels
    unit: str = "rows"  # what has labels: rows or words
    least: int = 2  # the smallest number of different labels, 1 or 2

    def of_table(self, table):
        if self.fixed is not None:
            return self.fixed
        labels = table.values[LABEL]
        if self.nested:
            labels = [label for row in labels for label in row]
        count = len(table) if self.unit == "rows" else len(labels)
        names = sorted(set(labels))
        if len(names) < self.least:
            raise AlbertError(
                f"{table.path}: expected {('one', 'two')[self.least - 1]} or "
                f"more different labels. Received: {names}. Name the column of "
                "the labels with --columns.label."
            )
        if len(names) > max(MANY_LABELS, count // 2):
            raise AlbertError(
                f"{table.path}: {len(names)} different labels in {count} "
                f"{self.unit} ({names[0]!r:.40}, {names[1]!r:.40}, ...). Name "
                "the column of the labels with --columns.label, or learn a "
                "number with --task regression."
            )
        return tuple(names)

    def of_head(self, model, labels, task):
        count = model.num_labels
        if labels is None:
            labels = model.labels or default_labels(count)
        is_list = isinstance(labels, list | tuple)
        names = tuple(map(name_of, labels)) if is_list else ()
        if len(set(names)) != count or len(names) != count:
            raise AlbertError(
                f"`labels` must be a list of {count} different names, one for "
                "each output of the head, in their order. Received: "
                f"{labels!r:.80}."
            )
        return names

    def check(self, labels, task):
        if labels is None:
            raise AlbertError(
                f"`labels` must be the names of the labels. Received: null, "
                f"with task={task!r}."
            )
        is_list = isinstance(labels, list) and len(labels) > 0
        if not is_list or not all(isinstance(label, str) for label in labels):
            raise AlbertError(
                f"`labels` must be a list of names. Received: {labels!r:.80}."
            )
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise AlbertError(
                f"`labels` must be different names. Received {twice[0]!r} more "
                "than once."
            )

    def check_head(self, labels, head):
        if len(labels) != head.outputs:
            raise AlbertError(
                f"`labels` must have {head.outputs} names, as the model has "
                f"outputs. Received {len(labels)}: {labels!r:.80}."
            )
        if head.labels not in (None, tuple(labels)):
            raise AlbertError(
                "`labels` must be those of the model, "
                f"{list(head.labels)!r:.200}. Received: {labels!r:.200}."
            )


def known(read: Callable[[object], object], names: Names) -> Callable:
    """A reader of one or more labels that must be among `names`, if given."""
    if not names:
        return read

    def read_known(value: object) -> object:
        found = read(value)
        check_labels([found] if isinstance(found, str) else found, names)
        return found

    return read_known
