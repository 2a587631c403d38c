"""The folder of a model: everything needed to use it, and nothing else.

model.keras         weights and architecture, for every backend
albert_config.json  the encoder's architecture, as the original writes it
spiece.model        the vocabulary (and spiece.json: lower-casing)
task.json           what the model was trained for
report.json         what it reached; log.csv its way there
"""

import dataclasses
import json
import os
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
from rich.console import Console
from rich.progress import track

from keras_albert.checkpoints.tf1 import load_tf1
from keras_albert.config import (
    CONFIG_FILE,
    MODEL_FILE,
    REPORT_FILE,
    TASK_FILE,
    AlbertConfig,
    AlbertError,
    PredictRun,
    read_json,
)
from keras_albert.data.tables import pack_rows, pad_batch
from keras_albert.modeling.backbone import AlbertBackbone, AlbertModel
from keras_albert.modeling.heads import (
    AlbertForPretraining,
    AlbertForSequenceClassification,
)
from keras_albert.text.tokenizer import Tokenizer

PRETRAINING = "pretraining"
CLASSIFICATION = "classification"
_TASK_KEYS = {
    PRETRAINING: {"examples"},
    CLASSIFICATION: {"labels", "sequence_length", "pairs", "columns"},
}
RELEASED_PREFIX = "model.ckpt-best"  # in the original's archives


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """A model with what belongs to it."""

    model: AlbertForPretraining | AlbertForSequenceClassification
    tokenizer: Tokenizer
    task: dict

    def save(self, folder: Path) -> None:
        """Writes each file whole or not at all; `folder` exists.

        Only the model changes when it is saved again. task.json, which makes
        it a model folder, comes last.
        """
        # A copy that was never compiled: the optimizer's state would make the
        # file three times as large.
        bare = type(self.model).from_config(self.model.get_config())
        bare.set_weights(self.model.get_weights())
        unfinished = folder / f"unfinished-{MODEL_FILE}"
        bare.save(unfinished)
        os.replace(unfinished, folder / MODEL_FILE)
        if not (folder / TASK_FILE).exists():
            self.model.config.to_json(folder / CONFIG_FILE)
            self.tokenizer.save(folder)
            write_json(folder / TASK_FILE, self.task)

    @classmethod
    def load(cls, folder: str | Path) -> "ModelFolder":
        """Reads what `save` wrote.

        Raises:
            AlbertError: not such a folder, or a damaged file.
        """
        folder = Path(folder)
        if not (folder / TASK_FILE).is_file():
            raise AlbertError(
                f"{folder}: not a folder of a model (no {TASK_FILE}). Give the "
                "output folder of `keras-albert pretrain` or `finetune`."
            )
        task = read_json(folder / TASK_FILE)
        names = isinstance(task, dict) and _TASK_KEYS.get(task.get("task"))
        if not names or not names <= task.keys():
            raise AlbertError(
                f"{folder / TASK_FILE}: not what `pretrain` or `finetune` "
                "writes. Use another copy of the folder."
            )
        tokenizer = Tokenizer(folder)
        model = load_model(folder / MODEL_FILE)
        _check_vocabulary(folder, model.config, tokenizer)
        return cls(model, tokenizer, task)


def load_model(path: str | Path) -> keras.Model:
    """A model from its `.keras` file, as `keras.saving.load_model`.

    Raises:
        AlbertError: the file is missing or damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise AlbertError(f"{path}: no such file.")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"bad checksum of {damaged}")
        model = keras.saving.load_model(path, compile=False)
    except (
        zipfile.BadZipFile,
        EOFError,
        KeyError,
        OSError,
        TypeError,
        ValueError,
    ) as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise AlbertError(
            f"{path}: damaged, or not a model of this package ({reason}). Use "
            "another copy of the model."
        ) from None
    if not isinstance(model, AlbertModel):
        raise AlbertError(
            f"{path}: expected a model of this package. "
            f"Received: {type(model).__name__}."
        )
    return model


def load_pretrained(folder: str | Path) -> tuple[AlbertBackbone, Tokenizer]:
    """The encoder and vocabulary of a model folder or a released archive.

    A released archive holds albert_config.json, model.ckpt-best.* and one
    *.model file.
    """
    folder = Path(folder)
    if (folder / TASK_FILE).is_file():
        loaded = ModelFolder.load(folder)
        return loaded.model.backbone, loaded.tokenizer
    if not (folder / f"{RELEASED_PREFIX}.index").is_file():
        raise AlbertError(
            f"{folder}: no model here. Give a folder written by `keras-albert "
            f"pretrain`, or one with {CONFIG_FILE}, {RELEASED_PREFIX}.* and "
            "the *.model vocabulary."
        )
    tokenizer = Tokenizer(folder)
    config = AlbertConfig.from_json(folder / CONFIG_FILE)
    _check_vocabulary(folder, config, tokenizer)
    backbone = AlbertBackbone(config)
    load_tf1(backbone, folder / RELEASED_PREFIX)
    return backbone, tokenizer


def _check_vocabulary(
    folder: Path, config: AlbertConfig, tokenizer: Tokenizer
) -> None:
    if tokenizer.vocab_size > config.vocab_size:
        raise AlbertError(
            f"{folder}: the vocabulary has {tokenizer.vocab_size} pieces, the "
            f"model knows vocab_size={config.vocab_size}. Put the vocabulary "
            "there that the model was trained with."
        )


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A fine-tuned text classifier: strings in, labels out."""

    model: AlbertForSequenceClassification
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    sequence_length: int
    """longest text, in tokens; the rest is cut off"""
    pairs: bool
    """whether it was trained on pairs of texts"""

    @classmethod
    def load(cls, folder: str | Path) -> "Classifier":
        """Reads the output folder of `finetune`."""
        return cls.of(ModelFolder.load(folder))

    @classmethod
    def of(cls, loaded: ModelFolder) -> "Classifier":
        """The classifier of a loaded folder; AlbertError if it has none."""
        if loaded.task["task"] != CLASSIFICATION:
            raise AlbertError(
                "Expected the folder of a fine-tuned classifier, found a "
                f"model for {loaded.task['task']}. Run `keras-albert finetune` "
                "first."
            )
        return cls(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            labels=tuple(loaded.task["labels"]),
            sequence_length=loaded.task["sequence_length"],
            pairs=loaded.task["pairs"],
        )

    def probabilities(
        self,
        texts: list[str],
        pairs: list[str] | None = None,
        batch_size: int = PredictRun.batch_size,
    ) -> np.ndarray:
        """float32 [len(texts), len(labels)], in the order of the texts."""
        if self.pairs != (pairs is not None):
            raise AlbertError(
                "This model was trained on "
                + ("pairs of texts" if self.pairs else "single texts")
                + "; it was given "
                + ("single texts." if self.pairs else "pairs.")
            )
        rows = pack_rows(self.tokenizer, texts, pairs, self.sequence_length)
        batch_size = min(batch_size, max(len(rows), 1))
        probabilities = np.zeros((len(rows), len(self.labels)), "float32")
        for start in track(
            range(0, len(rows), batch_size),
            description="Classifying",
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        ):
            chosen = rows[start : start + batch_size]
            x, _, _ = pad_batch(
                chosen,
                np.zeros(len(chosen), "int32"),
                batch_size,
                self.sequence_length,
            )
            logits = self.model.predict_on_batch(x)[: len(chosen)]
            odds = np.exp(logits - logits.max(-1, keepdims=True))
            probabilities[start : start + batch_size] = odds / odds.sum(
                -1, keepdims=True
            )
        return probabilities

    def predict(
        self, texts: list[str], pairs: list[str] | None = None
    ) -> list[str]:
        """The most probable label of each text, or pair of texts."""
        best = self.probabilities(texts, pairs).argmax(-1)
        return [self.labels[index] for index in best]


def write_json(path: Path, content: dict) -> None:
    """Writes a small file whole or not at all."""
    unfinished = path.with_name(f"unfinished-{path.name}")
    text = json.dumps(content, indent=2, allow_nan=False)
    unfinished.write_text(text + "\n")
    os.replace(unfinished, path)


def write_report(folder: Path, report: dict) -> None:
    """Keeps what a run reached."""
    write_json(folder / REPORT_FILE, report)
