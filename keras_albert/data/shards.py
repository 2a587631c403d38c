"""Token shards: text tokenized once, then memory-mapped.

A folder of shards needs nothing beside it:

    manifest.json                format version, vocabulary, per shard the file
                                 names, counts and checksums
    spiece.model, spiece.json    the vocabulary the tokens belong to
    shard-00000.tokens.npy       all token ids in a row; uint16 [T] up to
                                 65,536 pieces in the vocabulary, else int32
    shard-00000.sentences.npy    int64 [S + 1]: sentence s is
                                 tokens[sentences[s] : sentences[s + 1]]
    shard-00000.documents.npy    int64 [D + 1]: document d has the sentences
                                 documents[d] : documents[d + 1]

Where words start is a function of the vocabulary (`Tokenizer.word_starts`), so
it is not stored token by token. No sentence and no document is empty.
"""

import array
import bisect
import dataclasses
import hashlib
import itertools
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from keras_albert.config import (
    UNK_ID,
    VOCAB_FILE,
    AlbertError,
    PrepareRun,
    new_folder,
    read_json,
    unfinished_folder,
)
from keras_albert.data.documents import read_documents
from keras_albert.text.files import check_files
from keras_albert.text.tokenizer import Tokenizer

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1
PARTS = ("tokens", "sentences", "documents")
LINES_AT_ONCE = 2_000  # tokenized together: long enough to be fast


@dataclasses.dataclass(frozen=True)
class ShardEntry:
    """What the manifest says about a shard."""

    files: dict[str, str]
    """part -> file name, for the three PARTS"""
    counts: dict[str, int]
    """part -> how many tokens, sentences and documents"""
    sha256: dict[str, str]
    """part -> checksum of the file, in hexadecimal"""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says about a folder of shards."""

    fingerprint: str
    """SHA-256 of the vocabulary's model file"""
    vocab_size: int
    lower_case: bool
    shards: tuple[ShardEntry, ...]
    format_version: int = FORMAT_VERSION

    def count(self, part: str) -> int:
        """How many "tokens", "sentences" or "documents" there are in all."""
        return sum(shard.counts[part] for shard in self.shards)

    def write(self, folder: Path) -> None:
        """Writes `manifest.json` into the folder."""
        (folder / MANIFEST_FILE).write_text(
            json.dumps(dataclasses.asdict(self), indent=1) + "\n",
            encoding="utf-8",
        )

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads it; AlbertError if it is missing, foreign or damaged."""
        path = folder / MANIFEST_FILE
        if not path.is_file():
            raise AlbertError(
                f"{folder}: not a folder of token shards (no {MANIFEST_FILE}). "
                "Make one with `keras-albert prepare`."
            )
        content = read_json(path)
        version = (
            content.get("format_version") if isinstance(content, dict) else None
        )
        if type(version) is not int:
            raise AlbertError(
                f"{path}: not the manifest of token shards (no "
                "format_version). Run `keras-albert prepare` again."
            )
        if version != FORMAT_VERSION:
            raise AlbertError(
                f"{path}: this version of keras-albert reads format "
                f"{FORMAT_VERSION}. Received: format_version={version}. Run "
                "`keras-albert prepare` again."
            )
        try:
            shards = content.pop("shards")
            manifest = cls(
                shards=tuple(ShardEntry(**entry) for entry in shards), **content
            )
            manifest._check()
        except (AttributeError, KeyError, TypeError):
            raise AlbertError(
                f"{path}: the manifest is damaged. Copy the folder again, or "
                "run `keras-albert prepare` again."
            ) from None
        return manifest

    def _check(self) -> None:
        """TypeError or KeyError unless every field is what it should be."""
        sound = (
            isinstance(self.fingerprint, str)
            and type(self.vocab_size) is int
            and isinstance(self.lower_case, bool)
            and all(
                entry.files[part] == Path(entry.files[part]).name
                and type(entry.counts[part]) is int
                and entry.counts[part] >= 0
                and isinstance(entry.sha256[part], str)
                for entry in self.shards
                for part in PARTS
            )
        )
        if not sound:
            raise TypeError


def prepare(run: PrepareRun) -> Manifest:
    """Tokenizes text files into a folder of shards.

    The folder appears as a whole at the end: until then everything is in
    `OUTPUT.unfinished-...` beside it, which a mistake in the input removes and
    a killed process leaves behind. A shard ends at the first document that
    would make it longer than `run.shard_tokens`; a longer document has a shard
    of its own. Sentences without a token are dropped, and so are documents
    without a sentence.

    Raises:
        AlbertError: an input file or the vocabulary is missing or unreadable,
            the output is in use or cannot be written, a line is not UTF-8, or
            there is no text.
    """
    inputs = check_files(run.input)
    tokenizer = Tokenizer(run.vocab)
    existed = run.output.exists()
    try:
        output = new_folder(run.output).resolve()
        unfinished = unfinished_folder(output)
        try:
            manifest = _write_shards(
                read_documents(inputs), tokenizer, run.shard_tokens, unfinished
            )
            output.rmdir()  # was empty; only POSIX renames onto a folder
            unfinished.rename(output)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            if not existed and output.is_dir():
                output.rmdir()
            raise
    except OSError as error:
        raise AlbertError(
            f"{run.output}: the shards cannot be written ({error}). Make room, "
            "or choose another output."
        ) from None
    return manifest


def _write_shards(
    documents: Iterable[list[str]],
    tokenizer: Tokenizer,
    shard_tokens: int,
    folder: Path,
) -> Manifest:
    tokenizer.save(folder)
    progress = _Progress()
    shard = _ShardWriter(tokenizer.vocab_size)
    entries = []
    for document in tokenize_documents(documents, tokenizer):
        length = sum(map(len, document))
        if shard.num_documents and shard.num_tokens + length > shard_tokens:
            entries.append(shard.write(folder, len(entries)))
            shard = _ShardWriter(tokenizer.vocab_size)
        shard.add(document)
        progress.add(document, length)
    if not shard.num_documents:
        raise AlbertError(
            "no token came out of the text. Check that the vocabulary belongs "
            "to the language of the files."
        )
    entries.append(shard.write(folder, len(entries)))
    manifest = Manifest(
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        lower_case=tokenizer.lower_case,
        shards=tuple(entries),
    )
    manifest.write(folder)
    progress.finish(len(entries))
    return manifest


def tokenize_documents(
    documents: Iterable[list[str]], tokenizer: Tokenizer
) -> Iterator[list[list[int]]]:
    """Token ids of the sentences of each document, without empty ones."""
    for batch in _batches_of_lines(documents):
        ids = iter(tokenizer.encode_batch(list(itertools.chain(*batch))))
        for document in batch:
            sentences = list(itertools.islice(ids, len(document)))
            sentences = [sentence for sentence in sentences if sentence]
            if sentences:
                yield sentences


def _batches_of_lines(
    documents: Iterable[list[str]],
) -> Iterator[list[list[str]]]:
    batch, lines = [], 0
    for document in documents:
        batch.append(document)
        lines += len(document)
        if lines >= LINES_AT_ONCE:
            yield batch
            batch, lines = [], 0
    if batch:
        yield batch


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest of uint16 and int32 that holds every id."""
    return np.dtype("uint16" if vocab_size <= 2**16 else "int32")


class _ShardWriter:
    """Gathers the documents of a shard in memory, then writes its files."""

    def __init__(self, vocab_size: int):
        self._dtype = token_dtype(vocab_size)
        self._tokens = array.array(self._dtype.char)
        self._sentences = array.array("q", [0])
        self._documents = array.array("q", [0])

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    @property
    def num_documents(self) -> int:
        return len(self._documents) - 1

    def add(self, document: list[list[int]]) -> None:
        for sentence in document:
            self._tokens.extend(sentence)
            self._sentences.append(len(self._tokens))
        self._documents.append(len(self._sentences) - 1)

    def write(self, folder: Path, index: int) -> ShardEntry:
        arrays = {
            "tokens": np.frombuffer(self._tokens, self._dtype),
            "sentences": np.frombuffer(self._sentences, "int64"),
            "documents": np.frombuffer(self._documents, "int64"),
        }
        files = {part: f"shard-{index:05}.{part}.npy" for part in PARTS}
        for part, values in arrays.items():
            np.save(folder / files[part], values)
        return ShardEntry(
            files=files,
            counts={
                "tokens": self.num_tokens,
                "sentences": len(self._sentences) - 1,
                "documents": self.num_documents,
            },
            sha256={part: _sha256(folder / files[part]) for part in PARTS},
        )


class _Progress:
    """A moving line on a terminal; one line at the end in a log."""

    def __init__(self):
        self._start = self._shown = time.monotonic()
        self._moving = sys.stderr.isatty()
        self._documents = self._tokens = self._unknown = 0

    def add(self, document: list[list[int]], tokens: int) -> None:
        self._documents += 1
        self._tokens += tokens
        self._unknown += sum(sentence.count(UNK_ID) for sentence in document)
        now = time.monotonic()
        if self._moving and now - self._shown > 0.5:
            self._shown = now
            print(f"\r{self._line()}", end="", file=sys.stderr, flush=True)

    def finish(self, shards: int) -> None:
        unknown = 100 * self._unknown / self._tokens
        print(
            f"{chr(13) if self._moving else ''}{self._line()}, "
            f"{unknown:.2f} % unknown; {shards} shard{'s'[: shards != 1]}",
            file=sys.stderr,
        )

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-6)
        return (
            f"{self._documents:,} documents, {self._tokens:,} tokens, "
            f"{self._tokens / seconds:,.0f} tokens/s"
        )


@dataclasses.dataclass(frozen=True)
class Shard:
    """The three arrays of a shard, memory-mapped and read-only."""

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray


class ShardSet:
    """The shards of a folder, as one row of documents; see `open`.

    Attributes:
        folder: where they are.
        manifest: what `manifest.json` says.
        shards: tuple of `Shard`, in order; document numbers run on from one
            to the next.
    """

    def __init__(self, folder: Path, manifest: Manifest, tokenizer: Tokenizer):
        self.folder = folder
        self.manifest = manifest
        self._tokenizer = tokenizer
        self.shards = tuple(
            _open_shard(folder, entry, manifest.vocab_size)
            for entry in manifest.shards
        )
        self._first_documents = [0]
        for shard in self.shards:
            self._first_documents.append(
                self._first_documents[-1] + len(shard.documents) - 1
            )

    @classmethod
    def open(cls, folder: str | Path) -> "ShardSet":
        """Maps the shards of a folder written by `prepare`.

        Checks existence, sizes, counts, offsets and that the vocabulary is
        the one the tokens belong to; `verify` also reads every byte.

        Raises:
            AlbertError: the folder is missing, foreign, of another format
                version or damaged; the message names the file.
        """
        folder = Path(folder)
        if not folder.is_dir():
            found = "a file" if folder.exists() else "nothing"
            raise AlbertError(
                f"{folder}: expected a folder of token shards, found {found}. "
                "Make one with `keras-albert prepare`."
            )
        manifest = Manifest.read(folder)
        if not manifest.count("documents"):
            raise AlbertError(
                f"{folder / MANIFEST_FILE}: the shards hold no document. Run "
                "`keras-albert prepare` again."
            )
        tokenizer = Tokenizer(folder / VOCAB_FILE)
        if (
            tokenizer.fingerprint != manifest.fingerprint
            or tokenizer.vocab_size != manifest.vocab_size
            or tokenizer.lower_case != manifest.lower_case
        ):
            raise _damaged(
                folder / VOCAB_FILE,
                "not the vocabulary that the tokens were made with",
            )
        return cls(folder, manifest, tokenizer)

    @property
    def vocab_size(self) -> int:
        """Pieces in the vocabulary."""
        return self.manifest.vocab_size

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary's model file, in hexadecimal."""
        return self.manifest.fingerprint

    @property
    def num_tokens(self) -> int:
        """Tokens in all shards."""
        return self.manifest.count("tokens")

    @property
    def num_sentences(self) -> int:
        """Sentences in all shards."""
        return self.manifest.count("sentences")

    @property
    def num_documents(self) -> int:
        """Documents in all shards."""
        return self.manifest.count("documents")

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens."""
        return self._tokenizer

    def spans(
        self, document: int, first: int, split: int, end: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the sentences first:split and split:end of a document.

        Sentences count from 0 in each document. No copy is made: the results
        are read-only views, uint16 or int32 [T].

        Raises:
            IndexError: there is no such document.
        """
        shard, local = self._locate(document)
        base = int(shard.documents[local])
        sentences = shard.sentences
        middle = sentences[base + split]
        return (
            shard.tokens[sentences[base + first] : middle],
            shard.tokens[middle : sentences[base + end]],
        )

    def sentences(self, document: int) -> list[np.ndarray]:
        """Tokens of each sentence of a document: read-only views, [T] each.

        Raises:
            IndexError: there is no such document.
        """
        shard, local = self._locate(document)
        first, last = shard.documents[local : local + 2].tolist()
        offsets = shard.sentences[first : last + 1].tolist()
        return [shard.tokens[a:b] for a, b in itertools.pairwise(offsets)]

    def _locate(self, document: int) -> tuple[Shard, int]:
        if not 0 <= document < self._first_documents[-1]:
            raise IndexError(
                f"document {document} of {self._first_documents[-1]}"
            )
        index = bisect.bisect_right(self._first_documents, document) - 1
        return self.shards[index], document - self._first_documents[index]

    def verify(self) -> None:
        """Compares every file with its checksum.

        Raises:
            AlbertError: a file differs; the message names it.
        """
        for entry in self.manifest.shards:
            for part in PARTS:
                path = self.folder / entry.files[part]
                if _sha256(path) != entry.sha256[part]:
                    raise _damaged(path, "its checksum is not the one recorded")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(path: Path, reason: str) -> AlbertError:
    return AlbertError(
        f"{path}: {reason}. The shards are damaged: copy the folder again, or "
        "run `keras-albert prepare` again."
    )


def _open_shard(folder: Path, entry: ShardEntry, vocab_size: int) -> Shard:
    counts = entry.counts
    tokens, sentences, documents = (
        _map_array(folder / entry.files[part], length, dtype)
        for part, length, dtype in (
            ("tokens", counts["tokens"], token_dtype(vocab_size)),
            ("sentences", counts["sentences"] + 1, np.dtype("int64")),
            ("documents", counts["documents"] + 1, np.dtype("int64")),
        )
    )
    for part, offsets, end in (
        ("sentences", sentences, counts["tokens"]),
        ("documents", documents, counts["sentences"]),
    ):
        if (
            offsets[0] != 0
            or offsets[-1] != end
            or (np.diff(offsets) < 1).any()
        ):
            raise _damaged(
                folder / entry.files[part],
                f"expected offsets that grow from 0 to {end}",
            )
    return Shard(tokens, sentences, documents)


def _map_array(path: Path, length: int, dtype: np.dtype) -> np.ndarray:
    """Memory-maps an array file after a check of its type and sizes."""
    if not path.is_file():
        raise _damaged(path, "no such file, but the manifest names it")
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (EOFError, OSError, ValueError) as error:
        raise _damaged(path, f"not a whole array file ({error})") from None
    if (
        not isinstance(values, np.memmap)
        or values.dtype != dtype
        or values.shape != (length,)
        or path.stat().st_size != values.offset + values.nbytes
    ):
        raise _damaged(
            path,
            f"expected {length} numbers of type {dtype}, received "
            f"{getattr(values, 'shape', '?')} {getattr(values, 'dtype', '?')}",
        )
    return values.view(np.ndarray)  # plain indexing is several times faster
