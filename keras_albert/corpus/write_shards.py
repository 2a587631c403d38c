"""Units of work: a plan cuts files into units, a unit becomes one shard.

Both are functions of the files and settings alone, so the shards are the same
bytes whichever process, machine or Beam worker makes which of them, and when.
"""

import array
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from keras_albert.corpus.config import PrepareRun
from keras_albert.corpus.documents import (
    InputFile,
    Opener,
    Part,
    open_file,
    parts_of,
    read_part,
    split_sentences,
    splitting_language,
)
from keras_albert.corpus.shards import PARTS, Manifest, ShardEntry, token_dtype
from keras_albert.errors import AlbertError
from keras_albert.storage import checksum
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.text.unknown import (
    WARN_AT,
    PieceCount,
    check_readable,
    count_pieces,
    example_of,
)

# A mapped shard holds three open files, of which a process may usually have
# 1,024.
MOST_SHARDS = 256


CHARACTERS_AT_ONCE = 2**19  # tokenized together: long enough to be fast


@dataclasses.dataclass(frozen=True)
class Unit:
    """What becomes one shard."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes of text, about."""
        return sum(part.size for part in self.parts)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How text becomes tokens: all that every unit has in common."""

    model: bytes
    """content of spiece.model"""
    lower_case: bool
    keep_accents: bool
    """as the tokenizer's"""
    column: str
    """of JSONL and Parquet files"""
    language: str | None
    """see `splitting_language`; None: lines stay as they are"""
    any_text: bool = False
    """whether the vocabulary may be unable to read the text"""

    @classmethod
    def of(cls, run: PrepareRun) -> "Recipe":
        """The recipe of a run.

        Raises:
            AlbertError: the vocabulary is none, or sentences cannot be split
                as wanted.
        """
        tokenizer = Tokenizer(run.vocab)
        return cls(
            tokenizer.model_bytes,
            tokenizer.lower_case,
            tokenizer.keep_accents,
            run.column,
            None
            if run.split_sentences is None
            else splitting_language(run.split_sentences),
            run.any_text,
        )

    def tokenizer(self) -> Tokenizer:
        """The tokenizer; made once in a process."""
        return _tokenizer(self.model, self.lower_case, self.keep_accents)


@functools.lru_cache(maxsize=1)
def _tokenizer(model: bytes, lower_case: bool, keep_accents: bool) -> Tokenizer:
    return Tokenizer.from_bytes(model, lower_case, keep_accents)


@dataclasses.dataclass(frozen=True)
class UnitReport:
    """What came of a unit."""

    shard: ShardEntry | None
    """None: no document begins in the unit"""
    read: PieceCount
    """tokens, and those that stand for characters outside the vocabulary"""
    example: str = ""
    """a text with such characters, where there are many of them"""


def plan(
    files: Iterable[InputFile],
    shard_bytes: int,
    column: str,
    opener: Opener = open_file,
) -> list[Unit]:
    """Units of about `shard_bytes` of text, in the order of the files.

    Large text files are cut, small ones put together. Units are larger where
    they would be more than MOST_SHARDS, or where a file cannot be cut.

    Raises:
        AlbertError: a Parquet file is damaged or lacks the column.
    """
    # A first cut tells how much text there is in Parquet files.
    files = list(files)
    total = sum(
        part.size
        for file in files
        for part in parts_of(file, max(file.size, 1), column, opener)
    )
    # Two neighbours together exceed the limit: half of MOST_SHARDS fill it.
    limit = max(shard_bytes, -(-2 * total // (MOST_SHARDS - 1)))
    parts = (
        part for file in files for part in parts_of(file, limit, column, opener)
    )
    return [Unit(tuple(unit)) for unit in _packed(parts, limit)]


def _packed(parts: Iterable[Part], limit: int) -> Iterator[list[Part]]:
    unit, size = [], 0
    for part in parts:
        if unit and size + part.size > limit:
            yield unit
            unit, size = [], 0
        unit.append(part)
        size += part.size
    if unit:
        yield unit


def write_shard(
    unit: Unit,
    index: int,
    recipe: Recipe,
    folder: Path,
    advance: Callable[[int, int], None],
    opener: Opener = open_file,
) -> UnitReport:
    """Tokenizes a unit into the files of a shard; memory holds neither.

    Sentences without a token are dropped, and so are documents without a
    sentence.

    Args:
        index: number of the unit; names the files.
        advance: called now and then with the bytes of text and the tokens
            since the last call.

    Raises:
        AlbertError: bad input, see `read_part`; or the vocabulary cannot read
            the beginning of the first unit: the rest might take hours.
        OSError: the files cannot be written.
    """
    tokenizer, example = recipe.tokenizer(), ""
    paths = {part: folder / f"shard-{index:05}.{part}.npy" for part in PARTS}
    with contextlib.ExitStack() as stack:
        writer = _ShardWriter(
            [stack.enter_context(open(path, "wb")) for path in paths.values()],
            tokenizer,
        )
        for lines in _batches(_lines(unit, recipe, opener)):
            ids = tokenizer.encode_batch(lines, num_threads=1)
            is_first = not writer.read.pieces
            tokens = writer.add(lines, ids)
            if not example and writer.read.share >= WARN_AT:
                example = example_of(tokenizer, lines)
            if index == 0 and is_first and _is_full(lines):
                path = unit.parts[0].file.path
                check_readable(writer.read, example, path, recipe.any_text)
            advance(len("\n".join(lines).encode("utf-8", "ignore")), tokens)
        writer.finish()
    if not writer.counts()["documents"]:
        for path in paths.values():
            path.unlink()
        return UnitReport(None, PieceCount())
    shard = ShardEntry(
        files={part: path.name for part, path in paths.items()},
        counts=writer.counts(),
        sha256={part: checksum(path) for part, path in paths.items()},
    )
    return UnitReport(shard, writer.read, example)


def manifest_of(recipe: Recipe, reports: list[UnitReport]) -> Manifest:
    """The manifest of all shards.

    Raises:
        AlbertError: no document came out of the text, or the vocabulary cannot
            read it.
    """
    shards = tuple(report.shard for report in reports if report.shard)
    if not shards:
        raise AlbertError(
            "no token came out of the text. Expected a sentence or paragraph a "
            "line, in the language of the vocabulary."
        )
    worst = max(reports, key=lambda report: report.read.unknown)
    check_readable(
        total_read(reports), worst.example, "the input", recipe.any_text
    )
    tokenizer = recipe.tokenizer()
    return Manifest(
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        lower_case=tokenizer.lower_case,
        keep_accents=tokenizer.keep_accents,
        shards=shards,
    )


def total_read(reports: Iterable[UnitReport]) -> PieceCount:
    """The pieces of all units."""
    return sum((report.read for report in reports), PieceCount())


def _lines(unit: Unit, recipe: Recipe, opener: Opener) -> Iterator[str]:
    lines = itertools.chain.from_iterable(
        read_part(part, recipe.column, opener) for part in unit.parts
    )
    if recipe.language is None:
        return lines
    return split_sentences(lines, recipe.language)


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    batch, size = [], 0
    for line in lines:
        batch.append(line)
        size += len(line) + 1
        if size >= CHARACTERS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _is_full(batch: list[str]) -> bool:
    """Whether a batch is long enough to judge a text by."""
    return sum(len(line) + 1 for line in batch) >= CHARACTERS_AT_ONCE


class _GrowingArray:
    """A .npy file [N] that grows: in the end what `np.save` would write."""

    def __init__(self, file: BinaryIO, dtype: np.dtype):
        self.length = 0
        self._dtype = dtype
        self._file = file
        self._write_header()

    def _write_header(self) -> None:
        np.lib.format.write_array_header_1_0(
            self._file,
            {
                "descr": np.lib.format.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self.length,),
            },
        )

    def extend(self, values: array.array) -> None:
        self._file.write(values)
        self.length += len(values)

    def finish(self) -> None:
        self._file.seek(0)
        self._write_header()  # NumPy leaves room in it for a longer number


class _ShardWriter:
    """The three arrays of a shard while they grow."""

    def __init__(self, files: list[BinaryIO], tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        dtypes = (
            token_dtype(tokenizer.vocab_size),
            np.dtype("int64"),
            np.dtype("int64"),
        )
        self._code = dtypes[0].char
        self._arrays = [
            _GrowingArray(file, dtype)
            for file, dtype in zip(files, dtypes, strict=True)
        ]
        for offsets in self._arrays[1:]:
            offsets.extend(array.array("q", [0]))
        self._last_end = 0  # sentences in the documents so far
        self.read = PieceCount()

    def counts(self) -> dict[str, int]:
        """How many tokens, sentences and documents there are."""
        tokens, sentences, documents = (a.length for a in self._arrays)
        return dict(
            zip(PARTS, (tokens, sentences - 1, documents - 1), strict=True)
        )

    def add(self, lines: list[str], ids: list[list[int]]) -> int:
        """Appends lines and their ids; "" ends a document. Counts tokens."""
        tokens = array.array(self._code)
        sentences, documents = array.array("q"), array.array("q")
        counts = self.counts()
        num_sentences = counts["sentences"]
        for line, sentence in zip(lines, ids, strict=True):
            if sentence:
                tokens.extend(sentence)
                sentences.append(counts["tokens"] + len(tokens))
                num_sentences += 1
            elif not line and num_sentences > self._last_end:
                documents.append(num_sentences)
                self._last_end = num_sentences
        for growing, values in zip(
            self._arrays, (tokens, sentences, documents), strict=True
        ):
            growing.extend(values)
        self.read += count_pieces(self._tokenizer, tokens)
        return len(tokens)

    def finish(self) -> None:
        """Completes the files; nothing may be added afterwards."""
        for growing in self._arrays:
            growing.finish()
