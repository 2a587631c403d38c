"""Whether the files of a model folder belong together and are undamaged.

task.json says how the outputs of the model are to be understood. A wrong label
or length in it would give wrong answers without an error, so that it is held
against the model before any text is read.
"""

import dataclasses
import itertools
from pathlib import Path

import keras

from keras_albert.checkpoints.download import locate
from keras_albert.checkpoints.huggingface import DEFAULT_GELU
from keras_albert.checkpoints.keras_hub import is_keras_hub
from keras_albert.checkpoints.load import load
from keras_albert.data.config import TableColumns
from keras_albert.errors import AlbertError, check_choice, is_number
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from keras_albert.modeling.keras_file import checked_form, in_form
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.modeling.question_answering import (
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.pretraining.config import ExampleConfig
from keras_albert.storage import RUN_FILE, read_json
from keras_albert.tasks.names import (
    EMBEDDING,
    FILL_MASK,
    FINETUNE_TASKS,
    PRETRAINED_TASKS,
    READING_TASKS,
)
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    ReadingConfig,
    WindowConfig,
)
from keras_albert.tasks.question_answering.task import NAMES
from keras_albert.text.tokenizer import SHORTEST_SINGLE
from keras_albert.training.model_folder import (
    PRETRAINING,
    TASK_FILE,
    WEIGHTS,
    ModelFolder,
    not_as_written,
)
from keras_albert.training.run_folder import REPORT_FILE

# What a head predicts.
SINGLE_LABEL, MULTI_LABEL, REGRESSION = (
    "single_label",
    "multi_label",
    "regression",
)  # as `AlbertForSequenceClassification.problem`
TOKENS, CHOICE = "a label for each token", "one of several choices"
ANSWER, ANSWER_OR_NONE = "an answer", "an answer, or none"
PRETRAINED = "masked words and the order of sentences"
MASKED_WORDS, VECTOR = "masked words", "a vector for a text"

_HEADS_OF_TASKS = {
    **dict.fromkeys(FINETUNE_TASKS, (SINGLE_LABEL,)),
    **dict.fromkeys(("regression", "STS-B"), (REGRESSION,)),
    "multilabel": (MULTI_LABEL,),
    "tokens": (TOKENS,),
    **dict.fromkeys(("choice", "RACE"), (CHOICE,)),
    "qa": (ANSWER, ANSWER_OR_NONE),
    "SQuAD-1.1": (ANSWER,),
    "SQuAD-2.0": (ANSWER_OR_NONE,),
    PRETRAINING: (PRETRAINED,),
    FILL_MASK: (PRETRAINED, MASKED_WORDS),
    EMBEDDING: (VECTOR,),
}
_WITH_LABELS = (SINGLE_LABEL, MULTI_LABEL, TOKENS)
_HEADS_OF_CLASSES = {
    AlbertForTokenClassification: TOKENS,
    AlbertForMultipleChoice: CHOICE,
    AlbertForQuestionAnswering: ANSWER,
    AlbertForQuestionAnsweringV2: ANSWER_OR_NONE,
    AlbertForPretraining: PRETRAINED,
    AlbertForMaskedLM: MASKED_WORDS,
    AlbertForTextEmbedding: VECTOR,
}


@dataclasses.dataclass(frozen=True)
class Head:
    """What a model says of its own outputs."""

    predicts: str | None
    """one of the constants above; None: no head that is fine-tuned here"""
    positions: int
    """most tokens that the model reads"""
    outputs: int | None = None
    """labels, where it has any"""
    labels: tuple[str, ...] | None = None
    """their names, where it knows them"""

    @classmethod
    def of(cls, model: AlbertModel) -> "Head":
        """The head of a model."""
        if isinstance(model, AlbertForSequenceClassification):
            predicts = model.problem
        else:
            predicts = _HEADS_OF_CLASSES.get(type(model))
        return cls(
            predicts,
            model.config.max_position_embeddings,
            getattr(model, "num_labels", None),
            getattr(model, "labels", None),
        )


def check_task(task: object, head: Head | None = None) -> None:
    """Refuses settings that `finetune` or `pretrain` would not have written.

    Args:
        task: the content of task.json, any JSON value.
        head: of the model that is beside it; None leaves out what needs it.

    Raises:
        AlbertError: names the setting, what was expected and what it is.
    """
    if not isinstance(task, dict):
        raise AlbertError(f"expected an object. Received: {task!r:.60}.")
    name = task.get("task")
    if not isinstance(name, str):
        raise AlbertError(
            f"`task` must be the name of a task. Received: {name!r:.60}."
        )
    tasks = (*FINETUNE_TASKS, *PRETRAINED_TASKS, PRETRAINING, WEIGHTS)
    check_choice("task", name, tasks)
    if name == WEIGHTS:
        return
    if name == PRETRAINING:
        _check_settings("examples", _needed(task, "examples"), ExampleConfig)
    else:
        labels = _needed(task, "labels")
        _check_labels(labels, name)
        _check_lengths(_needed(task, "lengths"))
        _check_columns(_needed(task, "columns"))
        if name in READING_TASKS:
            _check_reading(_needed(task, "reading"), task["lengths"][-1])
    if head is not None:
        _check_head(task, head)


def _needed(task: dict, key: str) -> object:
    if key not in task:
        raise AlbertError(f"`{key}` is missing.")
    return task[key]


def _check_labels(labels: object, task: str) -> None:
    heads = _HEADS_OF_TASKS[task]
    if labels is None:
        if set(heads) <= {*_WITH_LABELS, ANSWER_OR_NONE}:
            raise AlbertError(
                f"`labels` must be the names of the labels. Received: null, "
                f"with task={task!r}."
            )
        return
    if ANSWER_OR_NONE in heads:
        if labels != list(NAMES):
            raise AlbertError(
                f"`labels` must be {list(NAMES)}"
                f"{' or null' if ANSWER in heads else ''}. "
                f"Received: {labels!r:.80}."
            )
        return
    if heads[0] not in _WITH_LABELS:
        raise AlbertError(
            f"`labels` must be null, with task={task!r}. "
            f"Received: {labels!r:.80}."
        )
    if (
        not isinstance(labels, list)
        or not labels
        or not all(isinstance(label, str) for label in labels)
    ):
        raise AlbertError(
            f"`labels` must be a list of names. Received: {labels!r:.80}."
        )
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise AlbertError(
            f"`labels` must be different names. Received {twice[0]!r} more "
            "than once."
        )


def _check_lengths(lengths: object) -> None:
    if (
        not isinstance(lengths, list)
        or not lengths
        or not all(type(n) is int and n >= SHORTEST_SINGLE for n in lengths)
        or any(a >= b for a, b in itertools.pairwise(lengths))
    ):
        raise AlbertError(
            "`lengths` must be a list of ascending numbers of tokens, each "
            f"{SHORTEST_SINGLE} or more. Received: {lengths!r:.80}."
        )


def _check_columns(columns: object) -> None:
    _check_keys("columns", columns, TableColumns)
    for field in dataclasses.fields(TableColumns):
        value = columns.get(field.name, field.default)
        if not (isinstance(value, str) or value is field.default is None):
            raise AlbertError(
                f"`columns.{field.name}` must be the name of a column. "
                f"Received: {value!r:.60}."
            )


def _check_reading(reading: object, longest: int) -> None:
    _check_keys("reading", reading, ReadingConfig, all_of_them=True)
    for name, settings in (
        ("windows", WindowConfig),
        ("answers", AnswerConfig),
    ):
        _check_settings(f"reading.{name}", reading[name], settings)
    threshold = reading["threshold"]
    if threshold is not None and not is_number(threshold):
        raise AlbertError(
            "`reading.threshold` must be a number or null. "
            f"Received: {threshold!r:.60}."
        )
    window = WindowConfig(**reading["windows"]).sequence_length
    if window > longest:
        raise AlbertError(
            "`reading.windows.sequence_length` must not exceed the longest of "
            f"`lengths`, {longest}. Received: {window}."
        )


def _check_settings(name: str, settings: object, settings_class: type) -> None:
    """AlbertError unless these are the fields of a settings class."""
    _check_keys(name, settings, settings_class)
    try:
        settings_class(**settings)
    except AlbertError as error:
        raise AlbertError(f"`{name}`: {error}") from None
    except TypeError:  # a comparison of a string with a number, say
        raise AlbertError(
            f"`{name}` has values of a wrong type. Received: {settings!r:.120}."
        ) from None


def _check_keys(
    name: str, value: object, settings_class: type, all_of_them: bool = False
) -> None:
    known = [field.name for field in dataclasses.fields(settings_class)]
    if not isinstance(value, dict):
        raise AlbertError(
            f"`{name}` must be an object. Received: {value!r:.60}."
        )
    unknown = sorted(value.keys() - set(known))
    missing = [key for key in known if key not in value and all_of_them]
    if unknown or missing:
        raise AlbertError(
            f"`{name}` has {'no' if missing else 'an unknown'} setting "
            f"`{(missing or unknown)[0]:.60}`. Expected: {', '.join(known)}."
        )


def _check_head(task: dict, head: Head) -> None:
    """AlbertError unless the model gives what its task needs."""
    expected = _HEADS_OF_TASKS[task["task"]]
    if head.predicts not in expected:
        raise AlbertError(
            f"`task` is {task['task']!r}, for which a model predicts "
            f"{' or '.join(expected)}. Received: a model for "
            f"{head.predicts or 'something else'}."
        )
    if task["task"] == PRETRAINING:
        return
    labels = task["labels"]
    if head.predicts in (ANSWER, ANSWER_OR_NONE):
        may_refuse = head.predicts == ANSWER_OR_NONE
        if may_refuse != (labels is not None):
            raise AlbertError(
                f"`labels` must be {list(NAMES) if may_refuse else 'null'}: "
                f"the model predicts {head.predicts}. "
                f"Received: {labels!r:.60}."
            )
    elif labels is not None and len(labels) != head.outputs:
        raise AlbertError(
            f"`labels` must have {head.outputs} names, as the model has "
            f"outputs. Received {len(labels)}: {labels!r:.80}."
        )
    elif labels is not None and head.labels not in (None, tuple(labels)):
        raise AlbertError(
            f"`labels` must be those of the model, {list(head.labels)!r:.200}. "
            f"Received: {labels!r:.200}."
        )
    if task["lengths"][-1] > head.positions:
        raise AlbertError(
            f"`lengths` must not exceed the model's {head.positions} positions "
            f"(max_position_embeddings). Received: {task['lengths']}."
        )


def load_with_task(
    source: str | Path,
    gelu: str = DEFAULT_GELU,
    *,
    dtype: str | keras.DTypePolicy = "float32",
    loop: str | None = None,
    remat: bool | None = None,
) -> ModelFolder:
    """Reads a model, its vocabulary, and the task that it was trained for.

    The task is WEIGHTS where the source is no folder of this package: then the
    head of the model says what it is for. The arguments are those of `load`.

    Raises:
        AlbertError: as `load`; or task.json does not fit the model.
    """
    form = checked_form(dtype, loop, remat)
    path = locate(source)
    # Presets of KerasHub have a task.json, too.
    is_run = not is_keras_hub(path) and any(
        (path / name).is_file() for name in (TASK_FILE, RUN_FILE, REPORT_FILE)
    )
    if not is_run or gelu != DEFAULT_GELU:
        model = load(source, gelu=gelu, **form)
        return ModelFolder(model, model.tokenizer, {"task": WEIGHTS})
    if (path / TASK_FILE).is_file():
        with not_as_written(path / TASK_FILE):
            check_task(read_json(path / TASK_FILE))
    loaded = ModelFolder.load(path)
    with not_as_written(path / TASK_FILE):
        check_task(loaded.task, Head.of(loaded.model))
    return dataclasses.replace(loaded, model=in_form(loaded.model, form))


def task_of(source: str | Path) -> str | None:
    """What the model of a folder was trained for; None elsewhere."""
    path = Path(source) / TASK_FILE
    content = read_json(path) if path.is_file() else None
    return content.get("task") if isinstance(content, dict) else None
