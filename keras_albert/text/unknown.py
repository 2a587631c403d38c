"""How much of a text a vocabulary cannot read.

A vocabulary stands for characters that it does not have with <unk>: to a model
all such words are the same. SentencePiece makes one <unk> of a whole run of
unknown characters and puts a word mark in front of it; a mark alone says
nothing, so it is not counted, as [CLS], [SEP] and padding are not. So Chinese
text, read with an English vocabulary, is unknown but for its punctuation.
"""

import dataclasses
import itertools
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from keras_albert.errors import AlbertError
from keras_albert.text.model_inputs import Row
from keras_albert.text.special_tokens import CLS_ID, PAD_ID, SEP_ID, UNK_ID
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer

WARN_AT, REFUSE_AT = 0.05, 0.5  # shares of the pieces that are <unk>
ROWS_AT_ONCE = 10_000
MOST_LOOKED_AT = 1_000  # texts, among which an example is found
SHOWN = 60  # characters of the example


@dataclasses.dataclass(frozen=True)
class PieceCount:
    """How many pieces there are, and how many of them are <unk>."""

    pieces: int = 0
    unknown: int = 0

    def __add__(self, other: "PieceCount") -> "PieceCount":
        return PieceCount(
            self.pieces + other.pieces, self.unknown + other.unknown
        )

    @property
    def share(self) -> float:
        """The unknown ones among all, from 0 to 1; 0 of no pieces."""
        return self.unknown / max(self.pieces, 1)


def count_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> PieceCount:
    """Counts ids; special pieces and lone word marks are left out."""
    ids = np.asarray(ids)
    mark = tokenizer.piece_to_id(WORD_MARK)
    unknown = int((ids == UNK_ID).sum())
    left_out = [PAD_ID, CLS_ID, SEP_ID]
    if mark != UNK_ID:  # the vocabulary has a mark
        left_out.append(mark)
    return PieceCount(int(ids.size - np.isin(ids, left_out).sum()), unknown)


def count_rows(tokenizer: Tokenizer, rows: Sequence[Row]) -> PieceCount:
    """Counts the pieces of rows of tokens."""
    count = PieceCount()
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        ids = np.concatenate([row.token_ids for row in part])
        count += count_pieces(tokenizer, ids)
    return count


def texts_of(values: Mapping[str, list], names: Iterable[str]) -> Iterator[str]:
    """The texts of some columns of a table, one after another."""
    for name in names:
        for value in values.get(name, []):
            yield from [value] if isinstance(value, str) else value


def example_of(tokenizer: Tokenizer, texts: Iterable[str]) -> str:
    """The beginning of a text of which as much as possible is unknown."""
    some = list(itertools.islice(texts, MOST_LOOKED_AT))
    counts = [
        count_pieces(tokenizer, ids) for ids in tokenizer.encode_batch(some)
    ]
    shares = [count.share for count in counts]
    return some[shares.index(max(shares))][:SHOWN] if some else ""


def judged(
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    values: Mapping[str, list],
    names: Iterable[str],
) -> tuple[PieceCount, str]:
    """The pieces of a table, and a text for the message about them.

    Args:
        tokenizer: of the model.
        rows: the tokens of the table, as the model reads them.
        values: the columns of the table.
        names: the columns that hold texts.

    Returns:
        the count; and `example_of` the texts, "" where all can be read.
    """
    count = count_rows(tokenizer, rows)
    if count.share < WARN_AT:
        return count, ""
    return count, example_of(tokenizer, texts_of(values, names))


def check_readable(
    count: PieceCount, example: str, place: object, any_text: bool
) -> None:
    """Says on stderr, or refuses, what the vocabulary cannot read.

    Args:
        count: of all pieces.
        example: a text that is unknown, for the message.
        place: where the texts are from.
        any_text: whether any share is accepted: then it is only said.

    Raises:
        AlbertError: REFUSE_AT or more of the pieces are unknown.
    """
    if count.share < WARN_AT:
        return
    if count.share >= REFUSE_AT and not any_text:
        raise AlbertError(
            f"{place}: {_shares(count, example)}. Use a model with a "
            "vocabulary for this text (`keras-albert vocab` trains one), or go "
            "on all the same with --any-text."
        )
    print(f"warning: {place}: {_shares(count, example)}.", file=sys.stderr)


def warn_if_unreadable(count: PieceCount, example: str) -> None:
    """A Python warning where `check_readable` would say or refuse something."""
    if count.share >= WARN_AT:
        warnings.warn(f"{_shares(count, example)}.", stacklevel=4)


def _shares(count: PieceCount, example: str) -> str:
    return (
        f"the vocabulary cannot read {count.share:.1%} of the pieces of the "
        f"text ({count.unknown:,} of {count.pieces:,} are <unk>), for example "
        f"in {example!r}"
    )
