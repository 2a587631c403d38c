"""The commands `pretrain`, `finetune` and `evaluate` as Python functions.

They take the options of the commands, and tables and models in memory, too.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from keras_albert.cli import COMMANDS, run_of
from keras_albert.data.frames import Frame, columns_of
from keras_albert.distribution.backend import random_states, set_random_states
from keras_albert.errors import AlbertError
from keras_albert.finetuning import evaluate as evaluation
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import COMPARED, finetuned_lines
from keras_albert.finetuning.run import finetune as run_finetune
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.inputs import vocabulary_of
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.pretraining.report import report_lines
from keras_albert.pretraining.run import pretrain as run_pretrain
from keras_albert.private_apis import own_keras_random
from keras_albert.redirection import own_stream, redirected
from keras_albert.settings import option_types
from keras_albert.storage import local_path, replacing
from keras_albert.tasks.metrics import confusion_figure
from keras_albert.training.plots import curves_figure, new_figure
from keras_albert.training.run_folder import INPUTS, SEED_FOLDER, holds_run
from keras_albert.training.run_log import read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Options that may be models or tables in memory, too.
MODELS = ("model", "teacher", "start", "warm_start")
TABLES = ("train", "validation", "data", "corpus")


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A finished run of `pretrain` or `finetune`.

    Args:
        folder: its output folder, with the model, the log and the report.
        report: report.json: the scores and what they were measured on.
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

        Of several seeds those of the best one are shown.

        Raises:
            AlbertError: matplotlib is not installed.
        """
        folder = self.folder
        if "best_seed" in self.report:
            folder = folder / SEED_FOLDER.format(self.report["best_seed"])
        return curves_figure(read_log(folder), self.report.get("best"))

    def __repr__(self) -> str:
        return "\n".join([f"{self.folder}:", *self.lines])


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The scores of a model.

    Args:
        report: scores, baselines and other results, by name.
        text: what the command `evaluate` prints.
    """

    report: dict
    text: str

    def plot(self) -> "Figure":
        """The confusion matrix, or the score beside those of the baselines.

        Raises:
            AlbertError: matplotlib is not installed.
        """
        if "confusion" in self.report:
            names = [each["label"] for each in self.report["classes"]]
            return confusion_figure(names, self.report["confusion"])
        if "held_out" in self.report:  # of a pretrained model
            values = {
                name: value
                for name, value in self.report["held_out"].items()
                if name.endswith(("accuracy", "baseline"))
            }
        else:
            shown = (self.report["best"], *COMPARED)
            values = {name: self.report.get(name) for name in shown}
        values = {k: v for k, v in values.items() if v is not None}
        figure = new_figure(5, 3)
        bars = figure.subplots()
        names = [name.replace("_", " ") for name in values]
        bars.bar_label(bars.barh(names, list(values.values())), fmt="%.3f")
        bars.invert_yaxis()
        return figure

    def __repr__(self) -> str:
        return self.text


def pretrain(
    data: str | Path, output: str | Path, **options: Any
) -> FinishedRun:
    """Pretrains a model, as the command `pretrain`; resumes a stopped run.

    Args:
        data: a folder of token shards, written by `keras-albert prepare`.
        output: the output folder.
        options: the options of the command, with `_` in place of `-`; those of
            a section as a dict, such as `optimizer={"learning_rate": 1e-3}`.
            `recipe` names a set of options. `warm_start` and `teacher` may be
            models.

    Returns:
        the finished run.

    Raises:
        AlbertError: an error of the command, or an option that it lacks.
    """
    inputs = _Inputs(_path(output))
    folder = inputs.output.absolute()  # wherever the user goes meanwhile
    given = {"output": inputs.output, **options, "data": _path(data)}
    given = inputs.as_paths(given)
    with inputs.named_as_given(), _own_random_numbers():
        run = run_of("pretrain", given)
        inputs.write(run)
        report = run_pretrain(run)
    # Of several processes only the first one has a report.
    lines = [*map(_in_python, report_lines(report))] if report else []
    return FinishedRun(folder, report, lines)


def finetune(
    model: "str | Path | AlbertModel | Predictor | FinishedRun",
    train: str | Path | Frame,
    output: str | Path | None = None,
    *,
    validation: str | Path | Frame | None = "auto",
    **options: Any,
) -> FinishedRun:
    """Fine-tunes a model, as the command `finetune`; resumes a stopped run.

    Args:
        model: any source of `load`; or a model, or a finished run.
        train: a file; or a table in memory: a dict of columns, a frame of
            pandas or polars, a pyarrow.Table, a Hugging Face dataset, a
            tf.data.Dataset of dicts, or a list of dicts.
        output: the output folder; None for a new folder for temporary files.
            A model or table in memory is written to `<output>.inputs`, so that
            an interrupted run can go on.
        validation: as `train`; "auto" holds out some rows of `train`, None
            trains on all rows and measures some of them.
        options: the options of the command, with `_` in place of `-`; those of
            a section as a dict, such as `columns={"text": "body"}`. `teacher`
            may be a model.

    Returns:
        the finished run; `predictor` is the model with its task.

    Raises:
        AlbertError: an error of the command, or an option that it lacks.
    """
    if isinstance(model, AlbertModel):
        vocabulary_of(model)  # else the error would name a folder
    temporary = None
    if output is None:
        temporary = tempfile.mkdtemp(prefix="keras-albert-")
    inputs = _Inputs(Path(temporary, "model") if temporary else _path(output))
    folder = inputs.output.absolute()  # wherever the user goes meanwhile
    given = {"model": model, "train": train, "validation": validation}
    if validation is None:
        given["validation"] = "none"
    try:
        given = inputs.as_paths({**options, **given, "output": inputs.output})
        with inputs.named_as_given(), _own_random_numbers():
            run = run_of("finetune", given)
            if temporary:
                print(
                    f"the output folder is {inputs.output}; with it as "
                    "`output`, the same call goes on if it is interrupted"
                )
            inputs.write(run)
            report = run_finetune(run)
    except AlbertError:
        # After a refusal; a run that has begun may have made a model already.
        if temporary and not inputs.output.exists():
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    lines = [*map(_in_python, finetuned_lines(report))] if report else []
    return FinishedRun(folder, report, lines)


def evaluate(
    model: "str | Path | AlbertModel | Predictor | FinishedRun | list",
    data: str | Path | Frame,
    **options: Any,
) -> Evaluation:
    """Scores a model, as the command `evaluate`.

    Args:
        model: a folder or another source of `load`, a finished run, or a
            fine-tuned model in memory; a list of them is averaged.
        data: labelled examples in a file or in memory, see `finetune`; for a
            pretrained model a folder of token shards.
        options: the options of the command, with `_` in place of `-`. `start`
            may be a model, and `corpus` a table. In `errors_file` the first
            row of a table in memory is line 1.

    Returns:
        the scores; `plot` draws the confusion matrix if there are classes.

    Raises:
        AlbertError: an error of the command, or an option that it lacks.
    """
    with tempfile.TemporaryDirectory(prefix="keras-albert-") as folder:
        inputs = _Inputs(Path(folder, "evaluated"))
        given = inputs.as_paths({**options, "model": model, "data": data})
        printed = io.StringIO()
        with inputs.named_as_given(), redirected(printed):
            run = run_of("evaluate", given)
            inputs.write()
            report = evaluation.evaluate(run)
        lines = inputs.named(printed.getvalue()).rstrip().split("\n")
        in_memory = not isinstance(data, str | os.PathLike)
        text = "\n".join(_scores_line(line, in_memory) for line in lines)
        return Evaluation(report, text)


@contextlib.contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Leaves the caller's random generators as they were.

    They are those of Python, NumPy, Keras and PyTorch. A run sets their seeds:
    otherwise a random search of the caller would draw the same values after
    each run.
    """
    states = random.getstate(), np.random.get_state(), random_states()
    try:
        with own_keras_random():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        set_random_states(states[2])


class _Inputs:
    """Writes models and tables in memory to files, which commands can read.

    The name of a file contains a checksum of its content, so that a call with
    other contents counts as another run. The files are written after the
    options have been checked.
    """

    def __init__(self, output: Path):
        self.output = output
        self._folder = Path(INPUTS.format(output))
        self._names: dict[str, str] = {}  # of options, by paths
        self._writes: dict[Path, Callable[[Path], None]] = {}

    def as_paths(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options, with paths in place of what is in memory."""
        found = dict(options)
        for name in options.keys() & {*MODELS}:
            value = options[name]
            many = isinstance(value, list | tuple)
            paths = [self._model(name, x) for x in (value if many else [value])]
            found[name] = paths if many else paths[0]
        for name in options.keys() & {*TABLES}:
            found[name] = self._table(name, options[name])
        return found

    def _model(self, name: str, model: Any) -> Any:
        if isinstance(model, FinishedRun):
            return str(model.folder)
        if isinstance(model, str | os.PathLike) or (
            model is None and name != "model"
        ):
            return model and os.path.expanduser(model)
        if not isinstance(model, AlbertModel | Predictor):
            raise AlbertError(
                f"`{name}` must be a model, a folder, hf://organization/name "
                f"or a finished run. Received: {type(model).__name__}."
            )
        file = f"{name}-{_checksum(model)[:12]}"
        return self._kept(name, file, lambda path: _write_model(model, path))

    def _table(self, name: str, data: Any) -> Any:
        if data is None or isinstance(data, str | os.PathLike):
            return data if data is None else str(_path(data))
        columns = columns_of(data)
        rows = zip(*columns.values(), strict=True)
        lines = (
            json.dumps(dict(zip(columns, row, strict=True)), default=str)
            for row in rows
        )
        content = "".join(f"{line}\n" for line in lines)
        checksum = hashlib.sha256(content.encode()).hexdigest()
        file = f"{name}-{checksum[:12]}.jsonl"
        return self._kept(name, file, lambda path: _write_text(path, content))

    def _kept(self, name: str, file: str, write: Callable[[Path], None]) -> str:
        path = self._folder / file
        self._writes[path] = write
        self._names[str(path)] = name
        return str(path)

    def write(self, run: Any = None) -> None:
        """Writes the files, if the output holds nothing else than `run`."""
        if run is not None:
            holds_run(run.output, run)
        for path, write in self._writes.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path)

    @contextlib.contextmanager
    def named_as_given(self) -> Iterator[None]:
        """Context manager that rewrites what a command prints and raises.

        Temporary files and command-line flags are replaced by the names of the
        Python arguments that the user gave.
        """

        def change(text: str) -> str:
            return _in_python(self.named(text))

        out, err = (
            stream and _Changed(stream, change)  # None in a daemon
            for stream in (own_stream("stdout"), own_stream("stderr"))
        )
        try:
            with redirected(out, err):
                yield
        except AlbertError as error:
            raise AlbertError(change(str(error))) from error

    def named(self, text: str) -> str:
        """Replaces the paths of temporary files in a text by argument names."""
        for path, name in self._names.items():
            parts = re.split(rf"{re.escape(path)}(?::(\d+))?", text)
            for place in range(1, len(parts), 2):
                line = parts[place]
                parts[place] = f"`{name}`"
                if line is not None:
                    parts[place] += f", row {int(line) - 1}"
            text = "".join(parts)
        # What an earlier call had in memory is in the same folder.
        folder = re.escape(str(self._folder))
        earlier = rf"{folder}/(\w+)-[0-9a-f]{{12}}(\.jsonl)?"
        return re.sub(earlier, r"another `\1`", text)


class _Changed:
    """A stream that changes each text before it is written."""

    def __init__(self, stream: TextIO, change: Callable[[str], str]):
        self._stream = stream
        self._change = change

    def write(self, text: str) -> int:
        changed = self._change(text)
        try:
            self._stream.write(changed)
        except UnicodeEncodeError:  # of labels, or names of files
            encoding = getattr(self._stream, "encoding", None) or "ascii"
            safe = changed.encode(encoding, "backslashreplace")
            self._stream.write(safe.decode(encoding))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _in_python(message: str) -> str:
    """Rewrites the message of a command, with the options as Python has them.

    `--validation none` becomes `validation=None`, and --seed `seed`; what only
    looks like an option, and the commands in `backticks`, stay.
    """

    def option(found: re.Match) -> str:
        name = (found["name"] or "").replace("-", "_")
        if name.removeprefix("no_") not in _option_names():
            return found[0]
        return f"`{name}=None`" if found["value"] else f"`{name}`"

    return _OPTION.sub(option, message)


@functools.cache
def _option_names() -> set[str]:
    """The names of the options of all commands.

    All are known, since the note of a command may speak of another one.
    """
    classes = (command.run_class for command in COMMANDS.values())
    return {name for each in classes for name in option_types(each)}


# A command in backticks, or an option, perhaps in backticks, with "none".
_OPTION = re.compile(
    r"`(?!--)[^`\n]*`"
    r"|(?P<tick>`?)(?<![\w/'\"-])--(?P<name>[a-z]\w*(?:[-.][a-z0-9]\w*)*)"
    r"(?![\w/'\"])"
    r"(?P<value> [Nn]one)?(?(tick)(?P=tick))"
)


def _scores_line(line: str, in_memory: bool) -> str:
    """Rewrites a line that `evaluate` prints.

    A line on a wrong prediction quotes a text of the user's, which must stay as
    it is. If the table was in memory, it gets the number of the row.
    """
    mistake = re.match(r"line (\d+)(?=[,:])", line)
    if not mistake:
        return _in_python(line)
    if in_memory:  # row 0 is in line 1 of the file that was written
        return f"row {int(mistake[1]) - 1}{line[mistake.end() :]}"
    return line


def _checksum(model: AlbertModel | Predictor) -> str:
    """SHA-256, in hexadecimal, of everything a model's answers depend on."""
    task = None
    if isinstance(model, Predictor):
        model, task = model.model, model.settings()
    tokenizer = model.tokenizer
    vocabulary = tokenizer and (tokenizer.fingerprint, tokenizer.settings)
    config = _without_identity(model.get_config())
    parts = weights_checksum(model), config, vocabulary, task
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _without_identity(config: Any) -> Any:
    """A config of Keras without entries that differ between equal models.

    These are the memory address by which models share a layer, and names that
    Keras numbers in the order in which layers are made.
    """
    if isinstance(config, dict):
        if str(config.get("class_name", "")).endswith("DTypePolicy"):
            return config  # its name, such as float32, is all that it says
        return {
            key: _without_identity(value)
            for key, value in config.items()
            if key not in ("shared_object_id", "name")
        }
    if isinstance(config, list | tuple):
        return [*map(_without_identity, config)]
    return config


def _path(value: Any) -> Path:
    """The path of a file or folder; "~" is the user's own folder."""
    if not isinstance(value, str | os.PathLike):
        raise AlbertError(
            f"expected the path of a file or folder. Received: {value!r:.60}."
        )
    return local_path(value)


def _write_text(path: Path, content: str) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text(content)


def _write_model(model: AlbertModel | Predictor, path: Path) -> None:
    if isinstance(model, Predictor):
        model.save(path)
    else:
        model.save_to_preset(path)
