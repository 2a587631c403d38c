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
    """text files, or quoted patterns of them, as for `prepare`"""
    output: Path
    """folder for spiece.model; created if absent, must be empty"""
    vocab_size: int = AlbertConfig.vocab_size
    """number of pieces, with special and user-defined symbols"""
    character_coverage: float = 0.99995
    """share of all characters of the text that get a piece (reference
    README)"""
    cased: bool = False
    """keep capital letters; the released vocabularies lower-case texts"""
    keep_accents: bool = False
    """keep accents and all other marks, and recognize words of any script in
    n-gram masking; the released vocabularies drop marks and recognize English
    words"""
    column: str = "text"
    """column of JSONL and Parquet files that holds the text"""

    def __post_init__(self):
        check_positive("vocab_size", self.vocab_size)
        if not is_number(self.character_coverage) or not (
            0.98 <= self.character_coverage <= 1  # as SentencePiece demands
        ):
            raise AlbertError(
                "`character_coverage` must be in [0.98, 1]. "
                f"Received: {self.character_coverage!r}."
            )


@dataclasses.dataclass(frozen=True)
class PrepareRun:
    """Tokenize text into memory-mapped token shards.

    The same command resumes a run that was interrupted.
    """

    input: tuple[str, ...]
    """text files, or quoted patterns of them such as 'corpus/**/*.txt'. Plain
    text (UTF-8) has a sentence or paragraph per line and a blank line between
    documents; .jsonl and .parquet files have a document per row. Text and JSONL
    may be compressed (.gz)"""
    vocab: str
    """spiece.model, or the folder that holds it; or hf://organization/name"""
    output: str
    """folder for the shards; created if absent, must hold no other run"""
    column: str = VocabRun.column
    """column of JSONL and Parquet files that holds the text"""
    blank_lines: int = 1
    """number of blank lines in a row that end a document of a text file; fewer
    are passed over. 2 suits text in which a blank line also stands around
    headings or between paragraphs"""
    split_sentences: str | None = None
    """split paragraphs into sentences by the rules of this language, for
    example en, whose rules are also used for languages without rules. If not
    given, each line is a sentence"""
    workers: int | None = None
    """number of processes; if not given, as many as there are cores. Not with
    `beam`"""
    shard_bytes: int = 16_000_000
    """approximate bytes of text in a shard; corpora of several gigabytes have
    larger shards"""
    any_text: bool = False
    """accept text of which half of the pieces or more are unknown to the
    vocabulary"""
    beam: tuple[str, ...] | None = None
    """run as an Apache Beam pipeline with these options (name=value), for
    example runner=DataflowRunner; paths may then also be gs:// and others that
    Beam supports"""

    def __post_init__(self):
        if self.workers is not None:
            check_positive("workers", self.workers)
            if self.beam is not None:
                raise AlbertError(
                    "With `beam` the runner has its own number of processes, "
                    f"in `beam`. Received: workers={self.workers}. Leave "
                    "--workers out."
                )
        check_positive("shard_bytes", self.shard_bytes)
        check_positive("blank_lines", self.blank_lines)
        check_flag("any_text", self.any_text)
