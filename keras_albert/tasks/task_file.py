"""Checks that the files of a model folder belong together and are undamaged.

task.json determines the meaning of the model's outputs. A wrong label or length
in it would give wrong answers without an error, so that it is compared with the
model before any text is read.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_albert.checkpoints.huggingface_config import DEFAULT_GELU
from keras_albert.checkpoints.keras_hub import is_keras_hub
from keras_albert.checkpoints.load import load, not_a_path
from keras_albert.checkpoints.lora import is_adapter
from keras_albert.data.config import TableColumns
from keras_albert.download import locate
from keras_albert.errors import AlbertError, check_choice
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.ensemble import AlbertEnsemble, mean_weights
from keras_albert.modeling.keras_file import (
    checked_build_options,
    with_build_options,
)
from keras_albert.pretraining.config import ExampleConfig
from keras_albert.storage import REPORT_FILE, RUN_FILE, local_path, read_json
from keras_albert.tasks.config import (
    AVERAGES,
    CUT,
    EarlyExit,
    SeveralModelsUse,
    check_long_texts,
)
from keras_albert.tasks.decisions import DEFAULT_THRESHOLD
from keras_albert.tasks.fill_mask import PRETRAINED
from keras_albert.tasks.infer import decision_threshold
from keras_albert.tasks.labels import Head
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    ReadingConfig,
    WindowConfig,
)
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.text.tokenizer import SHORTEST_SINGLE
from keras_albert.training.model_folder import (
    PRETRAINING,
    TASK_FILE,
    WEIGHTS,
    ModelFolder,
    not_as_written,
)
from keras_albert.training.run_folder import SEED_FOLDER, finished_report


def head_of(model: AlbertModel) -> Head:
    """The properties of a model that task.json must agree with."""
    known = (task.predicts(model) for task in ALL_TASKS.values())
    return Head(
        next(filter(None, known), None),
        model.config.max_position_embeddings,
        getattr(model, "num_labels", None),
        getattr(model, "labels", None),
    )


def check_task(task: object, head: Head | None = None) -> None:
    """Raises AlbertError unless `finetune` or `pretrain` can have written this.

    `head` has the properties of the model; None only checks the content.
    """
    if not isinstance(task, dict):
        raise AlbertError(f"expected an object. Received: {task!r:.60}.")
    name = task.get("task")
    if not isinstance(name, str):
        raise AlbertError(
            f"`task` must be the name of a task. Received: {name!r:.60}."
        )
    check_choice("task", name, (*ALL_TASKS, PRETRAINING, WEIGHTS))
    if name == WEIGHTS:
        return
    if name == PRETRAINING:
        _check_settings("examples", _needed(task, "examples"), ExampleConfig)
        if head is not None:
            _check_predicts(name, (PRETRAINED,), head)
        return
    definition = ALL_TASKS[name]
    definition.labels.check(_needed(task, "labels"), name)
    _check_lengths(_needed(task, "lengths"), head)
    _check_keys("columns", _needed(task, "columns"), TableColumns)
    TableColumns(**task["columns"])  # raises AlbertError
    if definition.reads_contexts:
        _check_reading(_needed(task, "reading"), task["lengths"][-1])
    if "early_exit" in task:
        _check_settings("early_exit", task["early_exit"], EarlyExit)
    if "threshold" in task:
        decision_threshold(task["threshold"], name, task["labels"])
    if "long_texts" in task:
        columns = TableColumns(**task["columns"])
        check_long_texts(task["long_texts"], name, columns)
    if head is not None:
        _check_predicts(name, tuple(definition.heads), head)
        definition.labels.check_head(task["labels"], head)


def _needed(task: dict, key: str) -> object:
    if key not in task:
        raise AlbertError(f"`{key}` is missing.")
    return task[key]


def _check_lengths(lengths: object, head: Head | None) -> None:
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
    if head is not None and lengths[-1] > head.positions:
        raise AlbertError(
            f"`lengths` must not exceed the model's {head.positions} positions "
            f"(max_position_embeddings). Received: {lengths}."
        )


def _check_reading(reading: object, longest: int) -> None:
    _check_keys("reading", reading, ReadingConfig, all_of_them=True)
    _check_settings("reading.windows", reading["windows"], WindowConfig)
    _check_settings("reading.answers", reading["answers"], AnswerConfig)
    ReadingConfig.from_dict(reading)  # checks the threshold
    window = WindowConfig(**reading["windows"]).sequence_length
    if window > longest:
        raise AlbertError(
            "`reading.windows.sequence_length` must not exceed the longest of "
            f"`lengths`, {longest}. Received: {window}."
        )


def _check_settings(name: str, settings: object, settings_class: type) -> None:
    _check_keys(name, settings, settings_class)
    try:
        settings_class(**settings)
    except AlbertError as error:
        raise AlbertError(f"`{name}`: {error}") from None
    except TypeError:  # such as a comparison of a string with a number
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


def _check_predicts(name: str, expected: tuple[str, ...], head: Head) -> None:
    if head.predicts not in expected:
        raise AlbertError(
            f"`task` is {name!r}, for which a model predicts "
            f"{' or '.join(expected)}. Received: a model for "
            f"{head.predicts or 'something else'}."
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

    Arguments are those of `load`, for any source; its task may be WEIGHTS.
    """
    build_options = checked_build_options(dtype, loop, remat)
    path = locate(source)
    # Presets of KerasHub have a task.json, too.
    is_run = not is_keras_hub(path) and any(
        (path / name).is_file() for name in (TASK_FILE, RUN_FILE, REPORT_FILE)
    )
    adapted = is_adapter(path)
    if adapted or not is_run or gelu != DEFAULT_GELU:
        loaded = ModelFolder.without_task(
            load(source, gelu=gelu, **build_options)
        )
        if adapted and (path / TASK_FILE).is_file():
            task = read_json(path / TASK_FILE)
            with not_as_written(path / TASK_FILE):
                check_task(task, head_of(loaded.model))
            loaded = dataclasses.replace(loaded, task=task)
        return loaded
    if (path / TASK_FILE).is_file():
        with not_as_written(path / TASK_FILE):
            check_task(read_json(path / TASK_FILE))
    loaded = ModelFolder.load(path)
    with not_as_written(path / TASK_FILE):
        check_task(loaded.task, head_of(loaded.model))
    return dataclasses.replace(
        loaded, model=with_build_options(loaded.model, build_options)
    )


def load_models(
    source: str | Path | Sequence[str | Path],
    average: str = SeveralModelsUse.average,
    **build_options: Any,
) -> ModelFolder:
    """Reads a model, or several as one, with the settings of the first.

    Args:
        source: that of `load_with_task`; the output of `finetune --seeds`, for
            the models of all seeds that did not diverge; or a list of sources.
            An ensemble does not stop early: rules that are stored are left out.
        average: what is averaged of several models, one of AVERAGES.
        build_options: further arguments of `load_with_task`.

    Raises:
        AlbertError: as `load_with_task`, or the models do not belong together.
    """
    check_choice("average", average, AVERAGES)
    sources = list(source) if isinstance(source, list | tuple) else [source]
    sources = [one for each in sources for one in _of_seeds(each)]
    if not sources:
        raise AlbertError("expected one or more models. Received none.")
    if average == "weights" and len(sources) == 1:
        raise AlbertError(
            "`average` is for several models. Received: one, "
            f"{sources[0]}. Leave --average out."
        )
    first, *others = [load_with_task(each, **build_options) for each in sources]
    for path, other in zip(sources[1:], others, strict=True):
        for name in ("task", "labels"):
            if other.task.get(name) != first.task.get(name):
                raise AlbertError(
                    f"models that are averaged must have the same {name}. "
                    f"Received: {first.task.get(name)!r} in {sources[0]}, "
                    f"{other.task.get(name)!r} in {path}."
                )
    if not others:
        return first
    first = _with_mean_threshold(first, others)
    models = [each.model for each in (first, *others)]
    if average == "weights":
        return dataclasses.replace(first, model=mean_weights(models))
    task = {k: value for k, value in first.task.items() if k != "early_exit"}
    return dataclasses.replace(first, model=AlbertEnsemble(models), task=task)


def _with_mean_threshold(
    first: ModelFolder, others: Sequence[ModelFolder]
) -> ModelFolder:
    """The first model, with the mean of the thresholds of all of them.

    Probabilities are averaged, too. The mean of the members' distances from
    their own thresholds therefore decides. A member without one has the
    default.
    """
    stored = [each.task.get("threshold") for each in (first, *others)]
    widths = [len(each) for each in stored if each]
    if not widths:
        return first
    even = [DEFAULT_THRESHOLD] * widths[0]
    mean = np.mean([each or even for each in stored], axis=0).tolist()
    return dataclasses.replace(first, task=first.task | {"threshold": mean})


def _of_seeds(source: str | Path) -> list[str | Path]:
    """The folders of all seeds, for an output of `finetune --seeds`."""
    if not isinstance(source, str | os.PathLike):
        raise AlbertError(not_a_path(source))
    folder = local_path(source)
    if (folder / TASK_FILE).exists() or not (folder / RUN_FILE).exists():
        return [source]
    seeds = (finished_report(folder) or {}).get("seeds", [])
    return [folder / SEED_FOLDER.format(seed) for seed in seeds] or [source]


def stored_settings(content: dict) -> dict[str, Any]:
    """The settings in task.json as arguments of `Predictor`.

    The dict is empty for models that no task uses, such as pretrained ones.
    """
    task = ALL_TASKS.get(content["task"])
    if task is None:
        return {}
    rule, limits = content.get("early_exit"), content.get("threshold")
    return {
        "task": task.name,
        "labels": content["labels"] and tuple(content["labels"]),
        "lengths": tuple(content["lengths"]),
        "columns": TableColumns(**content["columns"]),
        "reading": ReadingConfig.from_dict(content["reading"])
        if task.reads_contexts
        else None,
        "early_exit": rule and EarlyExit(**rule),
        "threshold": limits and tuple(limits),
        "long_texts": content.get("long_texts", CUT),
    }


def task_of(source: str | Path) -> str | None:
    """The task that a folder's model was trained for; None if there is none."""
    path = local_path(source) / TASK_FILE
    content = read_json(path) if path.is_file() else None
    return content.get("task") if isinstance(content, dict) else None
