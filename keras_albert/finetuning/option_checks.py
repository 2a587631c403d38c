"""Which options of `finetune` for decisions and long texts go together."""

from typing import TYPE_CHECKING

from keras_albert.errors import AlbertError
from keras_albert.tasks.config import CUT, check_long_texts
from keras_albert.tasks.names import DECISION_TASKS, ONE_LABEL_TASKS

if TYPE_CHECKING:
    from keras_albert.finetuning.config import FinetuneRun


def check_decisions(run: "FinetuneRun") -> None:
    """Raises AlbertError unless the task has what the options are about."""
    for name, tasks in (
        ("tune_threshold", DECISION_TASKS),
        ("calibrate", ONE_LABEL_TASKS),
    ):
        if getattr(run, name) and run.task not in tasks:
            raise AlbertError(
                f"`{name}` is for {', '.join(tasks)}. Received: "
                f"task={run.task!r}. Leave --{name.replace('_', '-')} out."
            )
    check_long_texts(run.long_texts, run.task, run.columns)
    if run.exits is not None and run.long_texts != CUT:
        raise AlbertError(
            "`exits` is for texts of one window. Received: "
            f"long_texts={run.long_texts!r}. Leave --exits or --long-texts out."
        )
    if run.calibrate and run.long_texts == "mean":
        raise AlbertError(
            "`calibrate` divides the logits of windows, and that is not to "
            "divide those of their mean probability. Received: "
            "long_texts='mean'. Give --long-texts max, or leave --calibrate "
            "out."
        )


def measuring(run: "FinetuneRun") -> list[str]:
    """The given options that need held-out rows."""
    names = ("patience", "validate_every", "tune_threshold", "calibrate")
    return [name for name in names if getattr(run, name) not in (None, False)]
