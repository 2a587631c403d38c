"""Packs short examples into shared rows of `sequence_length` tokens.

The algorithm packs the histogram of the lengths, not the examples (Krell et
al. 2021, arXiv:2107.02027). Examples of equal length are interchangeable, so
the histogram is divided into kinds of rows, such as "300 rows of 200, 40 and
16 tokens". This takes no longer for a billion examples than for a thousand.
Then each row gets examples of its lengths, in their shuffled order.

Shapes: N examples in an epoch, R rows in an epoch, S tokens in a row, K the
most examples in a row.
"""

import bisect
import dataclasses

import numpy as np

from keras_albert.corpus.token_index import concatenated_ranges
from keras_albert.pretraining.counter_rng import fold


@dataclasses.dataclass(frozen=True)
class Packing:
    """The rows of an epoch."""

    members: np.ndarray
    """uint32 (or int64) [N]: the examples of row 0, then of row 1, ..."""
    edges: np.ndarray
    """int64 [R + 1]: row r holds members[edges[r] : edges[r + 1]]"""
    fill: float
    """share of the positions of all rows that are not padding, 0 to 1"""

    @property
    def examples_per_row(self) -> float:
        """Mean number of examples in a row."""
        return len(self.members) / (len(self.edges) - 1)

    def examples_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples of rows, int64, and how many examples each row has."""
        counts = self.edges[rows + 1] - self.edges[rows]
        places = concatenated_ranges(self.edges[rows], counts)
        return self.members[places].astype("int64"), counts


def pack_examples(
    lengths: np.ndarray, row_length: int, most: int, key: np.uint64
) -> Packing:
    """Packs examples into rows and shuffles the rows.

    `lengths` are the tokens of each example, int [N]. A row has `row_length`
    tokens and at most `most` examples; `key` decides the order of the rows.
    """
    number_type = "uint32" if len(lengths) < 2**32 else "int64"
    # NumPy has a fast radix sort for 16-bit integers.
    by_length = np.argsort((lengths - 1).astype("uint16"), kind="stable")
    counts = np.bincount(lengths, minlength=row_length + 1)
    # Index in `by_length` of the first unused example of each length.
    unused = np.cumsum(counts) - counts
    blocks, sizes = [], []
    for rows, kind in kinds_of_rows(counts, row_length, most):
        block = np.empty((rows, len(kind)), number_type)
        for column, length in enumerate(kind):
            first = unused[length]
            block[:, column] = by_length[first : first + rows]
            unused[length] += rows
        blocks.append(block.ravel())
        sizes.append(np.full(rows, len(kind)))
    members, sizes = np.concatenate(blocks), np.concatenate(sizes)
    order = np.argsort(fold(key, np.arange(len(sizes))))
    first = np.cumsum(sizes) - sizes
    sizes = sizes[order]
    return Packing(
        members[concatenated_ranges(first[order], sizes)],
        np.concatenate([[0], np.cumsum(sizes)]),
        fill=float(lengths.sum() / (row_length * len(sizes))),
    )


def kinds_of_rows(
    counts: np.ndarray, row_length: int, most: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Decides which lengths share a row, from a histogram of the lengths.

    `counts`, int [S + 1], are the numbers of examples of each length,
    `row_length` is S; a row has at most `most` examples.

    This is the best-fit-decreasing heuristic of bin packing, for all examples
    of a length at once: each example, the longest first, goes into the row in
    which it leaves the least free space, or else into a new row.

    Returns the number of rows of each kind, and the lengths of their examples.
    Example: two examples of 6 tokens, three of 4 and one of 2, in rows of 10,
    give two rows of 6 and 4 tokens, and one of 4 and 2.
    """
    kinds, begun = [], {}  # `begun`: free space -> rows that are not full
    rooms = []  # the keys of `begun`, ascending

    def keep(rows, kind, room):
        """Records equal rows: by their free space, or as full rows.

        `rows` is their number, `kind` the lengths of their examples, and
        `room` how many tokens each has left.
        """
        if rows and len(kind) < most and room:
            if room not in begun:
                bisect.insort(rooms, room)
            begun.setdefault(room, []).append((rows, kind))
        elif rows:
            kinds.append((rows, kind))

    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            place = bisect.bisect_left(rooms, length)
            if place == len(rooms):
                rows, kind, room = left, (), row_length
            else:
                room = rooms[place]
                rows, kind = begun[room].pop()
                if not begun[room]:
                    del begun[room], rooms[place]
            # Each of `filled` rows takes as many examples as fit; others stay.
            copies = min(room // length, most - len(kind), left)
            filled = min(rows, left // copies)
            left -= filled * copies
            if kind:
                keep(rows - filled, kind, room)
            keep(filled, kind + (length,) * copies, room - copies * length)
    return kinds + [each for some in begun.values() for each in some]
