"""Infers task, labels, lengths and reading from the head of a model.

They are needed for a model that was fitted in Python or written by another
library. Settings that a user gives are checked against the head.
"""

from collections.abc import Sequence
from typing import Any

from keras_albert.data.config import TableColumns
from keras_albert.errors import AlbertError, is_whole
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.inputs import check_model, no_vocabulary
from keras_albert.tasks.config import CUT, EarlyExit, check_long_texts
from keras_albert.tasks.decisions import Threshold, checked_threshold
from keras_albert.tasks.early_exit import check_exits
from keras_albert.tasks.labels import Names
from keras_albert.tasks.names import DECISION_TASKS, LONG_TEXT_TASKS
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    ReadingConfig,
    WindowConfig,
    WindowOptions,
)
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.text.tokenizer import (
    SHORTEST_SINGLE,
    VOCAB_FILE,
    Tokenizer,
)

SHORTEST_LENGTH = 32  # tokens: a row of fewer is hardly faster


def settled_settings(
    model: AlbertModel,
    task: str | None,
    labels: Sequence[str] | None,
    tokenizer: Tokenizer | None,
    lengths: Sequence[int] | None,
    columns: TableColumns | None,
    reading: ReadingConfig | None,
    early_exit: EarlyExit | None,
    threshold: float | Sequence[float] | None,
    long_texts: str,
) -> dict[str, Any]:
    """The arguments of `Predictor`, completed from the head of the model."""
    task = _checked_task(model, task)
    definition = ALL_TASKS[task]
    if early_exit is not None:
        check_exits(early_exit, model)
    has_pair = columns is not None and columns.pair is not None
    if long_texts != CUT and has_pair and task in LONG_TEXT_TASKS:
        raise AlbertError(
            "this model reads long texts in windows (`long_texts`), and only "
            f"single texts. Received: columns.pair={columns.pair!r}. Leave "
            "--columns.pair out."
        )
    check_long_texts(long_texts, task, columns)
    if early_exit is not None and long_texts != CUT:
        raise AlbertError(
            "`early_exit` is for texts of one window. Received: "
            f"long_texts={long_texts!r}. Leave one of them out."
        )
    reading = _checked_reading(model.config, task, reading)
    if tokenizer is not None:
        model.tokenizer = tokenizer
    if model.tokenizer is None:
        message = (
            "texts need a vocabulary and this model has none. Put it beside "
            f"the model as {VOCAB_FILE}; or in Python, give it: "
            f"tokenizer=keras_albert.Tokenizer({VOCAB_FILE!r})."
        )
        raise AlbertError(no_vocabulary(model, message))
    labels = definition.labels.of_head(model, labels, task)
    if threshold is not None:
        threshold = decision_threshold(threshold, task, labels)
    return {
        "task": task,
        "labels": labels,
        "tokenizer": model.tokenizer,
        "lengths": _checked_lengths(model, lengths, reading),
        "columns": columns or TableColumns(),
        "reading": reading,
        "model": definition.model_of(model),
        "early_exit": early_exit,
        "threshold": threshold,
        "long_texts": long_texts,
    }


def decision_threshold(given: object, task: str, names: Names) -> Threshold:
    """`given` as thresholds of a task; AlbertError if it has no such ones."""
    count = ALL_TASKS[task].thresholds(names)
    if not count:
        raise AlbertError(
            f"`threshold` is for {', '.join(DECISION_TASKS)}, of the first two "
            f"with two labels. Received: task={task!r}"
            + (f" with {len(names)} labels" if names else "")
            + ". Leave it out."
        )
    return checked_threshold(given, count)


def head_task(model: AlbertModel) -> str:
    """The first task that fits a head; AlbertError if there is none."""
    check_model(model)
    for name, task in ALL_TASKS.items():
        if task.predicts(model):
            return name
    raise AlbertError(
        "expected a model with a head of this package. Received: "
        f"{type(model).__name__}. Its encoder can be used for vectors: "
        "model.backbone."
    )


def _checked_task(model: AlbertModel, task: str | None) -> str:
    own = head_task(model)
    if task is None:
        return own
    if task not in ALL_TASKS:
        raise AlbertError(
            f"`task` must be one of {', '.join(ALL_TASKS)}. Received: {task!r}."
        )
    if not ALL_TASKS[task].fits(model):
        fitting = [name for name, each in ALL_TASKS.items() if each.fits(model)]
        problem = getattr(model, "problem", None)
        raise AlbertError(
            f"`task` must fit the head of the model, {type(model).__name__}"
            f"{f' ({problem})' if problem else ''}: expected one of "
            f"{', '.join(fitting)}. Received: {task!r}."
        )
    return task


def _checked_lengths(
    model: AlbertModel,
    lengths: Sequence[int] | None,
    reading: ReadingConfig | None,
) -> tuple[int, ...]:
    """The lengths that rows are padded to; by default powers of two."""
    most = model.config.max_position_embeddings
    longest = model.most_tokens
    if reading:
        longest = reading.windows.sequence_length
    if lengths is None:
        powers = (2**power for power in range(longest.bit_length()))
        short = [n for n in powers if SHORTEST_LENGTH <= n < longest]
        return (*short, longest)
    if (
        not isinstance(lengths, list | tuple)
        or not lengths
        or any(not is_whole(n) or n < SHORTEST_SINGLE for n in lengths)
        or sorted(set(lengths)) != list(lengths)
        or lengths[-1] > most
    ):
        raise AlbertError(
            f"`lengths` must be ascending integers from {SHORTEST_SINGLE} to "
            f"max_position_embeddings={most}. Received: {lengths!r:.60}."
        )
    if reading and lengths[-1] < longest:
        raise AlbertError(
            "the last of `lengths` must be at least the length of the windows "
            f"in which contexts are read, {longest} tokens. Received: "
            f"{lengths!r:.60}. Or shorten the windows with `reading`."
        )
    return tuple(map(int, lengths))


def _checked_reading(
    config: AlbertConfig, task: str, reading: ReadingConfig | None
) -> ReadingConfig | None:
    """How contexts are read; None for a task without contexts."""
    if not ALL_TASKS[task].reads_contexts:
        if reading is not None:
            fitting = [n for n, t in ALL_TASKS.items() if t.reads_contexts]
            raise AlbertError(
                f"`reading` is for {', '.join(fitting)}. Received: "
                f"task={task!r}. Leave it out."
            )
        return None
    most = config.max_position_embeddings
    if reading is None:
        length = min(most, WindowConfig.sequence_length)
        return ReadingConfig(WindowOptions().of(length), AnswerConfig())
    if reading.windows.sequence_length > most:
        raise AlbertError(
            "`reading.windows.sequence_length` must not exceed the model's "
            f"max_position_embeddings={most}. Received: "
            f"{reading.windows.sequence_length}."
        )
    return reading
