"""Distillation: a model learns from the outputs of a teacher, too.

Letters: N examples, K columns of the target, C labels.
"""

import dataclasses

import numpy as np

from keras_albert.data.batches import Features
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.predictor import Predictor
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.task import Outputs


class Teacher:
    """A fine-tuned model, or several as an ensemble, for the same labels.

    `run.teacher` names the model, and `names` are the labels of the student, if
    any. Raises AlbertError if the teacher predicts something else.
    """

    def __init__(self, run: FinetuneRun, names: tuple[str, ...] | None):
        # A rule of early exit would save time, and give worse predictions.
        self._predictor = Predictor.load(run.teacher, early_exit=None)
        problem, wanted = (
            ALL_TASKS[task].predicts(self._predictor.model)
            for task in (self._predictor.task, run.task)
        )
        if problem != wanted:
            raise AlbertError(
                f"the teacher must predict what --task {run.task} does. "
                f"Received: {run.teacher}, which was trained for "
                f"{self._predictor.task}."
            )
        known = self._predictor.labels
        if names is not None and set(names) != set(known):
            raise AlbertError(
                "the teacher must have the labels of the training table: "
                f"{', '.join(names)}. Received: {run.teacher} with "
                f"{', '.join(known)}. Give a teacher that was trained for the "
                "same labels, or leave --teacher out."
            )
        self._order = [known.index(name) for name in names or ()]

    @property
    def checksum(self) -> str:
        """A checksum of the weights, by which a run recognizes its teacher."""
        return weights_checksum(self._predictor.model)

    def outputs(self, table: Table) -> Outputs:
        """The logits of the rows of a table, in the order of `names`."""
        features = self._predictor.features(table)
        logits = np.stack(self._predictor.outputs(features, title="Teacher"))
        return list(logits[:, self._order] if self._order else logits)

    def deciding(self, examples: Features) -> Features:
        """Examples of the student's task, with the teacher's thresholds.

        With two labels there is one threshold, for the teacher's second label.
        If that is the student's first, it becomes 1 - threshold.
        """
        known, order = self._predictor.threshold, self._order
        if known is None:
            return examples
        if len(known) < len(order):
            limits = known if order == [0, 1] else (1 - known[0],)
        else:
            limits = tuple(known[place] for place in order)
        return dataclasses.replace(examples, threshold=limits)


def with_teacher(examples: Features, outputs: Outputs) -> Features:
    """Examples whose target is the labels and the logits: [N, K + C]."""
    labels = np.reshape(examples.target, (len(examples), -1))
    logits = np.stack(outputs)
    if examples.source is not None:  # windows have the logits of their text
        logits = np.repeat(logits, examples.source, axis=0)
    target = np.concatenate([labels, logits], axis=1)
    return dataclasses.replace(examples, target=target.astype("float32"))
