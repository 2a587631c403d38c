"""Options of the commands that use a fine-tuned model."""

import dataclasses
from typing import Literal

from keras_albert.data.config import TableColumns
from keras_albert.tasks.names import FINETUNE_TASKS, PRETRAINED_TASKS


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelUse:
    """Settings for using a model, if its own folder does not have them.

    The commands that use a fine-tuned model inherit these options, so that the
    command line has them without a prefix.
    """

    task: Literal[FINETUNE_TASKS + PRETRAINED_TASKS] | None = None
    """what the model is used for; needed if its folder does not say so and
    several tasks fit its head, above all for pairs"""
    labels: tuple[str, ...] | None = None
    """names of the classes in the order of the model's outputs, if it has none;
    by default 0, 1 and so on"""
    columns: TableColumns = TableColumns()
    """columns of the tables that the model reads; by default those of the table
    that it was trained on"""

    @property
    def given(self) -> dict:
        """The options that were given, as `Predictor.load` takes them."""
        options = {name: getattr(self, name) for name in ("task", "labels")}
        if self.columns != TableColumns():
            options["columns"] = self.columns
        return options
