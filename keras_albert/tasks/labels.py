"""The names of a model's outputs: of a table, of a head, of task.json.

Letters: C labels.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence

from keras_albert.data.tables import Table, check_labels
from keras_albert.errors import AlbertError
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.classification import default_labels

LABEL = "label"  # the field of a table that is learned
MANY_LABELS = 20  # a table of any size may have as many different labels

Names = tuple[str, ...] | None
"""the labels in the order of the logits; None of a task without labels"""


@dataclasses.dataclass(frozen=True)
class Head:
    """What a model says about its own outputs."""

    predicts: str | None
    """what it predicts, see `Task.heads`; None: nothing that a task reads"""
    positions: int
    """most tokens that the model reads"""
    outputs: int | None = None
    """number of labels, where the head has labels"""
    labels: tuple[str, ...] | None = None
    """names of the labels, where the model knows them"""


class Labels(abc.ABC):
    """Which labels a task has, and where their names come from."""

    def of_table(self, table: Table) -> Names:
        """The labels of a table; AlbertError if they are no labels."""
        return None

    @abc.abstractmethod
    def of_head(
        self, model: AlbertModel, labels: Sequence[str] | None, task: str
    ) -> Names:
        """The labels of a model: the given ones, or the model's own.

        Raises:
            AlbertError: the given labels do not fit the head of the model.
        """

    @abc.abstractmethod
    def check(self, labels: object, task: str) -> None:
        """Raises AlbertError unless `finetune` would write these labels."""

    def check_head(self, labels: list[str] | None, head: Head) -> None:
        """Raises AlbertError unless checked labels fit the head."""
        return None


class NoLabels(Labels):
    """A task without labels.

    Args:
        outputs: how many outputs the head must have; None: any number.
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
    """Classes: a name for each output of the head."""

    fixed: Names = None
    """the classes of a published task; None: those of the table"""
    nested: bool = False
    """whether a row of the table has a list of labels"""
    unit: str = "rows"
    """what has the labels: rows or words"""
    least: int = 2
    """the fewest different labels, 1 or 2"""

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
        names = tuple(map(str, labels)) if is_list else ()
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
    """`read` of a label or a list of labels, which must be among `names`."""
    if not names:
        return read

    def read_known(value: object) -> object:
        found = read(value)
        check_labels([found] if isinstance(found, str) else found, names)
        return found

    return read_known
