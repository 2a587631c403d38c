"""Batches of tokenized examples in a few lengths, with little padding.

Examples of similar length share batches. Each batch is padded to one of a few
static lengths, since XLA compiles the model once for each length. The lengths
are chosen to minimize the padding of all examples. Inference without XLA pads a
batch to its longest example instead (`TaskModel.outputs`).

Letters: N examples, B examples in a batch, S tokens of a padded row, T tokens
of a row without padding.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sized

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

MOST_LENGTHS = 6  # more would save little padding, and each is compiled
LENGTH_STEP = 8  # tiles of TPUs and GPUs have a multiple of 8 rows

# Part of the seed of the order, so that it differs from other uses of the seed.
_SHUFFLE = 3

Target = np.ndarray | dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Features:
    """Tokenized examples, in the order of their file."""

    # one row for each example; for multiple choice one row for each choice
    rows: list[Row]
    # the labels [N, ...], or a dict of labels by the name of the output
    target: Target | None = None
    # a label for each token of a row, int [T]; -1 for tokens without label
    token_target: list[np.ndarray] | None = None
    # sample weights, float32 [N]; all 1 if None
    weight: np.ndarray | None = None
    # number of choices of an example, each of which is a row; or None
    choices: int | None = None
    # the group of each example, if groups are also scored separately
    groups: list[str] | None = None
    # additional inputs in training -> the names of the targets that they equal
    inputs_from_targets: dict[str, str] = dataclasses.field(
        default_factory=dict
    )
    # an entry for each example before it was split into rows: how many rows it
    # has (windows, words), or what the task needs to decode the outputs
    # (questions, texts); None if each example is a row
    source: Sized | None = None
    # probabilities above which labels are predicted; see tasks/decisions.py
    threshold: tuple[float, ...] | None = None
    # how the outputs of the windows of a text become those of the text, mean
    # or max; `source` has the number of windows of each text, and `target` a
    # label for each text, until `as_rows`. None: a text is a single row
    pooling: str | None = None

    def __post_init__(self):
        if not self.rows:
            raise AlbertError("no examples. Expected one or more.")

    def __len__(self) -> int:
        return len(self.rows) // (self.choices or 1)

    @property
    def count(self) -> int:
        """The number of examples before they were split into rows."""
        return len(self if self.source is None else self.source)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of the longest row of each example: int64 [N]."""
        lengths = np.array([len(row.token_ids) for row in self.rows], "int64")
        return lengths.reshape(len(self), -1).max(axis=1)

    @property
    def cut(self) -> int:
        """Number of examples that were cut off."""
        is_cut = np.array([row.is_cut for row in self.rows])
        return int(is_cut.reshape(len(self), -1).any(axis=1).sum())

    def as_rows(self) -> "Features":
        """Each window as an example, with the label of its text."""
        if self.pooling is None:
            return self
        target = np.repeat(self.target, self.source, axis=0)
        return dataclasses.replace(self, target=target, pooling=None)

    def take(self, chosen: np.ndarray) -> "Features":
        """The examples with the indices `chosen`, without groups and source."""
        width = self.choices or 1
        places = (chosen[:, None] * width + np.arange(width)).ravel()
        target, marks = self.target, self.token_target
        if isinstance(target, dict):
            target = {name: value[chosen] for name, value in target.items()}
        elif target is not None:
            target = target[chosen]
        return dataclasses.replace(
            self,
            rows=[self.rows[place] for place in places],
            target=target,
            token_target=marks and [marks[i] for i in chosen],
            weight=None if self.weight is None else self.weight[chosen],
            groups=None,
            source=None,
            pooling=None,
        )

    def training_batch(
        self, chosen: np.ndarray, batch_size: int, length: int
    ) -> tuple[dict[str, np.ndarray], Target, np.ndarray]:
        """As `batch`, with the inputs that are only given in training."""
        x, y, weight = self.batch(chosen, batch_size, length)
        more = {
            name: y[target] for name, target in self.inputs_from_targets.items()
        }
        return x | more, y, weight

    def batch(
        self, chosen: np.ndarray, batch_size: int, length: int
    ) -> tuple[dict[str, np.ndarray], Target, np.ndarray]:
        """Makes a batch (x, y, sample_weight) of R examples, 1 <= R <= B.

        The batch is filled up with copies of the last example, whose weight is
        0. `chosen` are indices of examples, `batch_size` is B, and `length` S.

        Returns:
            x: int32 `token_ids`, `segment_ids`, `padding_mask` [B, S], or
            [B, C, S] with C choices; y: like `target` [B, ...], or int32 [B, S]
            for labels of tokens; the weights: float32 [B], or [B, S].
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
        given = self.weight
        weight[: len(chosen)] = 1 if given is None else given[chosen]
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


# Assigns examples to batches, and chooses the length of each.

# for each batch the indices of its examples, int64 [R], and its length S
BatchPlan = list[tuple[np.ndarray, int]]


def choose_lengths(
    lengths: np.ndarray, longest: int, most: int = MOST_LENGTHS
) -> np.ndarray:
    """Chooses the static lengths with the least padding.

    Example: nine examples have 8 tokens, one has 40 and one 64. The best two
    lengths are 8 and 64, with 24 tokens of padding; 40 and 64 would need 288.

    `lengths` are the tokens of each example, int [N], and `longest` is the
    largest length allowed, which need not be a multiple of LENGTH_STEP. The
    result has at most `most` lengths, ascending; the last one fits all.
    """
    rounded = np.minimum(-(-lengths // LENGTH_STEP) * LENGTH_STEP, longest)
    sizes, counts = np.unique(rounded, return_counts=True)
    seen = np.concatenate([[0], np.cumsum(counts)])
    # Dynamic programming. cost[j] is the tokens, with padding, of all examples
    # of the first j sizes, with as many static lengths as iterations. Another
    # iteration adds a length, for the sizes i to j - 1, with the best i.
    cost = np.concatenate([[0], np.full(len(sizes), np.inf)])
    begins = []
    for _ in range(min(most, len(sizes))):
        added = seen[1:, None] - seen[None, :-1]
        options = cost[None, :-1] + sizes[:, None] * added
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
) -> BatchPlan:
    """Divides the examples of an epoch into random batches of similar length.

    All ceil(N / B) batches are full, except the last one. Examples that do not
    fill a batch of their own length share batches with longer ones. `static`
    is the result of `choose_lengths`.

    If the last batch would have a single example, and B is above 2, the batch
    before it gives it a second one: losses that compare the examples of a batch
    teach nothing with one.
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
    last = rest[whole:]
    if len(last) == 1 and batches and batch_size > 2:
        *batches, before = batches
        batches.append(before[:-1])
        last = np.append(last, before[-1])
    if len(last):
        batches.append(last)
    return [(each, _length_of(each, lengths, static)) for each in batches]


def sorted_plan(
    lengths: np.ndarray, static: np.ndarray, batch_size: int
) -> BatchPlan:
    """Divides the examples into batches, the shortest first."""
    order = np.argsort(lengths, kind="stable")
    return [
        (chosen, _length_of(chosen, lengths, static))
        for start in range(0, len(order), batch_size)
        for chosen in [order[start : start + batch_size]]
    ]


def _length_of(chosen, lengths, static) -> int:
    return int(static[np.searchsorted(static, lengths[chosen].max())])


# Makes the batches of a plan.


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
    """Makes a tf.data.Dataset of training batches (x, y, sample_weight).

    Each example occurs once in each epoch. The shapes are those of
    `Features.training_batch`, but S is None in `element_spec`. `batch_size`
    counts the examples of all hosts, `static` is the result of
    `choose_lengths`, and the first `start_step` batches are not computed.
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
                if host_count > 1:
                    batch = tf.nest.map_structure(lambda x: x[mine], batch)
                yield batch

    # A batch whose rows are as long as any; its length S is not static.
    longest = int(features.lengths.max())
    example = features.training_batch(np.zeros(1, "int64"), len(mine), longest)

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
    count = epochs * steps - start_step
    return without_tuning(batch_dataset(batches, signature, count))
