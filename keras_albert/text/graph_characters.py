"""Texts as code points in a TensorFlow graph, and operations on them.

Shapes: B texts of N characters in total, M positions in them.

All texts are concatenated to one vector of code points. Positions are counted
in that vector, so that a single number is a position in any of the texts. This
module only uses operations of core TensorFlow.

Import this module only where it is needed: it imports TensorFlow.
"""

import functools
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_albert.errors import optional_import

tf = optional_import("tensorflow", "export", "tokenizing inside a graph")

SPACE = ord(" ")


class Characters(NamedTuple):
    """The code points of B texts."""

    codes: tf.Tensor
    """int32 [N], code points of all texts"""
    splits: tf.Tensor
    """int32 [B + 1], row splits: the start of each text, and N"""

    @classmethod
    def of(cls, texts: tf.Tensor) -> "Characters":
        """Decodes UTF-8 strings [B]; malformed bytes are dropped."""
        texts = tf.strings.unicode_transcode(
            texts, "UTF-8", "UTF-8", errors="ignore"
        )
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        return cls(codes.values, tf.cast(codes.row_splits, tf.int32))

    @property
    def rows(self) -> tf.Tensor:
        """The number of the text of each character, int32 [N]."""
        return rows_of(self.splits)

    @property
    def lengths(self) -> tf.Tensor:
        """The number of characters of each text, int32 [B]."""
        return self.splits[1:] - self.splits[:-1]

    def strings(self) -> tf.Tensor:
        """The texts as UTF-8 strings [B]."""
        texts = ragged(self.codes, self.splits)
        return tf.strings.unicode_encode(texts, "UTF-8")

    def parts(self, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Characters [starts, ends), int32 [M] each, as UTF-8 strings [M]."""
        places = tf.ragged.range(starts, ends)
        codes = tf.gather(self.codes, places.values)
        texts = ragged(codes, places.row_splits)
        return tf.strings.unicode_encode(texts, "UTF-8")

    def is_space(self) -> tf.Tensor:
        """Whether each character is white space to `str.split`: bool [N]."""
        return is_member(self.codes, _spaces())

    def trimmed(
        self, starts: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Removes white space at both ends of spans, as `str.strip` does.

        Returns new starts and ends, int32 [M] each; if nothing is left, both
        are the old end.
        """
        is_word = ~self.is_space()
        size = tf.size(is_word)
        first = tf.minimum(next_true(is_word, starts), ends)
        last = size - next_true(is_word[::-1], size - ends)
        return first, tf.maximum(first, last)

    def words(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The words of the texts, as Python's `str.split` returns them.

        Returns starts and ends, int32 [M] each; and row splits, int32 [B + 1].
        """
        is_word = ~self.is_space()
        first = is_word & ~_before(is_word, self.splits)
        starts = true_places(first)
        # A word ends at the next space, or at the end of its text.
        ends = tf.minimum(
            next_true(~is_word, starts),
            tf.gather(self.splits, tf.gather(self.rows, starts) + 1),
        )
        return starts, ends, tf.gather(count_before(first), self.splits)

    def collapsed(self) -> tuple["Characters", tf.Tensor]:
        """Collapses white space, as `" ".join(text.split())` does.

        Returns the new texts; and the old position of each of their characters.
        For a space that replaces a run of white space, that is the position of
        the first character of the run.
        """
        is_word = ~self.is_space()
        seen = count_before(is_word)
        by_end = tf.gather(seen, self.splits[1:])
        more = seen[:-1] < tf.gather(by_end, self.rows)
        between = ~is_word & _before(is_word, self.splits) & more
        kept = is_word | between
        places = true_places(kept)
        codes = tf.where(between, SPACE, self.codes)
        return (
            Characters(
                tf.gather(codes, places),
                tf.gather(count_before(kept), self.splits),
            ),
            places,
        )


def _before(values: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    """The previous value in the same row; False for the first of a row."""
    before = tf.concat([[False], values], axis=0)[:-1]
    place = tf.range(tf.size(values))
    return before & (place > tf.gather(splits, rows_of(splits)))


def equally_many(**inputs: tf.Tensor) -> list[tf.Tensor]:
    """Returns the inputs, with graph operations that check their lengths.

    The graph raises an error unless all inputs have equally many rows.
    """
    (first, a), *others = inputs.items()
    checks = [
        tf.debugging.assert_equal(
            tf.shape(a)[0],
            tf.shape(b)[0],
            f"`{first}` and `{name}` must have as many rows.",
        )
        for name, b in others
    ]
    with tf.control_dependencies([c for c in checks if c is not None]):
        return [tf.identity(each) for each in inputs.values()]


def rows_of(splits: tf.Tensor) -> tf.Tensor:
    """The row of each value, int32 [N], from row splits, int32 [B + 1]."""
    return tf.ragged.row_splits_to_segment_ids(splits, out_type=tf.int32)


def ragged(values: tf.Tensor, splits: tf.Tensor) -> tf.RaggedTensor:
    """A ragged tensor of values [N] and row splits [B + 1]."""
    # Validation would only add assertions: all callers pass valid splits.
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def true_places(condition: tf.Tensor) -> tf.Tensor:
    """The positions at which bool [N] is true: int32 [M]."""
    return tf.cast(tf.where(condition)[:, 0], tf.int32)


def count_before(condition: tf.Tensor) -> tf.Tensor:
    """How many of bool [N] are true before each position: int32 [N + 1]."""
    counts = tf.cumsum(tf.cast(condition, tf.int32))
    return tf.concat([[0], counts], axis=0)


def next_true(condition: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """The first true position at or after each place; N if there is none.

    `condition` is bool [N], and `places` int32 [M], positions from 0 to N.
    """
    found = tf.concat([true_places(condition), [tf.size(condition)]], axis=0)
    return tf.gather(found, tf.gather(count_before(condition), places))


def is_member(codes: tf.Tensor, ranges: np.ndarray) -> tf.Tensor:
    """Which int32 code points are in a set of `boundaries`: bool."""
    # The number of boundaries up to a code point is odd within a range.
    return tf.searchsorted(ranges, codes, side="right") % 2 == 1


def code_points() -> Sequence[int]:
    """All Unicode code points except surrogates."""
    return [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]


def boundaries(codes: list[int]) -> np.ndarray:
    """Ranges of sorted code points, flattened: [first, end, first, end, ...].

    The ends are excluded.
    """
    if not codes:
        return np.zeros(0, "int32")
    codes = np.array(codes, "int32")
    breaks = np.flatnonzero(np.diff(codes) != 1)
    first = codes[np.concatenate([[0], breaks + 1])]
    past = codes[np.concatenate([breaks, [len(codes) - 1]])] + 1
    return np.stack([first, past], axis=1).ravel()


@functools.cache
def _spaces() -> np.ndarray:
    return boundaries([c for c in code_points() if chr(c).isspace()])
