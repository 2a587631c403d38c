"""The folder of a model: everything needed to use it, and nothing else.

model.keras         weights and architecture, for every backend
albert_config.json  the encoder's architecture, as the original writes it
spiece.model        the vocabulary (and spiece.json: lower-casing)
task.json           what the model was trained for
report.json         what it reached; log.csv its way there
README.md           the model card, of a fine-tuned model
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
from rich.console import Console
from rich.progress import track
from scipy import special

from keras_albert.checkpoints.huggingface import (
    GELU_CHOICES,
    is_huggingface,
    load_huggingface,
)
from keras_albert.checkpoints.keras_file import (
    checked_form,
    in_form,
    read_own,
    rebuilt,
)
from keras_albert.checkpoints.keras_hub_presets import (
    is_keras_hub,
    load_keras_hub,
)
from keras_albert.checkpoints.places import locate
from keras_albert.checkpoints.tf1 import find_tf1, load_tf1_model
from keras_albert.checkpoints.transfer import encoder_of, plain_encoder
from keras_albert.config import (
    CONFIG_FILE,
    FINETUNE_TASKS,
    MODEL_FILE,
    READING_TASKS,
    REPORT_FILE,
    RUN_FILE,
    TASK_FILE,
    VOCAB_FILE,
    AlbertError,
    ConvertRun,
    PredictRun,
    ReadingConfig,
    TableColumns,
    check_positive,
    read_json,
)
from keras_albert.data.features import Features, sorted_plan
from keras_albert.data.tables import (
    Field,
    Table,
    read_choices,
    read_words,
)
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.inputs import check_equally_many
from keras_albert.modeling.model import AlbertModel
from keras_albert.storage import replacing, write_json
from keras_albert.text.tokenizer import Tokenizer, check_batch
from keras_albert.training.benchmarks import ALL_TASKS
from keras_albert.training.distribution import to_numpy
from keras_albert.training.tasks import PAIR, Outputs

PRETRAINING = "pretraining"
MADE_OF = "made_of"  # checksums of its data, in a run's report
SEED_FOLDER = "seed-{}"  # of each of several runs
SHOWN_FILES = 20  # of a folder that holds no model
WEIGHTS = "weights"  # of any model, not trained here; perhaps no vocabulary
_TASK_KEYS = {
    **{task: {"labels", "lengths", "columns"} for task in FINETUNE_TASKS},
    **{
        task: {"labels", "lengths", "columns", "reading"}
        for task in READING_TASKS
    },
    PRETRAINING: {"examples"},
    WEIGHTS: set(),
}


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """A model with what belongs to it."""

    model: AlbertModel
    tokenizer: Tokenizer | None
    """None only where the task is WEIGHTS"""
    task: dict

    def save(self, folder: Path) -> None:
        """Writes each file whole or not at all; `folder` exists.

        Only the model changes when it is saved again. task.json, which makes
        it a model folder, comes last.
        """
        bare = _bare_copy(self.model)
        with replacing(folder / MODEL_FILE) as unfinished:
            bare.save(unfinished)
        if not (folder / TASK_FILE).exists():
            self.model.config.to_json(folder / CONFIG_FILE)
            if self.tokenizer is not None:
                self.tokenizer.save(folder)
            write_json(folder / TASK_FILE, self.task)

    @classmethod
    def load(
        cls, folder: str | Path, source: str = "pretrain` or `finetune"
    ) -> "ModelFolder":
        """Reads what `save` wrote.

        Args:
            folder: of one model.
            source: the command that writes what is expected, for messages.

        Raises:
            AlbertError: not such a folder, or a damaged file.
        """
        folder = Path(folder)
        if not (folder / TASK_FILE).is_file():
            _point_to_best_seed(folder)
            if (folder / RUN_FILE).is_file():
                raise AlbertError(
                    f"{folder}: the run in this folder has not kept a model "
                    "yet. Give its command again: it goes on."
                )
            raise AlbertError(
                f"{folder}: not a folder of a model (no {TASK_FILE}). Give the "
                f"output folder of `keras-albert {source}`."
            )
        task = read_json(folder / TASK_FILE)
        names = isinstance(task, dict) and _TASK_KEYS.get(task.get("task"))
        if not isinstance(names, set) or not names <= task.keys():
            raise AlbertError(
                f"{folder / TASK_FILE}: not what `pretrain` or `finetune` "
                "writes. Use another copy of the folder."
            )
        tokenizer = None
        if task["task"] != WEIGHTS or (folder / VOCAB_FILE).is_file():
            tokenizer = Tokenizer(folder)
        model = read_own(folder / MODEL_FILE)
        if tokenizer is not None:
            try:
                model.tokenizer = tokenizer
            except AlbertError as error:
                raise AlbertError(f"{folder}: {error}") from None
        return cls(model, tokenizer, task)


def _point_to_best_seed(folder: Path) -> None:
    """AlbertError with the name of the best run, in a folder of several."""
    report = finished_report(folder) or {}
    if "best_seed" in report:
        best = folder / SEED_FOLDER.format(report["best_seed"])
        raise AlbertError(
            f"{folder}: the folder of several runs. Give one of them; the best "
            f"is {best}."
        )


def _bare_copy(model: AlbertModel) -> AlbertModel:
    """Never compiled: the optimizer's state would triple the file.

    Computing in float32, whatever it was trained in: it is to be served
    anywhere.
    """
    return rebuilt(model, to_numpy, dtype="float32")


def load(
    source: str | Path,
    *,
    gelu: str = ConvertRun.gelu,
    backbone: bool = False,
    dtype: str | keras.DTypePolicy | None = None,
    loop: str | None = None,
    remat: bool | None = None,
) -> AlbertModel:
    """The model of a checkpoint, whatever format it has.

    Args:
        source: a folder written by this package, or a `.keras` file of it; the
            folder, or the path without `.index`, of a TF1 checkpoint
            (albert_config.json beside it), or of a TF-Hub module; a folder of
            transformers; a preset folder of KerasHub;
            `hf://organization/name[@revision]` or
            `kaggle://organization/model/framework/variation`, which hold one
            of these.
        gelu: how `hidden_act` "gelu" of transformers is read: "tanh", the
            original's only form, or "erf", as transformers computes.
        backbone: True gives the encoder of any model; its head is left aside.
        dtype: the policy that the model computes in, as "mixed_bfloat16".
            When not given, that of `keras.config.set_dtype_policy`; where it
            is float32, Keras's default, or the model is quantized, a `.keras`
            file keeps the policy that it was saved with.
        loop: see `AlbertBackbone`; when not given, "unrolled", or as a
            `.keras` file has it.
        remat: see `AlbertBackbone`; when not given, False, or as a `.keras`
            file has it.

    Returns:
        A model of the class that the checkpoint's head asks for, AlbertBackbone
        if it has none. `tokenizer` is set where there is a vocabulary.

    Raises:
        AlbertError: nothing, or more than one model, is found there; a file is
            damaged; weights are missing, left over or of another shape.
    """
    if gelu not in GELU_CHOICES:
        raise AlbertError(
            f"`gelu` must be one of {', '.join(GELU_CHOICES)}. "
            f"Received: {gelu!r}."
        )
    form = checked_form(dtype, loop, remat)
    if not isinstance(source, str | os.PathLike):
        raise AlbertError(_not_a_path(source))
    path = locate(source)
    found = _found(path)
    if len(found) != 1:
        raise AlbertError(f"{source}: {_several_or_none(path, found)}")
    kind, what = found[0]
    if kind != _HUGGING_FACE and gelu != ConvertRun.gelu:
        raise AlbertError(
            f"{source}: `gelu` says how to read a model of transformers, this "
            f"is {kind}. Leave gelu={gelu!r} out."
        )
    if kind == _HUGGING_FACE:
        return load_huggingface(what, gelu, backbone, **form)
    if kind == _KERAS_HUB:
        return load_keras_hub(what, backbone, **form)
    if kind == _TF1:
        return load_tf1_model(what, backbone, **form)
    model = ModelFolder.load(what).model if kind == _OURS else read_own(what)
    return in_form(encoder_of(model) if backbone else model, form)


def _not_a_path(source) -> str:
    """What to do with something else, a live model for instance."""
    kind = type(source)
    received = f"Received: {kind.__name__} of {kind.__module__.split('.')[0]}."
    if hasattr(source, "save_to_preset"):  # of KerasHub
        remedy = "model.save_to_preset(folder), then ka.load(folder)"
    elif hasattr(source, "save_pretrained"):  # of transformers
        remedy = "model.save_pretrained(folder), then ka.load(folder)"
    else:
        return f"expected a path or the name of a checkpoint. {received}"
    return (
        "expected a path or the name of a checkpoint, not a model in memory. "
        f"{received} Save it: {remedy}."
    )


def load_pretrained(
    source: str | Path,
    *,
    dtype: str | keras.DTypePolicy | None = None,
    loop: str | None = None,
    remat: bool | None = None,
) -> tuple[AlbertBackbone, Tokenizer]:
    """The encoder and vocabulary of any source that `load` takes.

    An encoder without a pooler (of a masked LM of transformers, say) gets a
    fresh one, always the same; adapters (LoRA) are merged.

    Args:
        source: as for `load`.
        dtype: as for `load`.
        loop: as for `load`.
        remat: as for `load`.

    Raises:
        AlbertError: as `load`, where there is no vocabulary, and where the
            model is quantized.
    """
    backbone = load(source, backbone=True, dtype=dtype, loop=loop, remat=remat)
    if backbone.tokenizer is None:
        raise AlbertError(
            f"{source}: the model has no vocabulary. Put its {VOCAB_FILE} into "
            "the folder."
        )
    return plain_encoder(backbone), backbone.tokenizer


_OURS = "a folder of this package"
_KERAS_FILE = "a .keras file"
_TF1 = "a TF1 checkpoint"
_HUGGING_FACE = "a folder of transformers"
_KERAS_HUB = "a preset of KerasHub"


def _found(path: Path) -> list[tuple[str, Path]]:
    """Every model at a path: its kind, and the path that its reader takes."""
    if path.is_file() and path.suffix == ".keras":
        return [(_KERAS_FILE, path)]
    found = [(_TF1, prefix) for prefix in find_tf1(path)]
    if not path.is_dir():
        return found
    if (path / TASK_FILE).is_file() and (path / CONFIG_FILE).is_file():
        found.append((_OURS, path))
    elif (path / MODEL_FILE).is_file():
        found.append((_KERAS_FILE, path / MODEL_FILE))
    if is_huggingface(path):
        found.append((_HUGGING_FACE, path))
    if is_keras_hub(path):
        found.append((_KERAS_HUB, path))
    return found


def _several_or_none(path: Path, found: list[tuple[str, Path]]) -> str:
    if found:
        listed = "; ".join(f"{kind} ({what.name})" for kind, what in found)
        return (
            f"more than one model is here: {listed}. Name one: the path of a "
            "TF1 checkpoint without `.index`, a .keras file, or a folder of "
            "its own."
        )
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir())
        held = ", ".join(names[:SHOWN_FILES]) or "nothing"
        more = ", ..." if len(names) > SHOWN_FILES else ""
        seen = f"the folder holds {held}{more}"
    else:
        seen = "an unknown kind of file" if path.exists() else "no such file"
    return (
        f"no model here, {seen}. Expected a folder written by keras-albert "
        f"({TASK_FILE}, {MODEL_FILE}), a .keras file of it, a TF1 checkpoint "
        f"({CONFIG_FILE}, *.index), a folder of transformers (config.json, "
        "model.safetensors) or a preset of KerasHub (config.json, "
        "model.weights.h5)."
    )


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A fine-tuned model: texts in, labels (or what it was trained for) out."""

    model: AlbertModel
    tokenizer: Tokenizer
    task: str
    """of ALL_TASKS"""
    labels: tuple[str, ...] | None
    """names in the order of the logits; None where there are none"""
    lengths: tuple[int, ...]
    """static lengths that texts are padded to, in tokens, ascending; what is
    longer than the last is cut off"""
    columns: TableColumns
    """of the table it was trained on"""
    reading: ReadingConfig | None = None
    """how contexts are read for answers; None where there are no questions"""

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        dtype: str | keras.DTypePolicy = "float32",
        loop: str | None = None,
        remat: bool | None = None,
    ) -> "Predictor":
        """Reads the output folder of `finetune`; arguments as for `ka.load`."""
        form = checked_form(dtype, loop, remat)
        loaded = ModelFolder.load(folder, "finetune")
        model = in_form(loaded.model, form)
        return cls.of(dataclasses.replace(loaded, model=model))

    @classmethod
    def of(cls, loaded: ModelFolder) -> "Predictor":
        """That of a loaded folder; AlbertError if it was not fine-tuned."""
        task = loaded.task
        if task["task"] not in ALL_TASKS:
            raise AlbertError(
                "Expected the folder of a fine-tuned model, found a model for "
                f"{task['task']}. Run `keras-albert finetune` first."
            )
        return cls(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            task=task["task"],
            labels=task["labels"] and tuple(task["labels"]),
            lengths=tuple(task["lengths"]),
            columns=TableColumns(**task["columns"]),
            reading=ReadingConfig.from_dict(task["reading"])
            if task["task"] in READING_TASKS
            else None,
        )

    def settings(self) -> dict:
        """What `ModelFolder.task` has to say of it."""
        settings = {
            "task": self.task,
            "labels": self.labels,
            "lengths": self.lengths,
            "columns": dataclasses.asdict(self.columns),
        }
        if self.reading is not None:
            settings["reading"] = dataclasses.asdict(self.reading)
        return settings

    def with_threshold(self, threshold: float) -> "Predictor":
        """Another limit for "no answer", see `ReadingConfig`."""
        reading = dataclasses.replace(self.reading, threshold=threshold)
        return dataclasses.replace(self, reading=reading)

    @property
    def sequence_length(self) -> int:
        """Tokens of the longest text."""
        return self.lengths[-1]

    @property
    def reads_pairs(self) -> bool:
        """Whether its rows have two parts, of segments 0 and 1."""
        names = ALL_TASKS[self.task].inputs(self.columns)
        return not {PAIR, "choices", "context"}.isdisjoint(names)

    def read(
        self, path: str | Path, labelled: bool, skip_bad: bool = False
    ) -> Table:
        """A file with the columns of the table that it was trained on."""
        return ALL_TASKS[self.task].read(
            path, self.columns, labelled, skip_bad, self.labels
        )

    def parts(
        self, path: str | Path, skip_bad: bool, rows_at_once: int
    ) -> Iterator[Table]:
        """A file without labels, see `read_parts`."""
        task = ALL_TASKS[self.task]
        fields = task.fields(self.columns, labelled=False)
        return task.parts(path, fields, skip_bad, rows_at_once)

    def features(self, table: Table) -> Features:
        """The examples of a table, with their target if it has labels."""
        return ALL_TASKS[self.task].examples(
            self.tokenizer,
            table,
            self.labels,
            self.sequence_length,
            self.reading,
        )

    def outputs(
        self,
        features: Features,
        batch_size: int = PredictRun.batch_size,
        stopped: Callable[[], bool] = lambda: False,
        title: str = "Predicting",
        compute: Callable = lambda model, x: model.predict_on_batch(x),
    ) -> Outputs:
        """Logits of each example, in order.

        Args:
            features: examples.
            batch_size: of them at a time.
            stopped: asked before each batch; the rest is then None.
            title: of the progress bar.
            compute: model, inputs -> its outputs.
        """
        check_positive("batch_size", batch_size)
        batch_size = min(batch_size, len(features))
        outputs = [None] * len(features)
        for chosen, length in track(
            sorted_plan(features.lengths, np.array(self.lengths), batch_size),
            description=title,
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        ):
            if stopped():
                break
            x, _, _ = features.batch(chosen, batch_size, length)
            logits = keras.tree.map_structure(
                np.asarray, compute(self.model, x)
            )
            for row, place in enumerate(chosen):
                outputs[place] = keras.tree.map_structure(
                    lambda values, row=row: values[row], logits
                )
                if features.token_target is not None:
                    length = len(features.rows[place].token_ids)
                    outputs[place] = outputs[place][:length]
        return outputs

    def warn_of_cut(self, cut: int, count: int) -> None:
        """Says how many of the examples are longer than it reads."""
        if cut:
            what = too_long(self.sequence_length, self.reading)
            print(f"{cut:,} of {count:,} {what} and cut", file=sys.stderr)

    @property
    def added_columns(self) -> frozenset[str]:
        """The names of what `decode` gives."""
        return ALL_TASKS[self.task].adds

    def decode(
        self, outputs: Outputs, features: Features
    ) -> list[dict[str, object]]:
        """The columns that predictions add, of each example."""
        return ALL_TASKS[self.task].decode(outputs, features, self.labels)

    def predict(
        self,
        texts: list,
        pairs: list[str] | None = None,
        *,
        questions: list[str] | None = None,
        choices: list[list[str]] | None = None,
        batch_size: int = PredictRun.batch_size,
    ) -> list:
        """The prediction for each text, or pair of texts.

        Args:
            texts: strings; where each word gets a label, lists of words or
                strings with spaces between them.
            pairs: second texts, of a model of pairs.
            questions: of a model that chooses or answers.
            choices: of a model that chooses.
            batch_size: examples at a time.

        Returns:
            for each a label, a number, a list of labels, a label for each
            word, the index of a choice, or the answer, "" where the text has
            none.
        """
        first, *_ = ALL_TASKS[self.task].inputs(self.columns)
        given = {
            first: texts,
            "pair": pairs,
            "question": questions,
            "choices": choices,
        }
        features = self._features_of(given)
        if features is None:
            return []
        outputs = self.outputs(features, batch_size)
        return [row["prediction"] for row in self.decode(outputs, features)]

    def probabilities(
        self,
        texts: list[str],
        pairs: list[str] | None = None,
        batch_size: int = PredictRun.batch_size,
    ) -> np.ndarray:
        """float32 [len(texts), len(labels)], in the order of the texts."""
        if not ALL_TASKS[self.task].has_classes:
            raise AlbertError(
                "probabilities are of a classification; this model was trained "
                f"for {self.task}. Call `predict`."
            )
        features = self._features_of({"text": texts, "pair": pairs})
        if features is None:
            return np.zeros((0, len(self.labels)), "float32")
        logits = np.stack(self.outputs(features, batch_size))
        return special.softmax(logits, axis=-1)

    def _features_of(self, given: dict[str, list | None]) -> Features | None:
        """None of no texts."""
        values = {
            name: value for name, value in given.items() if value is not None
        }
        expected = ALL_TASKS[self.task].inputs(self.columns)
        if values.keys() != expected.keys():
            raise AlbertError(
                f"This model was trained on {_kind(expected)}; it was given "
                f"{_kind(values)}."
            )
        check_equally_many(**values)
        count = len(next(iter(values.values())))
        if not count:
            return None
        for name, value in values.items():
            values[name] = _checked_values(name, value, expected[name])
        table = Table(
            Path("texts"), values, [{}] * count, list(range(1, count + 1))
        )
        return self.features(table)


def _checked_values(name: str, values: list, field: Field) -> list:
    """Words as a table has them; texts as they are, even blank ones."""
    if field.read is read_words:
        return [_words(name, words) for words in values]
    if field.read is read_choices:
        for choices in values:
            check_batch(f"each of {name}", choices)
    return values


def _words(name: str, words: object) -> list[str]:
    if words in ("", []):  # refused in a table, which has a label for each
        return []
    try:
        return read_words(words)
    except AlbertError as error:
        raise AlbertError(f"each `{name}` {error}") from None


def too_long(length: int, reading: ReadingConfig | None) -> str:
    """What is said of examples that are cut."""
    if reading is None:
        return f"are longer than {length} tokens"
    return f"have questions of more than {reading.windows.query_length} tokens"


def _kind(names) -> str:
    """What examples are, by the names of their fields."""
    others = sorted(set(names) - {"text", "context"})
    if others == ["pair"]:
        return "pairs of texts"
    return f"texts with {' and '.join(others)}" if others else "single texts"


def task_of(source: str | Path) -> str | None:
    """What the model of a folder was trained for; None elsewhere."""
    path = Path(source) / TASK_FILE
    return read_json(path).get("task") if path.is_file() else None


def write_report(folder: Path, report: dict) -> None:
    """Keeps what a run reached."""
    write_json(folder / REPORT_FILE, report)


def check_made_of(
    folder: Path,
    report: dict,
    sources: Sequence[Path],
    checksums: Callable[[], dict[str, str | None]],
) -> None:
    """AlbertError if a finished run was made of other data than there are.

    Args:
        folder: of the run, which may have outlived its data.
        report: of the run, with their checksums; older ones have none.
        sources: where they are.
        checksums: what they are now.
    """
    if MADE_OF not in report or not all(path.exists() for path in sources):
        return
    if checksums() != report[MADE_OF]:
        raise AlbertError(
            f"{folder}: the run in this folder is finished, and was made of "
            f"other data than {' and '.join(map(str, sources))} now have. "
            "Choose another output."
        )


def finished_report(folder: Path) -> dict | None:
    """What `write_report` kept; None where the run has not ended."""
    path = folder / REPORT_FILE
    return read_json(path) if path.is_file() else None
