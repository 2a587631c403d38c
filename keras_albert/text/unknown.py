"""Measures how much of a text is unknown (<unk>) to a vocabulary.

Characters that a vocabulary lacks become <unk>, so that a model cannot
distinguish the words. SentencePiece replaces a run of unknown characters by one
<unk>, with a word mark before it. A word mark alone has no content, so it is
not counted; nor are [CLS], [SEP] and padding. Chinese text is then almost
entirely unknown to an English vocabulary, except for punctuation.
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

# Shares of <unk> from which the user is warned, or the text is refused.
WARN_AT, REFUSE_AT = 0.05, 0.5
COUNTED_AT_ONCE = 10_000  # rows whose pieces are counted in one call
MOST_LOOKED_AT = 1_000  # number of texts among which an example is chosen
SHOWN = 60  # number of characters of the example in a message


@dataclasses.dataclass(frozen=True)
class PieceCount:
    """The number of pieces, and how many of them are <unk>."""

    pieces: int = 0
    unknown: int = 0

    def __add__(self, other: "PieceCount") -> "PieceCount":
        unknown = self.unknown + other.unknown
        return PieceCount(self.pieces + other.pieces, unknown)

    @property
    def share(self) -> float:
        """Share of unknown pieces, from 0 to 1; 0 if there are no pieces."""
        return self.unknown / max(self.pieces, 1)


def count_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> PieceCount:
    """Counts ids, without [CLS], [SEP], padding and lone word marks."""
    ids = np.asarray(ids)
    mark = tokenizer.piece_to_id(WORD_MARK)
    unknown = int((ids == UNK_ID).sum())
    left_out = [PAD_ID, CLS_ID, SEP_ID]
    if mark != UNK_ID:  # the vocabulary has a mark
        left_out.append(mark)
    return PieceCount(int(ids.size - np.isin(ids, left_out).sum()), unknown)


def count_rows(tokenizer: Tokenizer, rows: Sequence[Row]) -> PieceCount:
    """Counts the pieces of rows."""
    count = PieceCount()
    for start in range(0, len(rows), COUNTED_AT_ONCE):
        part = rows[start : start + COUNTED_AT_ONCE]
        ids = np.concatenate([row.token_ids for row in part])
        count += count_pieces(tokenizer, ids)
    return count


def texts_of(values: Mapping[str, list], names: Iterable[str]) -> Iterator[str]:
    """The texts of columns of a table, one after another.

    Items are texts or lists of texts; missing columns are skipped.
    """
    for name in names:
        for value in values.get(name, []):
            yield from [value] if isinstance(value, str | bytes) else value


def example_of(tokenizer: Tokenizer, texts: Iterable[str]) -> str:
    """The beginning of the text with the largest share of unknown pieces."""
    some = list(itertools.islice(texts, MOST_LOOKED_AT))
    encoded = tokenizer.encode_batch(some)
    shares = [count_pieces(tokenizer, ids).share for ids in encoded]
    return some[shares.index(max(shares))][:SHOWN] if some else ""


def count_in_table(
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    values: Mapping[str, list],
    names: Iterable[str],
) -> tuple[PieceCount, str]:
    """Counts the pieces of rows, made of the columns `names` of a table.

    Also returns `example_of`; "" if the unknown share is below WARN_AT.
    """
    count = count_rows(tokenizer, rows)
    if count.share < WARN_AT:
        return count, ""
    return count, example_of(tokenizer, texts_of(values, names))


def check_readable(
    count: PieceCount, example: str, place: object, any_text: bool
) -> None:
    """Warns on stderr of unknown text, or refuses it.

    The message has the `place` that the texts are from, and an `example`.
    Raises AlbertError if a share of REFUSE_AT or more of the pieces is unknown,
    unless `any_text` is true.
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
    """Issues a Python warning if a share of WARN_AT or more is unknown."""
    if count.share >= WARN_AT:
        warnings.warn(f"{_shares(count, example)}.", stacklevel=4)


def _shares(count: PieceCount, example: str) -> str:
    return (
        f"the vocabulary cannot read {count.share:.1%} of the pieces of the "
        f"text ({count.unknown:,} of {count.pieces:,} are <unk>), for example "
        f"in {example!r}"
    )
