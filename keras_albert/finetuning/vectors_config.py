"""Settings of the commands that make vectors of texts."""

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
    check_positive_number,
    check_probability,
)
from keras_albert.finetuning.config import EvaluateRun, FinetuneRun
from keras_albert.modeling.config import IDF, POOLINGS

VECTOR_FILES = ("npy", "jsonl", "parquet")  # of `embed`
VECTOR_NUMBERS = ("float32", "float16", "int8", "binary")
LONG_TEXTS = ("windows", "cut")


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
    """type of the numbers. int8: each vector is divided by its largest number
    and multiplied by 127, which leaves cosines as they are but for rounding.
    binary: a bit for each number, 1 if it is positive; 8 bits make a byte"""
    dimensions: int | None = None
    """how many of the first numbers of each vector are kept"""
    normalize: bool = True
    """scale the vectors to length 1; this changes nothing with --numbers int8
    or binary, which keep no lengths"""
    long_texts: Literal[LONG_TEXTS] = LONG_TEXTS[0]
    """texts of more tokens than the model reads: the mean of the vectors of
    their parts, weighted with their tokens; or the vector of the beginning"""
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
class WhitenRun:
    """Make vectors that tell your texts apart, without labels or training.

    A projection is computed after which the vectors of these texts have a mean
    of 0, and their numbers are uncorrelated and have nearly the same variance.
    `embed` and `finetune` take the result.
    """

    model: str
    """a pretrained model, one that makes vectors, or anything else that
    `convert --input` takes"""
    data: Path
    """texts like those that will be compared: a TSV, CSV, JSONL or Parquet
    file; or text, one text a line (.txt)"""
    output: Path
    """folder for the model; made if absent, must hold nothing"""
    columns: tuple[str, ...] = ("text",)
    """columns of the texts"""
    max_texts: int = 20_000
    """most texts that the model reads, evenly spread over the table"""
    pooling: Literal[POOLINGS] | None = None
    """how the vectors of the tokens become one, see `finetune
    --embedding.pooling`; by default as in --model if it makes vectors, else
    mean, or idf with --words"""
    dimensions: int | None = None
    """how many numbers a whitened vector has, without those of --words; by
    default as many as those of --model"""
    words: float | None = None
    """also put numbers into the vectors that tell which words a text has: their
    share of the vectors' squared length, such as 0.1. If --model makes vectors,
    by pooling idf, its own numbers stay as they are; those of a pretrained
    model are whitened first"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows that cannot be read, and say how many"""
    any_text: bool = PrepareRun.any_text
    """continue even if the vocabulary cannot read half of the text or more"""

    def __post_init__(self):
        check_fields(check_positive, self, "max_texts dimensions")
        check_fields(check_positive_number, self, "words")
        check_fields(check_probability, self, "words")
        check_fields(check_flag, self, "skip_bad any_text")
        if self.pooling is not None:
            check_choice("pooling", self.pooling, POOLINGS)
        if self.words and self.pooling not in (None, IDF):
            raise AlbertError(
                f"words are added to vectors of the pooling {IDF!r}. Received: "
                f"pooling={self.pooling!r}. Leave --pooling out."
            )
        if not self.columns:
            raise AlbertError(
                "`columns` must name one column or more. Received: none."
            )
