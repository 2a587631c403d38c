"""Token shards: tokenized text in memory-mapped files. Format and reader.

`prepare` and `beam` write shards. A folder of shards is self-contained:

    manifest.json                format version, vocabulary, per shard the file
                                 names, counts and checksums
    spiece.model, spiece.json    the vocabulary the tokens belong to
    shard-00000.tokens.npy       all token ids in a row; uint16 [T] up to
                                 65,536 pieces in the vocabulary, else int32
    shard-00000.sentences.npy    int64 [S + 1]: sentence s is
                                 tokens[sentences[s] : sentences[s + 1]]
    shard-00000.documents.npy    int64 [D + 1]: document d has the sentences
                                 documents[d] : documents[d + 1]

Word starts are not stored for each token, since they only depend on the
vocabulary (`Tokenizer.word_starts`). No sentence and no document is empty. The
numbers of the shards are ascending; a number is missing if no document begins
in the unit of text with that number.
"""

import dataclasses
import errno
import json
from pathlib import Path

import numpy as np

from keras_albert.errors import AlbertError
from keras_albert.storage import (
    MANIFEST_FILE,
    checksum,
    local_path,
    read_json,
)
from keras_albert.text.tokenizer import VOCAB_FILE, Tokenizer

FORMAT_VERSION = 1
PARTS = ("tokens", "sentences", "documents")


@dataclasses.dataclass(frozen=True)
class ShardEntry:
    """The entry of a shard in the manifest; the keys are the three PARTS."""

    files: dict[str, str]
    """file name of each part"""
    counts: dict[str, int]
    """numbers of tokens, sentences and documents"""
    sha256: dict[str, str]
    """checksum of the file of each part, in hexadecimal"""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`."""

    fingerprint: str
    """SHA-256 of the vocabulary's model file"""
    vocab_size: int
    lower_case: bool
    shards: tuple[ShardEntry, ...]
    keep_accents: bool = False
    """setting of the tokenizer; manifests older than the setting lack it"""
    format_version: int = FORMAT_VERSION

    def count(self, part: str) -> int:
        """The number of "tokens", "sentences" or "documents" in all shards."""
        return sum(shard.counts[part] for shard in self.shards)

    def write(self, folder: Path) -> None:
        """Writes `manifest.json` into the folder."""
        (folder / MANIFEST_FILE).write_text(
            json.dumps(dataclasses.asdict(self), indent=1) + "\n",
            encoding="utf-8",
        )

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads `manifest.json`.

        Raises AlbertError if there is none of this format version.
        """
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
                "format_version). Remove the folder, and run `keras-albert "
                "prepare` again."
            )
        if version != FORMAT_VERSION:
            raise AlbertError(
                f"{path}: this version of keras-albert reads format "
                f"{FORMAT_VERSION}. Received: format_version={version}. Remove "
                "the folder, and run `keras-albert prepare` again."
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
                "remove it and run `keras-albert prepare` again."
            ) from None
        return manifest

    def _check(self) -> None:
        """Raises TypeError or KeyError if a field is missing or invalid."""
        sound = (
            isinstance(self.fingerprint, str)
            and type(self.vocab_size) is int
            and isinstance(self.lower_case, bool)
            and isinstance(self.keep_accents, bool)
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


def token_dtype(vocab_size: int) -> np.dtype:
    """The dtype of token ids: uint16 if it holds every id, else int32."""
    return np.dtype("uint16" if vocab_size <= 2**16 else "int32")


@dataclasses.dataclass(frozen=True)
class Shard:
    """The three arrays of a shard, memory-mapped and read-only."""

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray


class ShardSet:
    """The shards of a folder; use `ShardSet.open`.

    Attributes:
        folder: the folder.
        manifest: the content of its `manifest.json`.
        shards: tuple of `Shard`, in order.
    """

    def __init__(self, folder: Path, manifest: Manifest, tokenizer: Tokenizer):
        self.folder = folder
        self.manifest = manifest
        self._tokenizer = tokenizer
        self.shards = tuple(
            _open_shard(folder, entry, manifest.vocab_size)
            for entry in manifest.shards
        )

    @classmethod
    def open(cls, folder: str | Path) -> "ShardSet":
        """Memory-maps the shards of a folder written by `prepare`.

        This checks all files, their sizes, counts and offsets, and that the
        vocabulary is that of the tokens. `verify` also reads every byte. Raises
        AlbertError, with the name of the file, if the folder is missing, is not
        one of shards, has another format version or is damaged.
        """
        folder = local_path(folder)
        if not folder.is_dir():
            found = "a file" if folder.exists() else "nothing"
            raise AlbertError(
                f"{folder}: expected a folder of token shards, found {found}. "
                "Make one with `keras-albert prepare`."
            )
        manifest = Manifest.read(folder)
        if not manifest.count("documents"):
            raise AlbertError(
                f"{folder / MANIFEST_FILE}: the shards hold no document. "
                "Remove the folder, and run `keras-albert prepare` again."
            )
        tokenizer = Tokenizer(folder / VOCAB_FILE)
        if (
            tokenizer.fingerprint != manifest.fingerprint
            or tokenizer.vocab_size != manifest.vocab_size
            or tokenizer.lower_case != manifest.lower_case
            or tokenizer.keep_accents != manifest.keep_accents
        ):
            raise _damaged(
                folder / VOCAB_FILE,
                "not the vocabulary that the tokens were made with",
            )
        return cls(folder, manifest, tokenizer)

    @property
    def vocab_size(self) -> int:
        """Number of pieces in the vocabulary."""
        return self.manifest.vocab_size

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all shards."""
        return self.manifest.count("tokens")

    @property
    def num_documents(self) -> int:
        """Number of documents in all shards."""
        return self.manifest.count("documents")

    @property
    def share_of_single_lines(self) -> float:
        """Share of the documents that are a single line, from 0 to 1."""
        sizes = [np.diff(shard.documents) for shard in self.shards]
        return float((np.concatenate(sizes) == 1).mean())

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the shards."""
        return self._tokenizer

    def verify(self) -> None:
        """Compares every file with its checksum and checks every token id.

        Raises AlbertError, with the name of the file, if one is not as written.
        """
        for entry, shard in zip(self.manifest.shards, self.shards, strict=True):
            for part in PARTS:
                path = self.folder / entry.files[part]
                if checksum(path) != entry.sha256[part]:
                    raise _damaged(path, "its checksum is not the one recorded")
            # This is fast, as the checksum has just read the file to memory.
            lowest, highest = int(shard.tokens.min()), int(shard.tokens.max())
            if lowest < 0 or highest >= self.vocab_size:
                wrong = lowest if lowest < 0 else highest
                raise _damaged(
                    self.folder / entry.files["tokens"],
                    f"it has the token id {wrong}, and the vocabulary has "
                    f"pieces from 0 to {self.vocab_size - 1}",
                )


def _damaged(path: Path, reason: str) -> AlbertError:
    return AlbertError(
        f"{path}: {reason}. The shards are damaged: copy the folder again, or "
        "remove the folder and run `keras-albert prepare` again."
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
        if offsets[0] or offsets[-1] != end or (np.diff(offsets) < 1).any():
            raise _damaged(
                folder / entry.files[part],
                f"expected offsets that grow from 0 to {end}",
            )
    return Shard(tokens, sentences, documents)


def _map_array(path: Path, length: int, dtype: np.dtype) -> np.ndarray:
    """Memory-maps an array file and checks its dtype and sizes."""
    if not path.is_file():
        raise _damaged(path, "no such file, but the manifest names it")
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (EOFError, OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.EMFILE:
            raise AlbertError(
                f"{path}: cannot be opened ({error.strerror}). Raise the limit "
                "of this terminal (ulimit -n 4096), then give the same command "
                "again."
            ) from None
        if isinstance(error, OSError):  # the file may be sound
            raise
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
    # Indexing a plain ndarray is several times faster than a memmap.
    return values.view(np.ndarray)
