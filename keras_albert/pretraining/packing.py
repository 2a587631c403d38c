"""Which examples share a row of `sequence_length` tokens.

Lengths are packed, not examples (Krell et al. 2021, arXiv:2107.02027): all
examples of a length are the same, so the histogram of the lengths is divided
into kinds of rows, such as "300 rows of 200, 40 and 16 tokens". That takes as
long for a thousand examples as for a billion; then each row takes examples of
its lengths, in their shuffled order.

Shapes: N examples in an epoch, R rows in an epoch, S tokens in a row, K most
examples in a row.
"""

import bisect
import dataclasses

import numpy as np

from keras_albert.pretraining.counter_rng import fold


@dataclasses.dataclass(frozen=True)
class Packing:
    """The rows of an epoch."""

    members: np.ndarray
    """uint32 (or int64) [N]: the examples of row 0, those of row 1, ..."""
    edges: np.ndarray
    """int64 [R + 1]: row r holds members[edges[r] : edges[r + 1]]"""
    fill: float
    """share of all rows' tokens that is not padding"""

    @property
    def examples_per_row(self) -> float:
        """On average."""
        return len(self.members) / (len(self.edges) - 1)

    def examples_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples of some rows, int64, and how many each row has."""
        counts = self.edges[rows + 1] - self.edges[rows]
        places = _runs(self.edges[rows], counts)
        return self.members[places].astype("int64"), counts


def pack_examples(
    lengths: np.ndarray, row_length: int, most: int, key: np.uint64
) -> Packing:
    """Rows of examples, shuffled.

    Args:
        lengths: int [N], tokens of each example, 1 to S.
        row_length: S.
        most: K.
        key: what the order of the rows hangs from.
    """
    number_type = "uint32" if len(lengths) < 2**32 else "int64"
    # Sixteen bits are sorted by counting.
    by_length = np.argsort((lengths - 1).astype("uint16"), kind="stable")
    counts = np.bincount(lengths, minlength=row_length + 1)
    unused = np.cumsum(counts) - counts  # of each length, in `by_length`
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
        members[_runs(first[order], sizes)],
        np.concatenate([[0], np.cumsum(sizes)]),
        fill=float(lengths.sum() / (row_length * len(sizes))),
    )


def kinds_of_rows(
    counts: np.ndarray, row_length: int, most: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Best fit, the longest first, for all examples of a length at once.

    Each example goes where it leaves the least room, or begins a row.

    Args:
        counts: int [S + 1], examples of each length.
        row_length: S.
        most: K.

    Returns:
        (rows, lengths of their examples) of each kind.

    Two examples of 6 tokens, three of 4 and one of 2, in rows of 10: two rows
    of 6 and 4, one of 4 and 2.
    """
    kinds, begun = [], {}  # room -> what can take more
    rooms = []  # of `begun`, growing

    def keep(rows, kind, room):
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
            copies = min(room // length, most - len(kind), left)
            filled = min(rows, left // copies)
            left -= filled * copies
            if kind:
                keep(rows - filled, kind, room)
            keep(filled, kind + (length,) * copies, room - copies * length)
    return kinds + [each for some in begun.values() for each in some]


def _runs(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """starts[0], starts[0] + 1, ... (sizes[0] of them), starts[1], ..."""
    skipped = starts - (np.cumsum(sizes) - sizes)
    return np.arange(sizes.sum()) + np.repeat(skipped, sizes)
