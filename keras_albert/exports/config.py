"""Settings of the commands `export` and `check`."""

import dataclasses
from pathlib import Path
from typing import Literal

from keras_albert.corpus.config import PrepareRun
from keras_albert.errors import (
    AlbertError,
    check_choice,
    check_flag,
    check_positive,
)
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.tasks.config import ModelUse

# How each format can store weights.
EXPORT_WEIGHTS = {
    "saved_model": ("float32", "bfloat16", "float16"),
    "litert": ("float32", "float16", "int8"),
    "onnx": ("float32", "int8"),
}


LARGEST_FALL = 0.01  # of an export's score below the model's: a point


@dataclasses.dataclass(frozen=True)
class ExportRun(ModelUse):
    """Export a model for servers and devices."""

    model: str
    """folder written by `finetune`, `pretrain` or `Predictor.save`, or
    anything else that `convert --input` takes; one that was only pretrained
    gives vectors and fills [MASK] in"""
    output: Path
    """folder of a SavedModel's versions; or of a LiteRT or ONNX model: made if
    absent, must hold nothing"""
    format: Literal["saved_model", "litert", "onnx"] = "saved_model"
    """saved_model: strings in, answers out, for TensorFlow Serving; litert and
    onnx: token ids in, with the vocabulary beside the model"""
    weights: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    """how they are stored; saved_model: all but int8, litert: all but
    bfloat16, onnx: float32 and int8"""
    version: int | None = None
    """of a saved_model: the folder OUTPUT/VERSION; the next one when not
    given"""
    data: Path | None = None
    """labelled table, SQuAD's JSON or a benchmark's folder (its dev split) on
    which the export is compared with the model; needed for int8"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows of `data` that cannot be read, and say how many"""
    force: bool = False
    """export although its score on `data` falls by more than a point, or
    texts are answered in another way than their ids, or without `data`"""

    def __post_init__(self):
        check_choice("format", self.format, tuple(EXPORT_WEIGHTS))
        if self.weights not in EXPORT_WEIGHTS[self.format]:
            raise AlbertError(
                f"--format {self.format} stores weights as "
                f"{', '.join(EXPORT_WEIGHTS[self.format])}. Received: "
                f"--weights {self.weights}."
            )
        if self.version is not None:
            check_positive("version", self.version)
            if self.format != "saved_model":
                raise AlbertError(
                    "`version` is for a saved_model. Received: --format "
                    f"{self.format}. Leave --version out."
                )
        check_flag("skip_bad", self.skip_bad)
        check_flag("force", self.force)
        if self.weights == "int8" and self.data is None and not self.force:
            raise AlbertError(
                "int8 may cost accuracy: name labelled examples as --data, on "
                "which it is compared with the model (or give --force)."
            )


@dataclasses.dataclass(frozen=True)
class CheckRun:
    """Compare an exported model with the one it was made from."""

    export: Path
    """what `export` wrote; of a SavedModel's versions the newest is taken, or
    the one whose folder this is"""
    model: str
    """what was exported, see `export --model`"""
    data: Path
    """a table as for `predict`; labels are not needed"""
    rows: int = 200
    """how many of it are compared, the first ones"""
    threads: int = 1
    """of LiteRT and ONNX Runtime"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows that cannot be read, and say how many"""
    any_text: bool = PrepareRun.any_text
    """go on though the vocabulary cannot read half of the text or more"""

    def __post_init__(self):
        check_flag("skip_bad", self.skip_bad)
        check_flag("any_text", self.any_text)
        check_positive("rows", self.rows)
        check_positive("threads", self.threads)
