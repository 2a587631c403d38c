"""Settings of the commands `embed`, `export` and `check`."""

import dataclasses
from pathlib import Path
from typing import Literal

from keras_albert.corpus.config import PrepareRun
from keras_albert.errors import (
    AlbertError,
    check_choice,
    check_fields,
    check_flag,
    check_positive,
)
from keras_albert.finetuning.config import EvaluateRun, FinetuneRun
from keras_albert.tasks.config import AVERAGES, CUT, ModelUse, SeveralModelsUse
from keras_albert.tasks.names import FINETUNE_TASKS, PRETRAINED_TASKS

# Of `embed`: its formats, its types of numbers, and how it reads long texts.
VECTOR_FILES = ("npy", "jsonl", "parquet")
VECTOR_NUMBERS = ("float32", "float16", "int8", "binary")
LONG_TEXTS = ("mean", CUT)

# How each format of `export` can store weights.
EXPORT_WEIGHTS = {
    "saved_model": ("float32", "bfloat16", "float16"),
    "litert": ("float32", "float16", "int8"),
    "onnx": ("float32", "int8"),
}
WEIGHTS = ("float32", "bfloat16", "float16", "int8")  # of any format
# Data types in which a SavedModel computes its encoder.
COMPUTE = ("float32", "bfloat16")
# Formats that are made of the model's computation as TensorFlow traces it.
TRACED_FORMATS = ("saved_model", "litert")

# An export is refused if its score is lower than the model's by more than this
# share of the highest possible score: one point of 100.
LARGEST_FALL = 0.01


@dataclasses.dataclass(frozen=True)
class EmbedRun:
    """Compute a vector for each text of a file, whatever its length.

    The same command continues an interrupted run.
    """

    model: str
    """folder of a model that was trained with `finetune --task embedding` or
    `similarity`, or a folder of sentence-transformers; or what `export` made of
    one (an ONNX file with int8 weights is fast on a CPU); any other model that
    `convert --input` takes gives poor vectors"""
    data: Path
    """TSV, CSV, JSONL or Parquet file; or text, one text a line (.txt)"""
    output: Path
    """folder for the vectors; made if absent"""
    to: Literal[VECTOR_FILES] = VECTOR_FILES[0]
    """vectors.npy, an array [texts, size] that NumPy maps into memory; or
    vectors.jsonl, the rows of the table with their vectors; or Parquet files
    with the same, in the folder vectors"""
    numbers: Literal[VECTOR_NUMBERS] = VECTOR_NUMBERS[0]
    """type of the numbers. int8: each vector is divided by its largest absolute
    value and multiplied by 127, which keeps cosines up to rounding. binary:
    a bit for each number, 1 if it is positive; 8 bits make a byte"""
    dimensions: int | None = None
    """how many of the first numbers of each vector are kept"""
    normalize: bool = True
    """scale the vectors to length 1; this changes nothing with --numbers int8
    or binary, which keep no lengths"""
    long_texts: Literal[LONG_TEXTS] = LONG_TEXTS[0]
    """texts of more tokens than the model reads: mean, the mean of the vectors
    of their parts, weighted with their tokens; or cut, the vector of the
    beginning"""
    column: str = "text"
    """column of the texts"""
    batch_size: int = EvaluateRun.batch_size
    """texts at a time"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows that cannot be read, and say how many"""
    any_text: bool = PrepareRun.any_text
    """continue even if the vocabulary cannot read half of the text or more"""

    def __post_init__(self):
        check_fields(check_positive, self, "batch_size dimensions")
        check_fields(check_flag, self, "normalize skip_bad any_text")
        check_choice("to", self.to, VECTOR_FILES)
        check_choice("numbers", self.numbers, VECTOR_NUMBERS)
        check_choice("long_texts", self.long_texts, LONG_TEXTS)


@dataclasses.dataclass(frozen=True)
class ExportRun(SeveralModelsUse):
    """Export a model for servers and devices."""

    model: str | tuple[str, ...]
    """folder written by `finetune`, `pretrain` or `Predictor.save`, or
    anything else that `convert --input` takes; the export of a model that was
    only pretrained gives vectors and fills in [MASK]. Several models, or the
    output of `finetune --seeds`, are averaged"""
    output: Path
    """for a SavedModel the folder of its versions; for LiteRT and ONNX an empty
    or new folder"""
    format: Literal[tuple(EXPORT_WEIGHTS)] = "saved_model"
    """saved_model: from strings to answers, for TensorFlow Serving; litert and
    onnx: from token ids, with the vocabulary in a file beside the model"""
    weights: Literal[WEIGHTS] = "float32"
    """data type in which weights are stored; saved_model: all but int8, litert:
    all but bfloat16, onnx: float32 and int8"""
    compute: Literal[COMPUTE] = COMPUTE[0]
    """data type in which the encoder of a saved_model computes, whatever that
    of its weights. bfloat16 is faster where the processor has instructions for
    it (AVX512-BF16, AMX), and slower elsewhere"""
    version: int | None = None
    """version of a SavedModel, written to OUTPUT/VERSION; by default the next
    number"""
    data: Path | None = None
    """labelled table, SQuAD's JSON or a benchmark's folder (its dev split) on
    which the export is compared with the model; needed for int8"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows of `data` that cannot be read, and say how many"""
    force: bool = False
    """export even if the score on `data` falls by more than a point, if vectors
    have a low cosine with the model's, if texts get other answers than their
    token ids, or (for int8) without `data`"""

    def __post_init__(self):
        check_choice("format", self.format, tuple(EXPORT_WEIGHTS))
        if self.weights not in EXPORT_WEIGHTS[self.format]:
            raise AlbertError(
                f"--format {self.format} stores weights as "
                f"{', '.join(EXPORT_WEIGHTS[self.format])}. Received: "
                f"--weights {self.weights}."
            )
        check_choice("compute", self.compute, COMPUTE)
        if self.compute != COMPUTE[0] and self.format != "saved_model":
            raise AlbertError(
                "`compute` is for a saved_model. Received: --format "
                f"{self.format} --compute {self.compute}. Leave --compute out."
            )
        if self.version is not None:
            check_positive("version", self.version)
            if self.format != "saved_model":
                raise AlbertError(
                    "`version` is for a saved_model. Received: --format "
                    f"{self.format}. Leave --version out."
                )
        check_fields(check_flag, self, "skip_bad force")
        if self.skip_bad and self.data is None:
            raise AlbertError(
                "`skip_bad` is for the rows of `data`. Give --data, or leave "
                "--skip-bad out."
            )
        if self.weights == "int8" and self.data is None and not self.force:
            raise AlbertError(
                "int8 may cost accuracy. Give labelled examples as --data, on "
                "which the export is compared with the model, or --force."
            )


@dataclasses.dataclass(frozen=True)
class CheckRun:
    """Compare an exported model with the one it was made from."""

    export: Path
    """folder that `export` wrote; for a SavedModel the folder of its versions,
    of which the newest is checked, or that of one version"""
    model: str | tuple[str, ...]
    """the model that was exported, or the models, see `export --model`"""
    data: Path
    """a table as for `predict`; labels are not needed"""
    task: Literal[FINETUNE_TASKS + PRETRAINED_TASKS] | None = ModelUse.task
    """the task that was given to `export`, if any"""
    labels: tuple[str, ...] | None = ModelUse.labels
    """the names of the classes that were given to `export`, if any"""
    average: Literal[AVERAGES] = SeveralModelsUse.average
    """what `export` averaged of several models"""
    rows: int = 200
    """number of rows to compare, from the first one on"""
    threads: int = 1
    """threads of LiteRT and ONNX Runtime"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows that cannot be read, and say how many"""
    any_text: bool = PrepareRun.any_text
    """continue even if the vocabulary cannot read half of the text or more"""

    def __post_init__(self):
        check_fields(check_flag, self, "skip_bad any_text")
        check_fields(check_positive, self, "rows threads")
