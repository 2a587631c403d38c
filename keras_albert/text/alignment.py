"""Aligns pieces with the characters of the raw text that they come from.

Shapes: T pieces of a text. Characters are counted as Python does, from 0.

The reference (squad_utils.py, convert_examples_to_features) estimates the same
from a longest common subsequence of the raw and the tokenized text, and drops
the questions of a text if that covers less than 80 % of it. Here the position
of each character is followed through all steps of the tokenizer, so that every
text can be aligned. Both agree on all pieces of the development set of SQuAD
1.1, with two exceptions:

- A word mark before the text that is a piece of its own stands for no
  character. The reference gives it the first character, which belongs to the
  next piece.
- Combining marks, which the tokenizer drops, belong to the letter before them.
  The reference leaves them out, even at the end of an answer.
"""

import dataclasses
import functools
import re
import unicodedata

import numpy as np

from keras_albert.errors import AlbertError
from keras_albert.text.guarded_sentencepiece import sentencepiece
from keras_albert.text.normalization import normalize, to_text
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer


@dataclasses.dataclass(frozen=True)
class AlignedPieces:
    """The pieces of a text; piece t covers characters [starts[t], ends[t])."""

    ids: np.ndarray
    """int32 [T], as `Tokenizer.encode` returns them"""
    starts: np.ndarray
    """int32 [T]; the white space before a word belongs to its first piece"""
    ends: np.ndarray
    """int32 [T]; equal to the start for a word mark without a character"""

    def covering(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last piece that cover characters [start, end).

        Characters at both ends that the tokenizer drops are ignored. Returns
        None if no piece covers any of the characters.
        """
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


class Aligner:
    """Tokenizes raw texts into pieces with their character positions.

    >>> pieces = Aligner(tokenizer)("The Café")  # "▁the", "▁cafe"
    >>> pieces.starts.tolist(), pieces.ends.tolist()
    ([0, 3], [3, 8])
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._processor = sentencepiece.SentencePieceProcessor(
            model_proto=tokenizer.model_bytes
        )
        first_byte = self._processor.piece_to_id("<0x00>")
        if self._processor.is_byte(first_byte):
            raise AlbertError(
                "a vocabulary that writes unknown characters as bytes "
                "(byte_fallback) cannot be aligned with the characters of a "
                "context. Answer questions with a model of another vocabulary."
            )
        self._resplits = {
            i: self._resplit_texts(tokenizer.id_to_piece(i))
            for i in tokenizer.resplits
        }

    def _resplit_texts(self, piece: str) -> list[str]:
        without_comma = piece[:-1].replace(WORD_MARK, "")
        return [*self._processor.encode(without_comma, out_type=str), ","]

    def resplit_lengths(self) -> dict[int, list[int]]:
        """Lengths, in characters, of the parts of each piece that is resplit.

        The keys are those of `Tokenizer.resplits`. Word marks added by
        resplitting do not count.
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
        """Tokenizes a text."""
        settings = self._tokenizer.settings
        normal, sources = normalize_with_sources(text, **settings)
        starts, ends = self._character_spans(text, normal, sources)
        ids, spans, position = [], [], 0
        numbers = self._processor.encode(normal)
        pieces = self._processor.encode(normal, out_type=str)
        for i, piece in zip(numbers, pieces, strict=True):
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
        ends = np.maximum.accumulate(piece_ends)
        return AlignedPieces(np.array(ids, "int32"), starts[first], ends)

    def _character_spans(
        self, text: str, normal: str, sources: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The span in the raw text of each character of the pieces.

        `sources` has the index in `text` of each character of `normal`, its
        normal form. Returns starts and ends, int32 [characters of all pieces].
        """
        # SentencePiece normalizes again, with its own character map. For each
        # character that it writes, `offsets` has that of `normal` from which it
        # comes; it comes from all up to the next offset that differs.
        written, offsets = self._processor.normalize(normal, with_offsets=True)
        if not written:
            return np.zeros((2, 0), "int32")
        known, which = np.unique(offsets, return_inverse=True)
        first = known[which[:-1]]
        after = known[np.minimum(which[:-1] + 1, len(known) - 1)]
        last = after - 1
        # Where several characters became one, SentencePiece has either composed
        # them, or dropped all but the first. In the second case the others are
        # not part of the piece.
        for k in np.flatnonzero(last > first):
            group = normal[first[k] : after[k]]
            if written[k] == WORD_MARK:  # of a space or invisible characters
                first[k] += max(group.find(" "), 0)
                last[k] = first[k]
            elif not self._processor.normalize(group[1:]):
                last[k] = first[k]
        sources = np.array(sources, "int32")
        starts, ends = sources[first], _after_marks(text)[sources[last] + 1]
        if offsets[1] == offsets[0] and written[0] == WORD_MARK:
            starts[0] = ends[0] = 0  # SentencePiece added it before the text
        return starts, ends


def _after_marks(text: str) -> np.ndarray:
    """The first character from each position on that is no combining mark.

    int32 [len(text) + 1].
    """
    positions = np.arange(len(text) + 1, dtype="int32")
    if not text.isascii():
        is_mark = [*map(unicodedata.combining, text), 0]
        positions = np.where(is_mark, len(text), positions)
        positions = np.minimum.accumulate(positions[::-1])[::-1]
    return positions


def normalize_with_sources(
    text: str, lower_case: bool, keep_accents: bool = False
) -> tuple[str, list[int]]:
    """Normalizes a text; also returns where each character comes from.

    The second result is, for each character of the first, its index in `text`;
    for a space, the first of the run of white space that it stands for.

    >>> normalize_with_sources("Á  ½", lower_case=True)
    ('a 1⁄2', [0, 1, 3, 3, 3])
    """
    parts: list[str] = []
    sources: list[int] = []
    end = None  # end of the previous word
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
    # The whole text is lower-cased at once, since the lower case of a capital
    # sigma depends on whether it ends a word. Lengths differ only for the
    # dotted capital I, which becomes two characters if marks are kept.
    lower = normal.lower()
    if len(lower) != len(normal):
        pairs = zip(normal, sources, strict=True)
        sources = [source for c, source in pairs for _ in c.lower()]
    return lower, sources


@functools.cache
def _normal_form(character: str, keep_accents: bool) -> str:
    return normalize(to_text(character), False, keep_accents)


def _split(
    piece: str, texts: list[str], position: int
) -> list[tuple[int, int]]:
    """Character spans of the texts that replace a piece at `position`.

    The texts have the characters of the piece, and added word marks.
    """
    spans = []
    after = position + piece.startswith(WORD_MARK)
    for text in texts:
        after += len(text.replace(WORD_MARK, ""))
        spans.append((position, after))
        position = after
    return spans
