"""The commands `pretrain`, `finetune` and `evaluate` as Python functions.

They take the options of the commands, and tables and models in memory, too.
"""

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_albert.cli import run_of
from keras_albert.data.frames import Frame, columns_of
from keras_albert.finetuning import evaluate as evaluation
from keras_albert.finetuning.config import OWN_VALIDATION
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import (
    COMPARED,
    finetuned_lines,
    scores_lines,
)
from keras_albert.finetuning.run import finetune as run_finetune
from keras_albert.modeling.base import AlbertModel
from keras_albert.pretraining.report import report_lines
from keras_albert.pretraining.run import pretrain as run_pretrain
from keras_albert.tasks.metrics import confusion_figure
from keras_albert.training.plots import curves_figure, new_figure
from keras_albert.training.run_log import read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A finished run of `pretrain` or `finetune`.

    Args:
        folder: its output folder, with the model, the log and the report.
        report: the content of report.json: the scores and what they were
            measured on.
        lines: the report as text.
    """

    folder: Path
    report: dict
    lines: list[str]

    @property
    def predictor(self) -> Predictor:
        """The model with its task, read from the folder."""
        return Predictor.load(self.folder)

    def plot(self) -> "Figure":
        """The losses, scores and speed over the steps.

        Raises:
            AlbertError: matplotlib is not installed.
        """
        return curves_figure(read_log(self.folder))

    def __repr__(self) -> str:
        return "\n".join([f"{self.folder}:", *self.lines])


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The scores of a model.

    Args:
        report: the scores by name, and what stands beside them.
    """

    report: dict

    def plot(self) -> "Figure":
        """The confusion matrix, or the score beside those of the baselines.

        Raises:
            AlbertError: matplotlib is not installed.
        """
        if "confusion" in self.report:
            names = [each["label"] for each in self.report["classes"]]
            return confusion_figure(names, self.report["confusion"])
        if "held_out" in self.report:  # of a pretrained model
            shown = [
                name
                for name in self.report["held_out"]
                if name.endswith(("accuracy", "baseline"))
            ]
            values = {name: self.report["held_out"][name] for name in shown}
        else:
            shown = [self.report["best"], *COMPARED]
            values = {name: self.report.get(name) for name in shown}
        values = {k: v for k, v in values.items() if v is not None}
        figure = new_figure(5, 3)
        bars = figure.subplots()
        names = [name.replace("_", " ") for name in values]
        bars.bar_label(bars.barh(names, list(values.values())), fmt="%.3f")
        bars.invert_yaxis()
        return figure

    def __repr__(self) -> str:
        if "best" not in self.report:
            return "\n".join(report_lines(self.report))
        return "\n".join(scores_lines(self.report, examples=""))


def pretrain(
    data: str | Path, output: str | Path, **options: Any
) -> FinishedRun:
    """Pretrains a model, as the command `pretrain`; resumes a stopped run.

    Args:
        data: a folder of token shards, written by `keras-albert prepare`.
        output: the output folder.
        options: the options of the command, with `_` in place of `-`; those of
            a section as a dict, such as `optimizer={"learning_rate": 1e-3}`.
            `recipe` names a set of options.

    Returns:
        the finished run.

    Raises:
        AlbertError: as the command; an option that it does not have.
    """
    run = run_of("pretrain", {"data": data, "output": output, **options})
    report = run_pretrain(run)
    return FinishedRun(run.output, report, report_lines(report))


def finetune(
    model: str | Path | AlbertModel | Predictor,
    train: str | Path | Frame,
    output: str | Path | None = None,
    *,
    validation: str | Path | Frame | None = OWN_VALIDATION,
    **options: Any,
) -> FinishedRun:
    """Fine-tunes a model, as the command `finetune`; resumes a stopped run.

    Args:
        model: a folder, `hf://organization/name` or any other source of
            `load`; or a model.
        train: a file; or a table in memory: a dict of columns, a frame of
            pandas or polars, a Hugging Face dataset, a tf.data.Dataset of
            dicts, or a list of dicts.
        output: the output folder; None for a new folder for temporary files.
            What is given in memory is kept beside it, in `<output>.inputs`, so
            that a stopped run can be resumed.
        validation: rows to measure on, as `train`; "auto" holds out some rows
            of `train`, and None none.
        options: the options of the command, with `_` in place of `-`; those of
            a section as a dict, such as `columns={"text": "body"}`.

    Returns:
        the finished run; `predictor` is the model with its task.

    Raises:
        AlbertError: as the command; an option that it does not have.
    """
    if output is None:
        output = Path(tempfile.mkdtemp(prefix="keras-albert-")) / "model"
    inputs = _Inputs(Path(f"{output}.inputs"))
    given = {
        "model": inputs.model(model),
        "train": inputs.table(train, "train.jsonl"),
        "validation": "none",
    }
    if validation is not None:
        given["validation"] = inputs.table(validation, "validation.jsonl")
    run = run_of("finetune", {**given, "output": output, **options})
    inputs.write()
    report = run_finetune(run)
    return FinishedRun(run.output, report, finetuned_lines(report))


def evaluate(
    model: str | Path | AlbertModel | Predictor,
    data: str | Path | Frame,
    **options: Any,
) -> Evaluation:
    """Scores a model, as the command `evaluate`.

    Args:
        model: a folder or another source of `load`; or a model in memory.
        data: labelled examples in a file, or a table in memory, see
            `finetune`; for a pretrained model a folder of token shards.
        options: the options of the command, with `_` in place of `-`.

    Returns:
        the scores; `plot` draws the confusion matrix if there are classes.

    Raises:
        AlbertError: as the command; an option that it does not have.
    """
    with tempfile.TemporaryDirectory(prefix="keras-albert-") as folder:
        inputs = _Inputs(Path(folder))
        given = {
            "model": inputs.model(model),
            "data": inputs.table(data, "data.jsonl"),
        }
        run = run_of("evaluate", {**given, **options})
        inputs.write()
        return Evaluation(evaluation.evaluate(run))


class _Inputs:
    """The paths of models and tables; what is in memory is written to files.

    That is done by `write`, after the options have been checked.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._writes: list[Callable[[], None]] = []

    def model(self, model: Any) -> str:
        """The source of a model."""
        if not isinstance(model, AlbertModel | Predictor):
            return str(model)
        path = self.folder / "model"
        self._writes.append(lambda: _write_model(model, path))
        return str(path)

    def table(self, data: Any, name: str) -> str:
        """The path of a table; `name` is that of its file if there is none."""
        if isinstance(data, str | Path):
            return str(data)
        columns, path = columns_of(data), self.folder / name
        self._writes.append(lambda: _write_table(columns, path))
        return str(path)

    def write(self) -> None:
        if self._writes:
            self.folder.mkdir(parents=True, exist_ok=True)
        for write in self._writes:
            write()


def _write_model(model: AlbertModel | Predictor, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if isinstance(model, Predictor):
        model.save(path)
    else:
        model.save_to_preset(path)


def _write_table(columns: dict[str, list], path: Path) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for row in zip(*columns.values(), strict=True):
            values = dict(zip(columns, row, strict=True))
            print(
                json.dumps(values, ensure_ascii=False, default=str), file=file
            )
