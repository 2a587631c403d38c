"""Plans units of work, and tokenizes a unit into one shard.

Both only depend on the files and settings. The bytes of a shard are therefore
the same in whichever process or Beam worker, on whichever machine it is made.
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
from keras_albert.download import locate
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

# A shard needs three open files, of which a process may usually have 1,024.
MOST_SHARDS = 256
CHARACTERS_AT_ONCE = 2**19  # tokenized in one call, enough to be fast


@dataclasses.dataclass(frozen=True)
class Unit:
    """The parts of files from which one shard is made."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Approximate bytes of text."""
        return sum(part.size for part in self.parts)


@dataclasses.dataclass(frozen=True)
class TokenizationSettings:
    """The settings of tokenization, which all units have in common."""

    model: bytes
    """content of spiece.model"""
    lower_case: bool
    """setting of the tokenizer"""
    keep_accents: bool
    """setting of the tokenizer"""
    column: str
    """column of JSONL and Parquet files that holds the text"""
    language: str | None
    """see `splitting_language`; None if lines are not split into sentences"""
    any_text: bool = False
    """whether text is accepted that is unknown to the vocabulary"""
    blank_lines: int = PrepareRun.blank_lines
    """number of blank lines in a row that end a document of a text file"""

    @classmethod
    def of(cls, run: PrepareRun) -> "TokenizationSettings":
        """The tokenization settings of a run."""
        tokenizer = Tokenizer(locate(run.vocab))
        return cls(
            tokenizer.model_bytes,
            tokenizer.lower_case,
            tokenizer.keep_accents,
            run.column,
            None
            if run.split_sentences is None
            else splitting_language(run.split_sentences),
            run.any_text,
            run.blank_lines,
        )

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which is cached in each process."""
        return _tokenizer(self.model, self.lower_case, self.keep_accents)


@functools.lru_cache(maxsize=1)
def _tokenizer(model: bytes, lower_case: bool, keep_accents: bool) -> Tokenizer:
    return Tokenizer.from_bytes(model, lower_case, keep_accents)


@dataclasses.dataclass(frozen=True)
class UnitReport:
    """The result of a unit."""

    shard: ShardEntry | None
    """the shard; None if no document begins in the unit"""
    read: PieceCount
    """number of pieces, and of unknown pieces"""
    example: str = ""
    """a text with unknown pieces, if there are many of them"""


def plan(
    files: Iterable[InputFile],
    shard_bytes: int,
    column: str,
    opener: Opener = open_file,
) -> list[Unit]:
    """Divides files into units of about `shard_bytes` of text, in order.

    Large text files are cut, and small ones combined. Units are larger if there
    would be more than MOST_SHARDS of them, or if a file cannot be cut.
    """
    # The whole files are first treated as parts, to get their sizes: for a
    # Parquet file that is the size of the column.
    files = list(files)
    total = sum(
        part.size
        for file in files
        for part in parts_of(file, max(file.size, 1), column, opener)
    )
    # Any two neighbouring units together exceed the limit. With a limit of
    # twice the mean size there are therefore at most MOST_SHARDS units.
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
    settings: TokenizationSettings,
    folder: Path,
    advance: Callable[[int, int], None],
    opener: Opener = open_file,
) -> UnitReport:
    """Tokenizes the texts of a unit into the files of shard number `index`.

    Sentences without tokens, and documents without sentences, are dropped.
    `advance` is called with the bytes and tokens since its last call.

    The texts are read as a stream: memory does not grow with the unit.

    Raises AlbertError if the input is bad; or if most pieces at the beginning
    of the first unit are unknown, to report it now and not after hours.
    """
    tokenizer, example = settings.tokenizer(), ""
    paths = {part: folder / f"shard-{index:05}.{part}.npy" for part in PARTS}
    with contextlib.ExitStack() as stack:
        writer = _ShardWriter(
            [stack.enter_context(open(path, "wb")) for path in paths.values()],
            tokenizer,
        )
        for lines in _batches(_lines(unit, settings, opener)):
            ids = tokenizer.encode_batch(lines, num_threads=1)
            is_first = not writer.read.pieces
            tokens = writer.add(lines, ids)
            if not example and writer.read.share >= WARN_AT:
                example = example_of(tokenizer, lines)
            text = "\n".join(lines)
            # A full batch is long enough to judge the text by.
            if index == 0 and is_first and len(text) + 1 >= CHARACTERS_AT_ONCE:
                path = unit.parts[0].file.path
                check_readable(writer.read, example, path, settings.any_text)
            advance(len(text.encode("utf-8", "ignore")), tokens)
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


def manifest_of(
    settings: TokenizationSettings, reports: list[UnitReport]
) -> Manifest:
    """Makes the manifest of all shards.

    Raises AlbertError if there is no document, or too many pieces are unknown.
    """
    shards = tuple(report.shard for report in reports if report.shard)
    if not shards:
        raise AlbertError(
            "the text gives no tokens. Expected a sentence or paragraph on "
            "each line, in the language of the vocabulary."
        )
    worst = max(reports, key=lambda report: report.read.unknown)
    read = total_read(reports)
    check_readable(read, worst.example, "the input", settings.any_text)
    tokenizer = settings.tokenizer()
    return Manifest(
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        lower_case=tokenizer.lower_case,
        keep_accents=tokenizer.keep_accents,
        shards=shards,
    )


def total_read(reports: Iterable[UnitReport]) -> PieceCount:
    """The sum of the piece counts of all units."""
    return sum((report.read for report in reports), PieceCount())


def _lines(
    unit: Unit, settings: TokenizationSettings, opener: Opener
) -> Iterator[str]:
    lines = itertools.chain.from_iterable(
        read_part(part, settings.column, opener, settings.blank_lines)
        for part in unit.parts
    )
    if settings.language is None:
        return lines
    return split_sentences(lines, settings.language)


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


class _GrowingArray:
    """A .npy file [N] to which values are appended.

    The finished file equals what `np.save` would write.
    """

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
        # NumPy reserves space for a longer shape: the size of the header stays.
        self._write_header()


class _ShardWriter:
    """Appends sentences and documents to the three arrays of a shard."""

    def __init__(self, files: list[BinaryIO], tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        int64 = np.dtype("int64")
        dtypes = (token_dtype(tokenizer.vocab_size), int64, int64)
        self._code = dtypes[0].char
        self._arrays = [
            _GrowingArray(file, dtype)
            for file, dtype in zip(files, dtypes, strict=True)
        ]
        for offsets in self._arrays[1:]:
            offsets.extend(array.array("q", [0]))
        self._last_end = 0  # number of sentences in finished documents
        self.read = PieceCount()

    def counts(self) -> dict[str, int]:
        """The numbers of tokens, sentences and documents so far."""
        tokens, sentences, documents = (a.length for a in self._arrays)
        counts = (tokens, sentences - 1, documents - 1)
        return dict(zip(PARTS, counts, strict=True))

    def add(self, lines: list[str], ids: list[list[int]]) -> int:
        """Appends sentences and returns the number of their tokens.

        `ids` has the token ids of each line; the line "" ends a document.
        """
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
        """Completes the files, after which nothing may be added."""
        for growing in self._arrays:
            growing.finish()
