"""Pieces that know which characters of the raw text they come from.

Shapes: T pieces of a text. Characters are counted as Python does, from 0.

The reference (squad_utils.py, convert_examples_to_features) guesses the same
from a longest common subsequence of the raw and the tokenized text, and drops
the questions of a text where that has less than 80 % of its characters. Here
each step of the tokenizer is followed, so every text is aligned. Both agree on
all pieces of the development set of SQuAD 1.1 but for two kinds:

- a word mark before the text, where it is a piece of its own, stands for no
  character; the reference gives it the first one, which is the next piece's;
- combining marks, which the tokenizer drops, belong to the letter before them;
  the reference leaves them out, also at the end of an answer.
"""

import dataclasses
import functools
import re
import unicodedata

import numpy as np
import sentencepiece

from keras_albert.text.normalization import normalize, to_text
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer


@dataclasses.dataclass(frozen=True)
class AlignedPieces:
    """The pieces of a text; piece t is of characters [starts[t], ends[t])."""

    ids: np.ndarray
    """int32 [T], as `Tokenizer.encode` gives them"""
    starts: np.ndarray
    """int32 [T]; the white space before a word belongs to its first piece"""
    ends: np.ndarray
    """int32 [T]; a word mark that stands for no character is empty"""

    def covering(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last piece of characters [start, end).

        Characters that the tokenizer drops are left out at both ends. None
        where nothing is left.
        """
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


class Aligner:
    """Raw texts to aligned pieces.

    >>> pieces = Aligner(tokenizer)("The Café")  # "▁the", "▁cafe"
    >>> pieces.starts.tolist(), pieces.ends.tolist()
    ([0, 3], [3, 8])
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._processor = sentencepiece.SentencePieceProcessor(
            model_proto=tokenizer.model_bytes
        )
        self._resplits = {
            i: self._resplit_texts(tokenizer.id_to_piece(i))
            for i in tokenizer.resplits
        }

    def _resplit_texts(self, piece: str) -> list[str]:
        """What `Tokenizer.resplits` has as ids, <unk> as it is written."""
        without_comma = piece[:-1].replace(WORD_MARK, "")
        return [*self._processor.encode(without_comma, out_type=str), ","]

    def resplit_lengths(self) -> dict[int, list[int]]:
        """How many characters are in each piece that another is split into.

        By the ids that `Tokenizer.resplits` has; word marks that are new do
        not count.
        """
        return {
            i: [
                after - first
                for first, after in _split(
                    self._tokenizer.id_to_piece(i), texts, 0
                )
            ]
            for i, texts in self._resplits.items()
        }

    def __call__(self, text: str) -> AlignedPieces:
        """All pieces of a text."""
        normal, sources = normalize_with_sources(
            text, **self._tokenizer.settings
        )
        starts, ends = self._character_spans(text, normal, sources)
        ids, spans, position = [], [], 0
        for i, piece in zip(
            self._processor.encode(normal),
            self._processor.encode(normal, out_type=str),
            strict=True,
        ):
            if i in self._resplits:
                ids += self._tokenizer.resplits[i]
                spans += _split(piece, self._resplits[i], position)
            else:
                ids.append(i)
                spans.append((position, position + len(piece)))
            position += len(piece)
        assert position == len(starts), "the pieces are not the text"
        first, after = np.array(spans, "int32").reshape(-1, 2).T
        piece_ends = np.where(after > first, ends[after - 1], starts[first])
        return AlignedPieces(
            np.array(ids, "int32"),
            starts[first],
            np.maximum.accumulate(piece_ends),
        )

    def _character_spans(
        self, text: str, normal: str, sources: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where each character of the concatenated pieces is in the text.

        Args:
            text: the raw text.
            normal: its normalized form.
            sources: index in `text` of each character of `normal`.

        Returns:
            starts and ends, int32 [characters].
        """
        written, offsets = self._processor.normalize(normal, with_offsets=True)
        if not written:
            return np.zeros((2, 0), "int32")
        known, which = np.unique(offsets, return_inverse=True)
        first = known[which[:-1]]
        after = known[np.minimum(which[:-1] + 1, len(known) - 1)]
        last = after - 1
        # SentencePiece made one of several, or dropped all but the first.
        for k in np.flatnonzero(last > first):
            group = normal[first[k] : after[k]]
            if written[k] == WORD_MARK:  # invisible ones count as spaces, too
                first[k] += max(group.find(" "), 0)
                last[k] = first[k]
            elif not self._processor.normalize(group[1:]):
                last[k] = first[k]
        sources = np.array(sources, "int32")
        starts, ends = sources[first], _after_marks(text)[sources[last] + 1]
        if offsets[1] == offsets[0] and written[0] == WORD_MARK:
            starts[0] = ends[0] = 0  # put before the text
        return starts, ends


def _after_marks(text: str) -> np.ndarray:
    """From each place on the first one without a mark, int32 [len(text) + 1].

    Marks are dropped from pieces, but belong to the letter before them.
    """
    places = np.arange(len(text) + 1, dtype="int32")
    if not text.isascii():
        is_mark = [*map(unicodedata.combining, text), 0]
        places = np.where(is_mark, len(text), places)
        places = np.minimum.accumulate(places[::-1])[::-1]
    return places


def normalize_with_sources(
    text: str, lower_case: bool, keep_accents: bool = False
) -> tuple[str, list[int]]:
    """`normalize`, and the index in `text` of each of its characters.

    A single space that stands for a run of white space is the first of it.

    >>> normalize_with_sources("Á  ½", lower_case=True)
    ('a 1⁄2', [0, 1, 3, 3, 3])
    """
    parts: list[str] = []
    sources: list[int] = []
    end = None  # of the word before
    for word in re.finditer(r"\S+", text):
        if end is not None:
            parts.append(" ")
            sources.append(end)
        end = word.end()
        if word[0].isascii():
            parts.append(word[0])
            sources += range(*word.span())
            continue
        for i in range(*word.span()):
            form = _normal_form(text[i], keep_accents)
            parts.append(form)
            sources += [i] * len(form)
    normal = "".join(parts)
    if not lower_case:
        return normal, sources
    # Of the whole text: a final sigma has its own small form, of one
    # character, too. One capital, dotted I, becomes two where marks are kept.
    lower = normal.lower()
    if len(lower) != len(normal):
        sources = [
            source
            for character, source in zip(normal, sources, strict=True)
            for _ in character.lower()
        ]
    return lower, sources


@functools.cache
def _normal_form(character: str, keep_accents: bool) -> str:
    return normalize(to_text(character), False, keep_accents)


def _split(
    piece: str, texts: list[str], position: int
) -> list[tuple[int, int]]:
    """Character spans of the texts that replace a piece at `position`.

    They hold the same characters, but for word marks that are new.
    """
    spans = []
    after = position + piece.startswith(WORD_MARK)
    for text in texts:
        after += len(text.replace(WORD_MARK, ""))
        spans.append((position, after))
        position = after
    return spans
