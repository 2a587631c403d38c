"""The folder of a model: everything needed to use it, and nothing else.

model.keras         weights and architecture, for every backend
albert_config.json  the encoder's architecture, in the reference's format
spiece.model        the vocabulary (and spiece.json: lower-casing)
task.json           the task of the model; see tasks/task_file.py
report.json         the results of the run, and log.csv their course
README.md           the model card of a fine-tuned model
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_albert.distribution.backend import to_numpy
from keras_albert.errors import AlbertError, errors_about
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.classification import default_labels
from keras_albert.modeling.config import CONFIG_FILE, AlbertConfig
from keras_albert.modeling.keras_file import read_own, rebuilt
from keras_albert.storage import (
    MANIFEST_FILE,
    RUN_FILE,
    read_json,
    replacing,
    write_json,
    written_whole,
)
from keras_albert.text.tokenizer import VOCAB_FILE, Tokenizer
from keras_albert.training.run_folder import SEED_FOLDER, finished_report

MODEL_FILE, TASK_FILE = "model.keras", "task.json"
# The settings of an exported model; and the folder that holds them in a
# SavedModel, which servers ignore.
EXPORT_FILE, ASIDE = "export.json", "assets.extra"
# What task.json says of a model that was only pretrained; and of one that was
# not trained by this package, which may have no vocabulary.
PRETRAINING, WEIGHTS = "pretraining", "weights"


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """A model with what belongs to it."""

    model: AlbertModel
    tokenizer: Tokenizer | None
    """None only where the task is WEIGHTS"""
    task: dict

    def save(self, folder: Path) -> None:
        """Writes each file atomically; `folder` exists.

        Only the model changes when it is saved again; task.json comes last.
        """
        bare = _bare_copy(self.model, self.task.get("labels"))
        with replacing(folder / MODEL_FILE) as unfinished:
            bare.save(unfinished)
        if not (folder / TASK_FILE).exists():
            self.model.config.to_json(folder / CONFIG_FILE)
            if self.tokenizer is not None:
                self.tokenizer.save(folder)
            write_json(folder / TASK_FILE, self.task)

    def save_new(self, folder: str | Path) -> None:
        """Writes a new or empty folder; if that fails, nothing remains."""
        with written_whole(folder) as unfinished:
            self.save(unfinished)

    @classmethod
    def without_task(cls, model: AlbertModel) -> "ModelFolder":
        """A model alone, with its own vocabulary if it has one."""
        return cls(model, model.tokenizer, {"task": WEIGHTS})

    @classmethod
    def load(cls, folder: str | Path) -> "ModelFolder":
        """Reads the files that `save` wrote.

        task.json is read, but not compared with the model:
        `tasks.task_file.load_with_task` does that.

        Raises AlbertError if a file is missing, damaged or of another model.
        """
        folder = Path(folder)
        if not (folder / TASK_FILE).is_file():
            point_to_best_seed(folder)
            if (folder / MANIFEST_FILE).is_file():
                raise AlbertError(
                    f"{folder}: token shards, which `prepare` wrote. Give the "
                    "output folder of `keras-albert pretrain` or `finetune`."
                )
            if (folder / RUN_FILE).is_file():
                raise AlbertError(
                    f"{folder}: the run in this folder has not kept a model "
                    "yet. Give its command again: it goes on."
                )
            raise AlbertError(
                f"{folder}: not a folder of a model (no {TASK_FILE}). Give the "
                f"output folder of `keras-albert pretrain` or `finetune`."
            )
        task = read_json(folder / TASK_FILE)
        if not isinstance(task, dict):
            raise AlbertError(
                f"{folder / TASK_FILE}: expected an object. Received: "
                f"{task!r:.60}. Use another copy of the folder."
            )
        tokenizer = None
        if task.get("task") != WEIGHTS or (folder / VOCAB_FILE).is_file():
            tokenizer = Tokenizer(folder)
        if not (folder / MODEL_FILE).is_file():
            point_to_exported(folder)
        model = read_own(folder / MODEL_FILE)
        if (folder / CONFIG_FILE).is_file():
            config = AlbertConfig.from_json(folder / CONFIG_FILE)
            with not_as_written(folder / CONFIG_FILE):
                check_same_config(config, model)
        if tokenizer is not None:
            with errors_about(folder):
                model.tokenizer = tokenizer
        return cls(model, tokenizer, task)


@contextlib.contextmanager
def not_as_written(path: Path) -> Iterator[None]:
    """Adds the file and the remedy to an error in what a command wrote."""
    try:
        yield
    except AlbertError as error:
        raise AlbertError(
            f"{path}: not what `pretrain`, `finetune` or `convert` writes: "
            f"{error} Use another copy of the folder."
        ) from None


def point_to_best_seed(folder: Path) -> None:
    """Raises AlbertError, with the best run's name, for a folder of several."""
    report = finished_report(folder) or {}
    if "best_seed" in report:
        best = folder / SEED_FOLDER.format(report["best_seed"])
        raise AlbertError(
            f"{folder}: the folder of several runs. Give one of them; the best "
            f"is {best}."
        )


def point_to_exported(folder: Path) -> None:
    """Raises AlbertError for the folder of an exported model."""
    places = ("", f"{ASIDE}/", f"*/{ASIDE}/")
    if any(any(folder.glob(f"{place}{EXPORT_FILE}")) for place in places):
        raise AlbertError(
            f"{folder}: an exported model, which is a program for servers and "
            "devices. Give the folder that was exported; `check` compares both."
        )


def _bare_copy(model: AlbertModel, labels: Sequence[str] | None) -> AlbertModel:
    """A copy in float32; an optimizer would triple the file."""
    bare = rebuilt(model, to_numpy, dtype="float32")
    name_labels(bare, labels)
    return bare


def name_labels(model: AlbertModel, labels: Sequence[str] | None) -> None:
    """Gives the head `labels`, if they are names and not numbers."""
    if labels and hasattr(model, "labels"):
        has_names = tuple(labels) != default_labels(len(labels))
        model.labels = tuple(labels) if has_names else None


def check_same_config(found: AlbertConfig, model: AlbertModel) -> None:
    """Raises AlbertError that names the fields in which configs differ."""
    different = [
        f"{field.name}={getattr(found, field.name)} instead of "
        f"{getattr(model.config, field.name)}"
        for field in dataclasses.fields(AlbertConfig)
        if getattr(found, field.name) != getattr(model.config, field.name)
    ]
    if different:
        raise AlbertError(
            "it does not describe the architecture of the weights "
            f"({', '.join(different)})."
        )
