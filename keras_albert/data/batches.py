"""Tokenized examples -> batches of few lengths, with little padding.

A batch is padded to one of a few static lengths, which are chosen so that the
padding of all examples together is least: XLA compiles the model once for
each. Examples of a length share batches.

Letters: N examples, B examples in a batch, S tokens a row, T tokens of a row.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sized

import numpy as np

from keras_albert.data.input_pipeline import (
    batch_dataset,
    host_rows,
    import_tensorflow,
    without_tuning,
)
from keras_albert.errors import AlbertError, check_positive, check_seed
from keras_albert.text.model_inputs import Row
from keras_albert.text.special_tokens import PAD_ID

MOST_LENGTHS = 6  # more save little padding, and each is compiled
LENGTH_STEP = 8  # rows of a TPU's and of a GPU's tiles

_SHUFFLE = 3  # keeps this random stream apart from those of pretraining

Target = np.ndarray | dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Features:
    """Examples as rows of tokens, in the order of their file."""

    rows: list[Row]
    """one for each example; where there are choices, one for each of them"""
    target: Target | None = None
    """what is to be learned, [N, ...] (or several, by the output's name)"""
    token_target: list[np.ndarray] | None = None
    """a label for each token of a row, int [T]; -1 counts for nothing"""
    weight: np.ndarray | None = None
    """how much each example counts, float32 [N]; 1 when not given"""
    choices: int | None = None
    """rows of an example; None: one, without an axis of choices"""
    groups: list[str] | None = None
    """what each example belongs to, where parts are scored, too"""
    given: dict[str, str] = dataclasses.field(default_factory=dict)
    """further inputs in training, by name, and the target that each repeats"""
    source: Sized | None = None
    """what the rows are parts of, where one may have several: questions, which
    are read in windows, and texts of words. It has what else the outputs are to
    be understood by"""

    def __post_init__(self):
        if not self.rows:
            raise AlbertError("no examples. Expected one or more.")

    def __len__(self) -> int:
        return len(self.rows) // (self.choices or 1)

    @property
    def count(self) -> int:
        """How many a user has given: examples, or those they are parts of."""
        return len(self if self.source is None else self.source)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """int64 [N]: tokens of the longest row of each example."""
        lengths = np.array([len(row.token_ids) for row in self.rows], "int64")
        return lengths.reshape(len(self), -1).max(axis=1)

    @property
    def cut(self) -> int:
        """How many examples were longer than the longest row."""
        is_cut = np.array([row.is_cut for row in self.rows])
        return int(is_cut.reshape(len(self), -1).any(axis=1).sum())

    def take(self, chosen: np.ndarray) -> "Features":
        """Some of the examples, without their groups and source."""
        width = self.choices or 1
        places = (chosen[:, None] * width + np.arange(width)).ravel()
        target, marks = self.target, self.token_target
        if isinstance(target, dict):
            target = {name: value[chosen] for name, value in target.items()}
        elif target is not None:
            target = target[chosen]
        return Features(
            rows=[self.rows[place] for place in places],
            target=target,
            token_target=marks and [marks[i] for i in chosen],
            weight=None if self.weight is None else self.weight[chosen],
            choices=self.choices,
            given=self.given,
        )

    def training_batch(
        self, chosen: np.ndarray, batch_size: int, length: int
    ) -> tuple[dict[str, np.ndarray], Target, np.ndarray]:
        """`batch`, with what is given in training alone."""
        x, y, weight = self.batch(chosen, batch_size, length)
        given = {name: y[target] for name, target in self.given.items()}
        return x | given, y, weight

    def batch(
        self, chosen: np.ndarray, batch_size: int, length: int
    ) -> tuple[dict[str, np.ndarray], Target, np.ndarray]:
        """Some examples as (x, y, sample_weight).

        Filled up to `batch_size` with copies of the last one that weigh 0.

        Args:
            chosen: int [R], 1 <= R <= B.
            batch_size: B.
            length: S.

        Returns:
            x: int32 `token_ids`, `segment_ids`, `padding_mask` [B, S], or
            [B, C, S] with choices; y: as `target` [B, ...], or int32 [B, S];
            the weights float32 [B], or [B, S].
        """
        filled = np.pad(chosen, (0, batch_size - len(chosen)), "edge")
        width = self.choices or 1
        places = (filled[:, None] * width + np.arange(width)).ravel()
        shape = (len(places), length)
        token_ids = np.full(shape, PAD_ID, "int32")
        segment_ids, padding_mask = np.zeros((2, *shape), "int32")
        for row, place in enumerate(places):
            tokens, first, _ = self.rows[place]
            token_ids[row, : len(tokens)] = tokens
            segment_ids[row, first : len(tokens)] = 1
            padding_mask[row, : len(tokens)] = 1
        x = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": padding_mask,
        }
        if self.choices:
            x = {k: v.reshape(batch_size, width, length) for k, v in x.items()}
        weight = np.zeros(batch_size, "float32")
        weight[: len(chosen)] = (
            1 if self.weight is None else self.weight[chosen]
        )
        if self.token_target is not None:
            y = np.full(shape, -1, "int32")
            for row, place in enumerate(places):
                labels = self.token_target[place]
                y[row, : len(labels)] = labels
            return x, np.maximum(y, 0), weight[:, None] * (y >= 0)
        if isinstance(self.target, dict):
            y = {name: value[filled] for name, value in self.target.items()}
        else:
            y = None if self.target is None else self.target[filled]
        return x, y, weight


# Which examples share a batch, and what it is padded to.

Plan = list[tuple[np.ndarray, int]]
"""the examples of each batch, int64 [R], and its length S"""


def choose_lengths(
    lengths: np.ndarray, longest: int, most: int = MOST_LENGTHS
) -> np.ndarray:
    """Ascending int64 [K <= most]: lengths that leave the least padding.

    Multiples of LENGTH_STEP, or `longest`. The last one holds the longest
    example.

    Nine examples of 8 tokens, one of 40 and one of 64, with two lengths: 8
    and 64, for 24 tokens of padding; 40 and 64 would leave 288.

    Args:
        lengths: int [N], from 1 to `longest`.
        longest: what no length exceeds, even if it is no multiple.
        most: K.
    """
    rounded = np.minimum(-(-lengths // LENGTH_STEP) * LENGTH_STEP, longest)
    sizes, counts = np.unique(rounded, return_counts=True)
    seen = np.concatenate([[0], np.cumsum(counts)])
    # cost[j]: tokens of the first j sizes, with as many lengths as so far;
    # a further length holds sizes i to j - 1, for the best i.
    cost = np.concatenate([[0], np.full(len(sizes), np.inf)])
    begins = []
    for _ in range(min(most, len(sizes))):
        options = cost[None, :-1] + sizes[:, None] * (
            seen[1:, None] - seen[None, :-1]
        )
        options = np.where(np.tri(len(sizes), dtype=bool), options, np.inf)
        begins.append(options.argmin(axis=1))
        cost = np.concatenate([[0], options.min(axis=1)])
    chosen, end = [], len(sizes)
    for begin in reversed(begins):
        if end == 0:
            break
        chosen.append(sizes[end - 1])
        end = begin[end - 1]
    return np.array(chosen[::-1], "int64")


def epoch_plan(
    lengths: np.ndarray,
    static: np.ndarray,
    batch_size: int,
    seed: int,
    epoch: int,
) -> Plan:
    """Every example once, in random batches of one static length each.

    Full batches but for the last of the epoch. What does not fill a batch of
    its own length joins the longer ones.

    Args:
        lengths: int [N].
        static: `choose_lengths`.
        batch_size: B.
        seed, epoch: all that the plan depends on, beside the above.

    Returns:
        ceil(N / B) batches.
    """
    rng = np.random.default_rng((seed, _SHUFFLE, epoch))
    order = rng.permutation(len(lengths))
    buckets = np.searchsorted(static, lengths[order])
    batches, rest = [], [np.zeros(0, "int64")]
    for bucket in range(len(static)):
        mine = order[buckets == bucket]
        full = len(mine) // batch_size * batch_size
        batches += list(mine[:full].reshape(-1, batch_size))
        rest.append(mine[full:])
    rest = np.concatenate(rest)
    whole = len(rest) // batch_size * batch_size
    batches += list(rest[:whole].reshape(-1, batch_size))
    batches = [batches[i] for i in rng.permutation(len(batches))]
    if whole < len(rest):
        batches.append(rest[whole:])
    return [(each, _length_of(each, lengths, static)) for each in batches]


def sorted_plan(
    lengths: np.ndarray, static: np.ndarray, batch_size: int
) -> Plan:
    """Every example once, the shortest first; see `epoch_plan`."""
    order = np.argsort(lengths, kind="stable")
    return [
        (chosen, _length_of(chosen, lengths, static))
        for start in range(0, len(order), batch_size)
        for chosen in [order[start : start + batch_size]]
    ]


def _length_of(chosen, lengths, static) -> int:
    return int(static[np.searchsorted(static, lengths[chosen].max())])


# Batches of a plan.


def training_dataset(
    features: Features,
    static: np.ndarray,
    *,
    batch_size: int,
    seed: int,
    epochs: int,
    start_step: int = 0,
    host_index: int = 0,
    host_count: int = 1,
):
    """tf.data.Dataset of (x, y, sample_weight), each example once an epoch.

    Shapes are those of `Features.batch`; S is None in `element_spec`.

    Args:
        static: lengths, `choose_lengths`.
        seed: of the order, 0 or more.
        epochs: how many follow one another.
        start_step: batches to leave out, without making them.
        host_index, host_count: this host gives its rows of each batch, see
            `host_rows`.

    Raises:
        AlbertError: a number out of range, or no TensorFlow.
    """
    check_positive("batch_size", batch_size)
    check_positive("epochs", epochs)
    check_seed(seed)
    steps = -(-len(features) // batch_size)
    mine = host_rows(batch_size, host_index, host_count)
    tf = import_tensorflow()

    def batches() -> Iterator[tuple]:
        for epoch in range(start_step // steps, epochs):
            plan = epoch_plan(features.lengths, static, batch_size, seed, epoch)
            done = max(start_step - epoch * steps, 0)
            for chosen, length in plan[done:]:
                batch = features.training_batch(chosen, batch_size, length)
                if host_count == 1:
                    yield batch
                else:
                    yield tf.nest.map_structure(
                        lambda value: value[mine], batch
                    )

    count = epochs * steps - start_step
    return _dataset(features, batches, len(mine), count)


def _dataset(
    features: Features,
    batches: Callable[[], Iterator[tuple]],
    batch_size: int,
    count: int,
):
    """Its shapes are those of a training batch, but for the length."""
    tf = import_tensorflow()
    longest = int(features.lengths.max())
    example = features.training_batch(np.zeros(1, "int64"), batch_size, longest)

    def spec(name: str, value):
        per_token = value.ndim > 1 and (
            name == "x" or features.token_target is not None
        )
        shape = (*value.shape[:-1], None) if per_token else value.shape
        return tf.TensorSpec(shape, value.dtype)

    signature = tuple(
        tf.nest.map_structure(lambda value, name=name: spec(name, value), part)
        for name, part in zip(("x", "y", "weight"), example, strict=True)
    )
    return without_tuning(batch_dataset(batches, signature, count))
