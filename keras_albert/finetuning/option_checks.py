"""Which options of `finetune` go together, and with which task."""

import dataclasses
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING

from keras_albert.errors import AlbertError
from keras_albert.tasks.config import CUT, check_batch_size, check_long_texts
from keras_albert.tasks.names import BENCHMARK_TASKS, TASK_OPTIONS

if TYPE_CHECKING:
    from keras_albert.finetuning.config import FinetuneRun


def check_together(run: "FinetuneRun") -> None:
    """Raises AlbertError unless the options fit one another and the task."""
    _check_validation(run)
    _check_task_options(run)
    _check_frozen(run)


def _check_validation(run: "FinetuneRun") -> None:
    """Checks the options that depend on the held-out rows."""
    published = run.task in BENCHMARK_TASKS
    if published and run.validation != type(run).validation:
        raise AlbertError(
            f"{run.task} has held-out examples of its own. Leave "
            "--validation out."
        )
    given = measuring(run)
    if not published and run.validation is None and given:
        raise AlbertError(
            f"`{given[0]}` needs held-out examples. Give them with "
            "--validation, or leave out `--validation none`."
        )


def _check_frozen(run: "FinetuneRun") -> None:
    """Checks the options by which most weights stay as they are."""
    if run.freeze is not None and run.from_scratch:
        raise AlbertError(
            "`freeze` keeps pretrained weights, and a run from scratch has "
            "none. "
            f"Received: from_scratch=True and freeze={run.freeze!r}. "
            "Leave one of both out."
        )
    if run.lora_rank is None:
        return
    for name in ("freeze", "from_scratch"):
        if getattr(run, name):
            raise AlbertError(
                "`lora_rank` trains adapters of a pretrained encoder, all "
                f"of which is frozen. Received: {name}="
                f"{getattr(run, name)!r}. Leave "
                f"--{name.replace('_', '-')} or --lora-rank out."
            )


def _check_task_options(run: "FinetuneRun") -> None:
    """Raises AlbertError unless the task takes all options that are given."""
    for option, tasks in TASK_OPTIONS.items():
        if run.task in tasks:
            continue
        value_of = operator.attrgetter(option)
        for name in _changed(option, value_of(run), value_of(type(run))):
            raise AlbertError(
                f"`{name}` is for {', '.join(tasks)}. Received: "
                f"task={run.task!r}. Leave --{name.replace('_', '-')} out."
            )
    check_batch_size(run.task, run.batch_size, run.columns, run.embedding.loss)
    check_long_texts(run.long_texts, run.task, run.columns)
    if run.exits is not None and run.long_texts != CUT:
        raise AlbertError(
            "`exits` is for texts of one window. Received: "
            f"long_texts={run.long_texts!r}. Leave --exits or --long-texts out."
        )
    if run.calibrate and run.long_texts == "mean":
        raise AlbertError(
            "`calibrate` divides logits by a number, and with --long-texts "
            "mean a text has no logits, only the mean probabilities of its "
            "windows. Received: long_texts='mean'. Give --long-texts max, or "
            "leave --calibrate out."
        )


def _changed(name: str, given: object, default: object) -> Iterator[str]:
    """The names of the options that differ from their default.

    Options that are a dataclass have a name for each of its fields.
    """
    if not dataclasses.is_dataclass(given):
        if given != default:
            yield name
        return
    for field in dataclasses.fields(given):
        values = getattr(given, field.name), getattr(default, field.name)
        yield from _changed(f"{name}.{field.name}", *values)


def measuring(run: "FinetuneRun") -> list[str]:
    """The given options that need held-out rows."""
    names = ("patience", "validate_every", "tune_threshold", "calibrate")
    return [name for name in names if getattr(run, name) not in (None, False)]
