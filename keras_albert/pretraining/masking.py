"""Masked examples from the tokens of their segments, in TensorFlow graphs.

    find_words     where words begin
    draw_visits    a random order of words, and an n for each
    choose_ngrams  n-grams within the budget, first come first served
    replace        80 % [MASK], 10 % any token, 10 % as it was
    lay_out        where in a row examples are, where several share it
    pack           [CLS] A [SEP] B [SEP]
    gather_used    what is predicted in a row, where several share it

Shapes: B examples in a batch, S sequence length, W = S - 2 tokens of text (A,
then B, without special tokens, so that those are never masked), P most
predictions, N longest n-gram, V vocabulary. Nothing loops over examples. Where
these share rows, there are B examples in R rows, each of which has room for K
examples and Q predictions; B is another number in every batch.

The algorithm is that of the reference's create_masked_lm_predictions.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_albert.pretraining.config import ExampleConfig
from keras_albert.pretraining.counter_rng import fold
from keras_albert.pretraining.segments import REPLACE, VISIT
from keras_albert.text.special_tokens import CLS_ID, MASK_ID, SEP_ID

MASK_SHARE, KEEP_SHARE = 0.8, 0.1  # of predicted tokens; the rest is random

# Bits of a visit, from the lowest: its word, its n. 27 are left for its order.
_WORD_BITS, _NGRAM_BITS = 16, 20
# For each prediction. Of 2048 rows with 20 none needed more than 20 visits.
FIRST_VISITS = 1.5
_HALF_BITS = 32  # of a replacement: of its kind, and of its token


class Rows(NamedTuple):
    """Examples before masking."""

    text: tf.Tensor
    """int32 [B, W]: tokens of A, then of B, then zeros"""
    lengths: tf.Tensor
    """int32 [B, 2]: tokens of A and of B"""
    labels: tf.Tensor
    """int32 [B]: 1 where the pair was tampered with"""
    weights: tf.Tensor
    """float32 [B]: 0 for rows that only fill up a batch"""
    keys: tf.Tensor
    """uint64 [B]: `example_keys`"""
    counts: tf.Tensor | None = None
    """int32 [R]: examples in each row, 1 to K; None: each has its own"""


@tf.autograph.experimental.do_not_convert  # nothing to convert; quick to trace
def build_batch(
    rows: Rows, word_starts: np.ndarray, examples: ExampleConfig
) -> tuple[dict, dict, dict]:
    """Masks and packs a batch.

    Args:
        word_starts: bool [V], `Tokenizer.word_starts`.

    Returns:
        x: int32 `token_ids`, `segment_ids`, `padding_mask` [B, S] and
            `masked_positions` [B, P]
        y: int32 `mlm` [B, P]; of a sentence task its name, [B]
        sample_weight: float32 `mlm` [B, P]; of a sentence task its name, [B],
            0 where there is no B

        Unused predictions have position, label and weight 0.

        Where examples share rows, R and Q stand for B and P; the sentence task
        is [R, K]; and x has also `example_ids` (1 to K, 0 padding) and
        `position_ids` (in the example) [R, S], and `cls_positions` [R, K].
    """
    length_a, length = rows.lengths[:, 0], tf.reduce_sum(rows.lengths, axis=1)
    has_b = rows.lengths[:, 1] > 0
    num_tokens = length + 2 + tf.cast(has_b, tf.int32)
    edges, num_words = find_words(
        rows.text, length_a, length, word_starts, examples
    )
    starts, ends = choose_ngrams(
        draw_visits(rows.keys, num_words, rows.text.shape[1]),
        num_words,
        edges,
        length_a,
        length,
        budgets(num_tokens, examples),
        examples,
    )
    positions, used = list_positions(starts, ends)  # [B, P]
    labels = tf.gather(rows.text, positions, batch_dims=1) * used
    masked = replace(rows, positions, labels, used, len(word_starts))
    after_a = tf.cast(positions >= length_a[:, None], tf.int32)
    positions = (positions + 1 + after_a) * used
    weights = tf.cast(used, tf.float32) * rows.weights[:, None]
    order = rows.labels, tf.cast(has_b, tf.float32) * rows.weights
    sequence_length = examples.sequence_length
    if rows.counts is None:
        example = _numbers(length)[:, None]  # [B, 1]
        places = tf.range(sequence_length)[None]  # [1, S]
        x = pack(masked, length_a, num_tokens, example, places)
    else:
        offsets, numbers, example, places = lay_out(
            num_tokens, rows.counts, sequence_length
        )
        x = pack(masked, length_a, num_tokens, example, places)
        x["example_ids"] = numbers * x["padding_mask"]
        x["position_ids"] = places * x["padding_mask"]
        positions, labels, weights = gather_used(
            (positions + offsets[:, None], labels, weights),
            used,
            rows.counts,
            examples.row_predictions,
        )
        slots = examples.max_examples
        x["cls_positions"] = _side_by_side(offsets, rows.counts, slots)
        order = [_side_by_side(part, rows.counts, slots) for part in order]
    x["masked_positions"] = positions
    y, weight = {"mlm": labels}, {"mlm": weights}
    if examples.sentence_task != "none":
        y[examples.sentence_task], weight[examples.sentence_task] = order
    return x, y, weight


def budgets(num_tokens: tf.Tensor, examples: ExampleConfig) -> tf.Tensor:
    """int32 [B] tokens, special ones included -> how many to predict.

    Rounded as Python does, half to even, in float64.
    """
    share = tf.cast(num_tokens, tf.float64) * examples.masked_lm_prob
    budget = tf.maximum(tf.cast(tf.round(share), tf.int32), 1)
    return tf.minimum(budget, examples.num_predictions)


def find_words(
    text: tf.Tensor,
    length_a: tf.Tensor,
    length: tf.Tensor,
    word_starts: np.ndarray,
    examples: ExampleConfig,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Where words begin.

    A begins with a word even where truncation left the rest of one, and so
    does B, unless n-grams may cross [SEP].

    Returns:
        edges: int32 [B, W + N]: where each word begins; after the last word W
            or more.
        num_words: int32 [B].
    """
    width = text.shape[1]
    columns = tf.range(width)[None]  # [1, W]
    begins = tf.gather(tf.constant(word_starts), text) | (columns == 0)
    if not examples.cross_sep:
        begins |= columns == length_a[:, None]
    begins &= columns < length[:, None]
    num_words = tf.reduce_sum(tf.cast(begins, tf.int32), axis=1)
    edges = tf.RaggedTensor.from_row_lengths(
        tf.cast(tf.where(begins)[:, 1], tf.int32), num_words, validate=False
    )
    shape = (text.shape[0], width + examples.ngram)
    return edges.to_tensor(default_value=width, shape=shape), num_words


def draw_visits(keys: tf.Tensor, num_words: tf.Tensor, width: int) -> tf.Tensor:
    """What puts the words of each row in random order, largest first.

    Returns:
        int64 [B, W]: from high to low bits a place in the order, a number to
        draw n with, and the number of the word; -1 from `num_words` on.
    """
    words = np.arange(width)
    random = fold(_use(keys, VISIT)[:, None], words, tf.bitwise)  # [B, W]
    random = tf.bitwise.right_shift(random, np.uint64(1 + _WORD_BITS))
    visits = tf.cast(random, tf.int64) * 2**_WORD_BITS + words
    return tf.where(words < num_words[:, None], visits, -1)


def choose_ngrams(
    visits: tf.Tensor,
    num_words: tf.Tensor,
    edges: tf.Tensor,
    length_a: tf.Tensor,
    length: tf.Tensor,
    budget: tf.Tensor,
    examples: ExampleConfig,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Whole-word n-grams to mask (Paper 4.1).

    Words are visited in random order. At each an n up to N is drawn with p(n)
    proportional to 1/n, and what the segment has of these words is taken. If
    it exceeds what is left of the budget, it is shortened word by word; if it
    meets a token taken before, or does not fit at all, it is skipped.

    Args:
        visits: `draw_visits`.
        num_words, edges: `find_words`.
        length_a, length: int32 [B], tokens of A, and of A and B.
        budget: int32 [B], tokens.

    Returns:
        int32 [B, P], [B, P]: where each n-gram begins and ends. Unused: W, 0.
    """
    width = visits.shape[1]
    zeros = tf.zeros_like(budget)
    none = tf.tile(zeros[None], [examples.num_predictions, 1])  # [P, B]
    state = (budget, zeros, none + width, none)

    def visit(some, words, state):
        ngrams = draw_ngrams(some, edges, length_a, length, examples)
        return take_ngrams(*ngrams, words, *state)

    # Hardly any example needs more visits: few are sorted, and rarely all.
    first = min(int(FIRST_VISITS * examples.num_predictions), width)
    left, *_ = state = visit(tf.math.top_k(visits, first)[0], num_words, state)
    rest = num_words - first
    *_, taken_starts, taken_ends = tf.cond(
        tf.reduce_any((left > 0) & (rest > 0)),
        lambda: visit(
            tf.sort(visits, direction="DESCENDING")[:, first:], rest, state
        ),
        lambda: state,
    )
    return tf.transpose(taken_starts), tf.transpose(taken_ends)


def draw_ngrams(
    visits: tf.Tensor,
    edges: tf.Tensor,
    length_a: tf.Tensor,
    length: tf.Tensor,
    examples: ExampleConfig,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The n-grams of R visits.

    Args:
        visits: int64 [B, R].

    Returns:
        int32 [R, B]: where they begin; int32 [R, N, B]: where the first 1 to n
        of their words end, and 0 for more than the n that is drawn.
    """
    sizes = tf.range(1, examples.ngram + 1)[:, None]  # [N, 1]
    thresholds = ngram_thresholds(examples.ngram)[:, None]  # [N - 1, 1]
    visits = tf.transpose(visits)
    real = tf.maximum(visits, 0)
    word = tf.cast(real % 2**_WORD_BITS, tf.int32)
    random = real // 2**_WORD_BITS % 2**_NGRAM_BITS
    reached = tf.cast(random[:, None] >= thresholds, tf.int32)
    drawn = 1 + tf.reduce_sum(reached, axis=1)
    drawn = tf.where(visits >= 0, drawn, 0)
    first = word + _numbers(length) * edges.shape[1]
    edges = tf.reshape(edges, [-1])
    starts = tf.gather(edges, first)
    reach_of_a = length if examples.cross_sep else length_a
    reach = tf.where(starts < length_a, reach_of_a, length)
    ends = tf.gather(edges, first[:, None] + sizes)  # [R, N, B]
    ends = tf.minimum(ends, reach[:, None])
    return starts, tf.where(sizes <= drawn[:, None], ends, 0)


def take_ngrams(
    starts: tf.Tensor,
    ends: tf.Tensor,
    num_words: tf.Tensor,
    left: tf.Tensor,
    count: tf.Tensor,
    taken_starts: tf.Tensor,
    taken_ends: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    """Takes n-grams within the budget, those of earlier visits first.

    All rows make their visit r together, until none has a budget and a word
    left.

    Args:
        starts, ends: int32 [R, B], [R, N, B], `draw_ngrams`.
        num_words: int32 [B], how many of the R visits a row can make.
        left: int32 [B], tokens that may still be taken.
        count: int32 [B], n-grams taken before.
        taken_starts, taken_ends: int32 [P, B], and where they are.

    Returns:
        The last four, after the visits.
    """
    slots = tf.range(taken_starts.shape[0])[:, None]  # [P, 1]

    def goes_on(visit, left, *_):
        return tf.reduce_any((left > 0) & (visit < num_words))

    def make(visit, left, count, taken_starts, taken_ends):
        start, candidates = starts[visit], ends[visit]  # [B], [N, B]
        fits = candidates <= start + left
        end = tf.reduce_max(tf.where(fits, candidates, 0), axis=0)
        meets = (taken_starts < end) & (taken_ends > start)  # [P, B]
        take = (end > start) & ~tf.reduce_any(meets, axis=0)
        here = take & (slots == count)
        return (
            visit + 1,
            left - tf.where(take, end - start, 0),
            count + tf.cast(take, tf.int32),
            tf.where(here, start, taken_starts),
            tf.where(here, end, taken_ends),
        )

    _, *state = tf.while_loop(
        goes_on,
        make,
        (tf.constant(0), left, count, taken_starts, taken_ends),
        maximum_iterations=starts.shape[0],
    )
    return tuple(state)


def ngram_thresholds(ngram: int) -> np.ndarray:
    """int64 [N - 1]: n is 1 + how many of them its number reaches.

    (1 + 1/2 + ... + 1/n) / (1 + 1/2 + ... + 1/N), in parts of 2**20.
    """
    harmonic = np.cumsum(1 / np.arange(1, ngram + 1))
    parts = harmonic[:-1] / harmonic[-1] * 2**_NGRAM_BITS
    return np.rint(parts).astype("int64")


def list_positions(
    starts: tf.Tensor, ends: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Intervals that do not meet -> the positions in them, growing.

    Returns:
        int32 [B, P] positions, 0 where unused; int32 [B, P], 1 where used.

    Intervals 7:9 and 3:4 give 3, 7, 8.
    """
    order = tf.argsort(starts, axis=1)
    starts = tf.gather(starts, order, batch_dims=1)
    ends = tf.gather(ends, order, batch_dims=1)
    sizes = tf.maximum(ends - starts, 0)
    before_end = tf.cumsum(sizes, axis=1)  # positions up to each interval
    slots = tf.broadcast_to(tf.range(starts.shape[1]), tf.shape(starts))
    used = tf.cast(slots < before_end[:, -1:], tf.int32)
    interval = tf.searchsorted(before_end, slots, side="right")
    interval = tf.minimum(interval, starts.shape[1] - 1)
    offset = tf.gather(starts - before_end + sizes, interval, batch_dims=1)
    return (offset + slots) * used, used


def replace(
    rows: Rows,
    positions: tf.Tensor,
    labels: tf.Tensor,
    used: tf.Tensor,
    vocab_size: int,
) -> tf.Tensor:
    """int32 [B, W]: the text with its predicted tokens replaced."""
    slots = np.arange(positions.shape[1])
    random = fold(
        _use(rows.keys, REPLACE)[:, None], slots, tf.bitwise
    )  # [B, P]
    kind = tf.bitwise.right_shift(random, np.uint64(_HALF_BITS))
    kind = tf.cast(kind, tf.float64) * 2.0**-_HALF_BITS
    token = tf.bitwise.bitwise_and(random, np.uint64(2**_HALF_BITS - 1))
    token = tf.bitwise.right_shift(
        token * np.uint64(vocab_size), np.uint64(_HALF_BITS)
    )
    new = tf.where(
        kind < MASK_SHARE,
        MASK_ID,
        tf.where(
            kind < MASK_SHARE + KEEP_SHARE, labels, tf.cast(token, tf.int32)
        ),
    )
    row = _numbers(positions[:, 0])[:, None] + tf.zeros_like(positions)
    # Added, as unused predictions all point at position 0.
    return tf.tensor_scatter_nd_add(
        rows.text, tf.stack([row, positions], axis=-1), (new - labels) * used
    )


def lay_out(
    num_tokens: tf.Tensor, counts: tf.Tensor, sequence_length: int
) -> tuple[tf.Tensor, ...]:
    """Puts the examples of each row one behind the other.

    Args:
        num_tokens: int32 [B], tokens of the examples, row by row.
        counts: int32 [R], examples in each row.

    Returns:
        int32 [B]: where in its row each example begins; and of each place in a
        row, int32 [R, S], the number of its example in the row, from 1, and in
        the batch, from 0, and its place in the example. Places behind the last
        example go on with that.

    Examples of 3 and 4 tokens in a row of 8: begin at 0, 3; 1 1 1 2 2 2 2 2;
    0 0 0 1 1 1 1 1; 0 1 2 0 1 2 3 4.
    """
    first = tf.cumsum(counts, exclusive=True)  # example of each row
    before = tf.cumsum(num_tokens, exclusive=True)
    offsets = before - tf.repeat(tf.gather(before, first), counts)
    row = tf.repeat(_numbers(counts), counts)
    shape = (counts.shape[0], sequence_length)
    begins = tf.scatter_nd(
        tf.stack([row, offsets], axis=1), tf.ones_like(row), shape
    )
    numbers = tf.cumsum(begins, axis=1)
    example = numbers - 1 + first[:, None]
    places = tf.range(sequence_length) - tf.gather(offsets, example)
    return offsets, numbers, example, places


def pack(
    text: tf.Tensor,
    length_a: tf.Tensor,
    num_tokens: tf.Tensor,
    example: tf.Tensor,
    places: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """`[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]` where there is no B.

    Args:
        text: int32 [B, W]: A, then B.
        length_a: int32 [B], tokens of A.
        num_tokens: int32 [B], tokens of the example, special ones included.
        example: int32 [R, S], or of one size where it is the same: the example
            at each place of the result.
        places: int32, the same: the place in that example.

    Returns:
        int32 [R, S] `token_ids`, `segment_ids` (0 up to the first [SEP]),
        `padding_mask`; 0 behind an example.

    With 2 = [CLS] and 3 = [SEP], A = [7, 8] and B = [9]: [2, 7, 8, 3, 9, 3]
    and [0, 0, 0, 0, 1, 1].
    """
    sep = tf.gather(length_a, example) + 1
    last = tf.gather(num_tokens, example) - 1
    is_b = places > sep
    width = text.shape[1]
    source = places - 1 - tf.cast(is_b, tf.int32)
    source = tf.clip_by_value(source, 0, width - 1) + example * width
    token_ids = tf.gather(tf.reshape(text, [-1]), source)
    token_ids = tf.where((places == sep) | (places == last), SEP_ID, token_ids)
    token_ids = tf.where(places == 0, CLS_ID, token_ids)
    inside = tf.cast(places <= last, tf.int32)
    return {
        "token_ids": token_ids * inside,
        "segment_ids": tf.cast(is_b, tf.int32) * inside,
        "padding_mask": inside,
    }


def gather_used(
    predictions: tuple[tf.Tensor, ...],
    used: tf.Tensor,
    counts: tf.Tensor,
    room: int,
) -> list[tf.Tensor]:
    """The predictions of examples that share rows, without unused ones.

    Args:
        predictions: several [B, P].
        used: int32 [B, P], 1 where used.
        counts: int32 [R], examples in each row.
        room: Q.

    Returns:
        The same, [R, Q]; behind the used ones 0.
    """
    asked = tf.RaggedTensor.from_row_lengths(
        tf.reduce_sum(used, axis=1), counts, validate=False
    )
    in_rows = tf.reduce_sum(asked, axis=1)  # [R]
    chosen = tf.where(used > 0)
    return [
        _side_by_side(tf.gather_nd(part, chosen), in_rows, room)
        for part in predictions
    ]


def _side_by_side(values: tf.Tensor, sizes: tf.Tensor, width: int) -> tf.Tensor:
    """Values of the rows one after another, `sizes` [R] of each: [R, width]."""
    rows = tf.RaggedTensor.from_row_lengths(values, sizes, validate=False)
    return rows.to_tensor(shape=(sizes.shape[0], width))


def _numbers(like: tf.Tensor) -> tf.Tensor:
    """int32: 0, 1, ... as many as `like` [B] has; B may be unknown."""
    return tf.cumsum(tf.ones_like(like)) - 1


def _use(keys: tf.Tensor, use: int) -> tf.Tensor:
    return fold(keys, use, tf.bitwise)
