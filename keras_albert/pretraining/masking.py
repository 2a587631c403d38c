"""N-gram masking of pretraining examples, as a TensorFlow graph.

    find_words     finds where words begin
    draw_visits    draws a random order of the words, and a number for each n
    choose_ngrams  takes n-grams in that order until the budget is used up
    replace        replaces tokens: 80 % [MASK], 10 % random, 10 % unchanged
    lay_out        positions of packed examples in their row
    pack           [CLS] A [SEP] B [SEP]
    gather_used    the predictions of packed examples, by row

The algorithm is that of the reference's create_masked_lm_predictions, which
loops over examples and words in Python. Here all examples of a batch are
processed together, by operations on arrays; the random order is a sort.

Shapes: B examples in a batch, S sequence length, W = S - 2 tokens of text (A,
then B, without special tokens, so that these are never masked), P the most
predictions of an example, N the longest n-gram, V vocabulary. If examples are
packed, a batch has R rows of up to K examples and Q predictions, and B differs
between batches.

Arguments of several functions, all int32 if not stated otherwise:

    length_a [B], length [B]    tokens of A, and of A and B together
    num_tokens [B]              tokens of an example, with special tokens
    num_words [B]               words of an example
    edges [B, W + N]            where words begin, see `find_words`
    visits int64 [B, W]         random order of the words, see `draw_visits`
    counts [R]                  examples in each packed row
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_albert.pretraining.config import ExampleConfig
from keras_albert.pretraining.counter_rng import fold
from keras_albert.pretraining.segments import REPLACE, VISIT
from keras_albert.text.special_tokens import CLS_ID, MASK_ID, SEP_ID

# Shares of predictions that become [MASK], or stay; others are random.
MASK_SHARE, KEEP_SHARE = 0.8, 0.1

# A visit is one int64 for each word of a text:
#
#     bit  63     62 ... 36           35 ... 16            15 ... 0
#          sign   random order (27)   random number (20)   word (16)
#
# Sorting these integers gives the words in random order, because the random
# bits are the highest. After the sort, each integer still tells which word it
# belongs to and the random number from which the n of its n-gram is drawn, so
# that one sort suffices and nothing must be gathered in its order. The word in
# the lowest bits also makes all visits different: the order cannot depend on
# the sorting algorithm. The sign bit is 0; -1 marks padding and is sorted last.
_WORD_BITS, _NGRAM_BITS = 16, 20
# How many visits to try first, for each prediction of the budget. With a budget
# of 20, none of 2048 rows needed more than 20 visits.
FIRST_VISITS = 1.5
# The random bits of a replacement are split into two halves: the upper one
# draws its kind ([MASK], random, unchanged), the lower one the random token.
_HALF_BITS = 32


class ExampleBatch(NamedTuple):
    """A batch of examples before masking."""

    text: tf.Tensor
    """int32 [B, W]: tokens of A, then of B, then zeros"""
    lengths: tf.Tensor
    """int32 [B, 2]: numbers of tokens of A and of B"""
    labels: tf.Tensor
    """int32 [B]: 1 if A and B were swapped (SOP), or B was replaced (NSP)"""
    weights: tf.Tensor
    """float32 [B]: 1; 0 for examples that only fill up the last batch"""
    keys: tf.Tensor
    """uint64 [B]: random keys, see `example_keys`"""
    counts: tf.Tensor | None = None
    """int32 [R]: examples in each packed row, 1 to K; None without packing"""


# Without AutoGraph, which this function does not need, tracing is faster.
@tf.autograph.experimental.do_not_convert
def build_batch(
    batch: ExampleBatch, word_starts: np.ndarray, examples: ExampleConfig
) -> tuple[dict, dict, dict]:
    """Masks a batch of examples and builds the inputs of the model.

    `word_starts` is that of the tokenizer.

    Returns:
        x: int32 `token_ids`, `segment_ids`, `padding_mask` [B, S] and
            `masked_positions` [B, P]
        y: int32 `mlm` [B, P], and [B] by the name of the sentence task, if any
        sample_weight: float32, with the keys and shapes of y; the weight of
            the sentence task is 0 for an example without B

        Unused predictions have position, label and weight 0.

        If examples are packed, the shapes have R and Q instead of B and P, and
        [R, K] for the sentence task. x then also has int32 `example_ids` (1
        to K, 0 for padding) and `position_ids` (position in the example)
        [R, S], and `cls_positions` [R, K].
    """
    length_a = batch.lengths[:, 0]
    has_b = batch.lengths[:, 1] > 0
    num_tokens = (
        tf.reduce_sum(batch.lengths, axis=1) + 2 + tf.cast(has_b, tf.int32)
    )
    masked, positions, labels, used = mask(
        batch, num_tokens, word_starts, examples
    )
    weights = tf.cast(used, tf.float32) * batch.weights[:, None]
    task = batch.labels, tf.cast(has_b, tf.float32) * batch.weights
    if batch.counts is None:
        example = _numbers(length_a)[:, None]  # [B, 1]
        places = tf.range(examples.sequence_length)[None]  # [1, S]
        x = pack(masked, length_a, num_tokens, example, places)
    else:
        offsets, numbers, example, places = lay_out(
            num_tokens, batch.counts, examples.sequence_length
        )
        x = pack(masked, length_a, num_tokens, example, places)
        x["example_ids"] = numbers * x["padding_mask"]
        x["position_ids"] = places * x["padding_mask"]
        positions, labels, weights = gather_used(
            (positions + offsets[:, None], labels, weights),
            used,
            batch.counts,
            examples.row_predictions,
        )
        slots = examples.max_examples
        x["cls_positions"] = _side_by_side(offsets, batch.counts, slots)
        task = [_side_by_side(part, batch.counts, slots) for part in task]
    x["masked_positions"] = positions
    y, weight = {"mlm": labels}, {"mlm": weights}
    if examples.sentence_task != "none":
        y[examples.sentence_task], weight[examples.sentence_task] = task
    return x, y, weight


def mask(
    batch: ExampleBatch,
    num_tokens: tf.Tensor,
    word_starts: np.ndarray,
    examples: ExampleConfig,
) -> tuple[tf.Tensor, ...]:
    """Chooses and replaces the tokens to predict.

    Returns int32 [B, W], the masked text; and int32 [B, P]: positions of the
    predictions in `[CLS] A [SEP] B [SEP]`, their labels, and 1 if used.
    """
    length_a, length = batch.lengths[:, 0], tf.reduce_sum(batch.lengths, axis=1)
    edges, num_words = find_words(
        batch.text, length_a, length, word_starts, examples
    )
    starts, ends = choose_ngrams(
        draw_visits(batch.keys, num_words, batch.text.shape[1]),
        num_words,
        edges,
        length_a,
        length,
        budgets(num_tokens, examples),
        examples,
    )
    positions, used = list_positions(starts, ends)  # [B, P]
    labels = tf.gather(batch.text, positions, batch_dims=1) * used
    masked = replace(batch, positions, labels, used, len(word_starts))
    # From the text to the row: [CLS] before A, and a [SEP] between A and B.
    after_a = tf.cast(positions >= length_a[:, None], tf.int32)
    return masked, (positions + 1 + after_a) * used, labels, used


def budgets(num_tokens: tf.Tensor, examples: ExampleConfig) -> tf.Tensor:
    """How many tokens of each example to predict: int32 [B].

    It is rounded as in Python (half to even, float64), as by the reference.
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
    """Finds the positions at which words begin.

    The first token of A begins a word, even if truncation has cut off the real
    beginning; so does that of B, unless n-grams may cross [SEP].

    Returns `edges`, the position of each word's first token and W after the
    last word, and `num_words`. N extra columns of `edges` allow `draw_ngrams`
    to look N words ahead of any word.
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
    """Draws a visit for each word; see the comment on `_WORD_BITS`.

    Visits are -1 from `num_words` on. The highest integer is visited first.
    """
    words = np.arange(width)
    random = fold(_use(keys, VISIT)[:, None], words, tf.bitwise)  # [B, W]
    # 47 random bits are kept: the sign bit and the bits of the word are free.
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
    """Chooses the whole-word n-grams to mask (Paper 4.1).

    Words are visited in random order. At each word an n up to N is drawn with
    p(n) proportional to 1/n, and the n-gram that begins there is taken, up to
    the end of its segment. An n-gram that exceeds the rest of the budget is
    shortened word by word. It is skipped if no word fits, or it overlaps an
    n-gram taken before. `budget`, int32 [B], is the most tokens to mask.

    Returns int32 [B, P] twice: begin and end of each n-gram, W and 0 if unused.
    """
    width = visits.shape[1]
    zeros = tf.zeros_like(budget)
    none = tf.tile(zeros[None], [examples.num_predictions, 1])  # [P, B]
    state = (budget, zeros, none + width, none)

    def visit(some, words, state):
        ngrams = draw_ngrams(some, edges, length_a, length, examples)
        return take_ngrams(*ngrams, words, *state)

    # Most examples use up their budget in few visits. Therefore only the first
    # ones are sorted (top_k); all are sorted only if some example needs more.
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
    """Draws the n-grams of T visits, int64 [B, T], in their order.

    Returns int32 [T, B]: where each n-gram begins; int32 [T, N, B]: where its
    first 1, 2, ... N words end, but 0 for more words than the drawn n.
    """
    sizes = tf.range(1, examples.ngram + 1)[:, None]  # [N, 1]
    thresholds = ngram_thresholds(examples.ngram)[:, None]  # [N - 1, 1]
    visits = tf.transpose(visits)
    # Takes the fields out of each visit, see the comment on `_WORD_BITS`.
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
    ends = tf.gather(edges, first[:, None] + sizes)  # [T, N, B]
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
    """Takes n-grams within the budget, in the order of the visits.

    Visits depend on one another: this is a loop over t. In each iteration all
    examples make their visit t, until none has budget and words left.

    Args:
        starts, ends: see `draw_ngrams`.
        num_words: int32 [B], how many of the T visits an example has.
        left: int32 [B], the rest of the budget, in tokens.
        count: int32 [B], number of n-grams taken before.
        taken_starts, taken_ends: int32 [P, B], where these begin and end.

    Returns the new values of the last four arguments.
    """
    slots = tf.range(taken_starts.shape[0])[:, None]  # [P, 1]

    def goes_on(visit, left, *_):
        return tf.reduce_any((left > 0) & (visit < num_words))

    def make(visit, left, count, taken_starts, taken_ends):
        start, candidates = starts[visit], ends[visit]  # [B], [N, B]
        # `candidates` are the ends after 1, 2, ... n words: the largest one
        # within the budget shortens the n-gram word by word.
        fits = candidates <= start + left
        end = tf.reduce_max(tf.where(fits, candidates, 0), axis=0)
        overlaps = (taken_starts < end) & (taken_ends > start)  # [P, B]
        take = (end > start) & ~tf.reduce_any(overlaps, axis=0)
        # The loop has no arrays that can be appended to: the n-gram is written
        # to slot number `count` of a fixed number of slots.
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
    """The cumulative distribution of n, scaled to 20 bits: int64 [N - 1].

    With p(n) proportional to 1/n, the probability of at most n is
    (1 + 1/2 + ... + 1/n) / (1 + 1/2 + ... + 1/N). The n of a random number
    below 2**20 is 1 plus how many thresholds it reaches.
    """
    harmonic = np.cumsum(1 / np.arange(1, ngram + 1))
    parts = harmonic[:-1] / harmonic[-1] * 2**_NGRAM_BITS
    return np.rint(parts).astype("int64")


def list_positions(
    starts: tf.Tensor, ends: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Lists the positions in disjoint intervals, int32 [B, P], ascending.

    Returns int32 [B, P] positions, 0 if unused; int32 [B, P], 1 if used.

    Example: the intervals 7:9 and 3:4 give 3, 7, 8.
    """
    order = tf.argsort(starts, axis=1)
    starts = tf.gather(starts, order, batch_dims=1)
    ends = tf.gather(ends, order, batch_dims=1)
    sizes = tf.maximum(ends - starts, 0)
    # Slot i is in the first interval up to whose end are more than i positions.
    before_end = tf.cumsum(sizes, axis=1)
    slots = tf.broadcast_to(tf.range(starts.shape[1]), tf.shape(starts))
    used = tf.cast(slots < before_end[:, -1:], tf.int32)
    interval = tf.searchsorted(before_end, slots, side="right")
    interval = tf.minimum(interval, starts.shape[1] - 1)
    offset = tf.gather(starts - before_end + sizes, interval, batch_dims=1)
    return (offset + slots) * used, used


def replace(
    batch: ExampleBatch,
    positions: tf.Tensor,
    labels: tf.Tensor,
    used: tf.Tensor,
    vocab_size: int,
) -> tf.Tensor:
    """Replaces the predicted tokens of the text: int32 [B, W].

    The tokens are `labels`, at `positions` of the text, both int32 [B, P];
    `used` is 0 for entries without a prediction.
    """
    slots = np.arange(positions.shape[1])
    keys = _use(batch.keys, REPLACE)[:, None]
    random = fold(keys, slots, tf.bitwise)  # [B, P]
    # The upper half as a number in [0, 1), and the lower half scaled to 0 to
    # V - 1: (random * V) >> 32 needs no division.
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
    # The differences are added, since all unused predictions point at position
    # 0: theirs are 0, whereas an assignment would overwrite the first token.
    return tf.tensor_scatter_nd_add(
        batch.text, tf.stack([row, positions], axis=-1), (new - labels) * used
    )


def lay_out(
    num_tokens: tf.Tensor, counts: tf.Tensor, sequence_length: int
) -> tuple[tf.Tensor, ...]:
    """Lays out the examples of each packed row one after another.

    Returns:
        offsets: int32 [B], the position in its row at which an example begins.
        numbers: int32 [R, S], the number in the row, from 1, of the example at
            each position; padding counts as part of the last one.
        example: int32 [R, S], the number of that example in the batch.
        places: int32 [R, S], the position in that example.

    Example: for 3 and 4 tokens in a row of 8, offsets are 0, 3; numbers are 1 1
    1 2 2 2 2 2; example is 0 0 0 1 1 1 1 1; places are 0 1 2 0 1 2 3 4.
    """
    # A 1 is scattered to the position at which each example begins; the
    # cumulative sum along the row then numbers the examples.
    first = tf.cumsum(counts, exclusive=True)  # first example of each row
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
    """Builds rows of `[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]` without B.

    `example` and `places`, int32, broadcast to [R, S], are the example at each
    position of the result, and the position in that example.

    Returns int32 [R, S] `token_ids`, `segment_ids` (0 up to the first [SEP],
    then 1) and `padding_mask`; all are 0 after the end of an example.

    Example: with [CLS] = 2, [SEP] = 3, A = [7, 8] and B = [9], token ids are
    [2, 7, 8, 3, 9, 3] and segment ids [0, 0, 0, 0, 1, 1].
    """
    # Computed backwards: each position of the result looks up its token. The
    # special tokens are written over the tokens found at their positions.
    # A position p of an example holds token p - 1 of its text, because of
    # [CLS]; or p - 2 after the [SEP] between A and B.
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
    """Collects the used predictions of packed examples by row.

    Tensors [B, P], such as labels, become [R, Q], padded with 0; `room` is Q.
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
    """Splits `values` into rows of `sizes` [R] and pads them: [R, width]."""
    rows = tf.RaggedTensor.from_row_lengths(values, sizes, validate=False)
    return rows.to_tensor(shape=(sizes.shape[0], width))


def _numbers(like: tf.Tensor) -> tf.Tensor:
    """int32 [B]: 0, 1, ..., B - 1 for a tensor [B], whose B may be unknown."""
    return tf.cumsum(tf.ones_like(like)) - 1


def _use(keys: tf.Tensor, use: int) -> tf.Tensor:
    return fold(keys, use, tf.bitwise)
