"""Settings of the commands `vocab` and `prepare`."""

import dataclasses
from pathlib import Path

from keras_albert.errors import (
    AlbertError,
    check_flag,
    check_positive,
    is_number,
)
from keras_albert.modeling.config import AlbertConfig


@dataclasses.dataclass(frozen=True)
class VocabRun:
    """Train a SentencePiece vocabulary with ALBERT's recipe."""

    input: tuple[str, ...]
    """files, or quoted patterns of them, as for `prepare`"""
    output: Path
    """folder for spiece.model; made if absent, must hold no other run"""
    vocab_size: int = AlbertConfig.vocab_size
    """pieces, special and user symbols included"""
    character_coverage: float = 0.99995
    """share of all characters that get a piece (reference README)"""
    cased: bool = False
    """keep capital letters (the released vocabularies lower-case)"""
    keep_accents: bool = False
    """keep accents and all other marks, and know the words of any script (the
    released vocabularies drop marks and know English words)"""
    column: str = "text"
    """of JSONL and Parquet files: the one that holds the text"""

    def __post_init__(self):
        check_positive("vocab_size", self.vocab_size)
        if not is_number(self.character_coverage) or not (
            0.9 <= self.character_coverage <= 1
        ):
            raise AlbertError(
                "`character_coverage` must be in [0.9, 1]. "
                f"Received: {self.character_coverage!r}."
            )


@dataclasses.dataclass(frozen=True)
class PrepareRun:
    """Tokenize text into memory-mapped token shards.

    A run that was stopped goes on when the same command is given again.
    """

    input: tuple[str, ...]
    """files, or quoted patterns of them such as 'corpus/**/*.txt': text
    (UTF-8), one sentence or paragraph a line, blank line between documents;
    .jsonl and .parquet, a document a row; text and JSONL also as .gz"""
    vocab: Path
    """spiece.model, or the folder that holds it"""
    output: str
    """folder for the shards; made if absent, must hold no other run"""
    column: str = VocabRun.column
    """of JSONL and Parquet files: the one that holds the text"""
    split_sentences: str | None = None
    """split paragraphs into sentences by the rules of this language, for
    example en (whose rules are also for languages without their own); lines
    stay as they are when not given"""
    workers: int | None = None
    """processes; as many as there are cores when not given"""
    shard_bytes: int = 16_000_000
    """text that becomes a shard, about; more in corpora of gigabytes"""
    any_text: bool = False
    """go on though the vocabulary cannot read half of the text or more"""
    beam: tuple[str, ...] | None = None
    """run as an Apache Beam pipeline with these options, name=value each, for
    example runner=DataflowRunner; paths may then be gs:// and the like"""

    def __post_init__(self):
        if self.workers is not None:
            check_positive("workers", self.workers)
        check_positive("shard_bytes", self.shard_bytes)
        check_flag("any_text", self.any_text)
