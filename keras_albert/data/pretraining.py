"""Token shards to masked pretraining examples, cut and masked on the fly.

Every example is a pure function of (seed, epoch, index), so masks are fresh in
each epoch and a run can start at any step:

    plan_epoch    documents -> spans, shuffled     (what is in an example)
    build_example span -> [CLS] A [SEP] B [SEP]    (order, truncation)
    mask_tokens   tokens -> masked tokens, labels  (n-gram masking)
    build_batch   rows of a plan -> (x, y, sample_weight)

Shapes: B examples in a batch, S sequence length, P most predictions in an
example, N examples in an epoch, T tokens of one example, V vocabulary.

The algorithm is that of the reference's create_pretraining_data.py, with these
departures:

1. A chunk of a single sentence becomes `[CLS] A [SEP]` with sentence-order
   weight 0. The reference takes B from a random other document and labels it
   "swapped", which teaches topic and not order.
2. No word and no n-gram reaches over a [SEP].
3. Near the end of a segment n is drawn among the lengths that fit. The
   reference draws from all, then takes what is left.
"""

import functools
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np

from keras_albert.config import (
    CLS_ID,
    MASK_ID,
    SEP_ID,
    AlbertError,
    ExampleConfig,
    check_positive,
    check_seed,
)
from keras_albert.data.shards import Shard, ShardSet

MASK_SHARE, KEEP_SHARE = 0.8, 0.1  # of predicted tokens; the rest is random
SHORTEST_TARGET = 2  # tokens; create_instances_from_document

# Columns of a plan.
DOCUMENT, FIRST, SPLIT, END, SWAPPED = range(5)

# Keeps the random streams of plans and of examples apart.
_PLAN, _EXAMPLE = 1, 2

Batch = tuple[
    dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]
]


def plan_epoch(
    shards: ShardSet, examples: ExampleConfig, seed: int, epoch: int
) -> np.ndarray:
    """The examples of an epoch, shuffled over all documents.

    Each document draws one target length: `sequence_length - 3` tokens, or
    with `short_seq_prob` a uniform shorter one. Sentences are taken until
    they reach it or the document ends. The first of a chunk's n sentences, 1
    to n - 1 of them with equal chance, are one segment, the others the second.

    Returns:
        int64 [N, 5]; columns: document, first sentence, first sentence of the
        second segment, end, swapped (0 or 1). Sentences count from 0 in each
        document; split == end marks a chunk of a single sentence.
    """
    rng = np.random.default_rng((seed, _PLAN, epoch))
    longest = examples.sequence_length - 3
    parts, first_document = [], 0
    for shard in shards.shards:
        count = len(shard.documents) - 1
        short = rng.random(count) < examples.short_seq_prob
        targets = rng.integers(SHORTEST_TARGET, longest, count, endpoint=True)
        chunks = cut_documents(shard, np.where(short, targets, longest))
        chunks[:, 0] += first_document
        parts.append(chunks)
        first_document += count
    chunks = np.concatenate(parts)
    document, first, end = chunks[rng.permutation(len(chunks))].T
    several = end - first > 1
    split = first + rng.integers(1, np.where(several, end - first, 2))
    swapped = several & (rng.random(len(chunks)) < 0.5)
    return np.stack([document, first, split, end, swapped], axis=1)


def cut_documents(shard: Shard, targets: np.ndarray) -> np.ndarray:
    """Cuts each document into chunks that reach its target length.

    Args:
        shard: D documents.
        targets: int [D], tokens.

    Returns:
        int64 [N, 3]: document, first sentence and end, both counted from 0 in
        the document.

    With sentences of 3, 4, 2 and 6 tokens and a target of 5, a document is cut
    into the sentences 0:2 (7 tokens) and 2:4 (8 tokens).
    """
    document_ends = np.asarray(shard.documents[1:])
    document = np.arange(len(targets))
    first = np.asarray(shard.documents[:-1])
    rounds = []
    while len(document):  # one chunk of every unfinished document at a time
        enough = shard.sentences[first] + targets[document]
        end = np.searchsorted(shard.sentences, enough)
        end = np.minimum(end, document_ends[document])
        rounds.append(np.stack([document, first, end], axis=1))
        unfinished = end < document_ends[document]
        document, first = document[unfinished], end[unfinished]
    chunks = np.concatenate(rounds)
    chunks = chunks[np.argsort(chunks[:, 0], kind="stable")]
    chunks[:, 1:] -= shard.documents[chunks[:, 0]][:, None]
    return chunks


def build_example(
    first: np.ndarray,
    second: np.ndarray,
    swapped: bool,
    sequence_length: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """`[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]` where `second` is empty.

    A is `first` and B is `second`, or the other way round when swapped. What
    is too long is cut token by token from the longer one (from B when they
    are equally long), at its front or its back with equal chance.

    Args:
        first, second: int [.], the segments in the order of the document.

    Returns:
        token_ids and segment_ids (0 up to the first [SEP]), int32 [T] with T
        up to `sequence_length`.

    With 2 = [CLS] and 3 = [SEP], first = [7, 8], second = [9] and swapped:
    [2, 9, 3, 7, 8, 3] and [0, 0, 0, 1, 1, 1].
    """
    a, b = (second, first) if swapped else (first, second)
    room = sequence_length - (3 if len(b) else 2)
    if len(a) + len(b) > room:
        # The closed form of removing one token of the longer at a time.
        keep_a = max((room + 1) // 2, room - len(b))
        keep_b = max(room // 2, room - len(a))
        a, b = _cut(a, keep_a, rng), _cut(b, keep_b, rng)
    end_of_a = len(a) + 2
    length = end_of_a + (len(b) + 1 if len(b) else 0)
    token_ids = np.full(length, SEP_ID, "int32")
    token_ids[0] = CLS_ID
    token_ids[1 : end_of_a - 1] = a
    token_ids[end_of_a : length - 1] = b
    segment_ids = np.zeros(length, "int32")
    segment_ids[end_of_a:] = 1
    return token_ids, segment_ids


def _cut(tokens: np.ndarray, keep: int, rng: np.random.Generator) -> np.ndarray:
    excess = len(tokens) - keep
    if excess <= 0:
        return tokens
    front = int(rng.binomial(excess, 0.5))
    return tokens[front : front + keep]


def mask_tokens(
    token_ids: np.ndarray,
    word_starts: np.ndarray,
    config: ExampleConfig,
    vocab_size: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks whole-word n-grams of an example (Paper 4.1).

    Words are visited in random order. At each an n up to `config.ngram` is
    drawn with p(n) proportional to 1/n. An n-gram that exceeds what is left
    of the budget is shortened word by word; one that meets a masked token, or
    does not fit at all, is skipped. Of the chosen tokens 80 % become [MASK],
    10 % any token of the vocabulary and 10 % stay.

    Args:
        token_ids: int [T], with its [CLS] and [SEP], without padding.
        word_starts: bool [V], `Tokenizer.word_starts`.

    Returns:
        masked_ids int32 [T], sorted positions int32 [K] and labels int32 [K],
        the tokens that were there. K is at most min(max_predictions, max(1,
        round(T * masked_lm_prob))); with Python's round, as the reference.
        It can be less, even 0, where the words left are longer than the
        budget.
    """
    token_ids = np.asarray(token_ids, "int32")
    length = len(token_ids)
    budget = min(
        config.max_predictions, max(1, round(length * config.masked_lm_prob))
    )
    edges, order, sizes = _draw_ngrams(token_ids, word_starts, config, rng)
    covered = bytearray(length)
    left = budget
    for word, n in zip(order, sizes, strict=True):
        start = edges[word]
        while n and edges[word + n] - start > left:
            n -= 1
        end = edges[word + n]
        if n == 0 or covered.find(1, start, end) >= 0:
            continue
        covered[start:end] = b"\1" * (end - start)
        left -= end - start
        if left == 0:
            break
    positions = np.flatnonzero(np.frombuffer(covered, "uint8"))
    labels = token_ids[positions]
    chance, random_token = rng.random((2, budget))[:, : len(positions)]
    masked_ids = token_ids.copy()
    masked_ids[positions] = np.where(
        chance < MASK_SHARE,
        MASK_ID,
        np.where(
            chance < MASK_SHARE + KEEP_SHARE,
            labels,
            (random_token * vocab_size).astype("int32"),
        ),
    )
    return masked_ids, positions.astype("int32"), labels


def _draw_ngrams(
    token_ids: np.ndarray,
    word_starts: np.ndarray,
    config: ExampleConfig,
    rng: np.random.Generator,
) -> tuple[list[int], list[int], list[int]]:
    """A random order of words, and a random n for each.

    Returns:
        edges: where words and special tokens begin, then T. The n-gram of
            word w is edges[w] : edges[w + n].
        order: every word (never a special token) once.
        sizes: their n, in the same order.
    """
    special = (token_ids == CLS_ID) | (token_ids == SEP_ID)
    begins = word_starts[token_ids] | special
    begins[0] = True
    begins[1:] |= special[:-1]
    edges = np.flatnonzero(begins)
    is_word = ~special[edges]
    # Words up to the next special token: the longest n-gram from each.
    stops = np.append(np.flatnonzero(~is_word), len(edges))
    words = np.flatnonzero(is_word)
    words = words[np.argsort(rng.random(len(words)))]
    longest = stops[np.searchsorted(stops, words)] - words
    longest = np.minimum(longest, config.ngram)
    # harmonic[n] = 1 + 1/2 + ... + 1/n; n is drawn by inverting it.
    harmonic = _harmonic_numbers(config.ngram)
    drawn = rng.random(len(words)) * harmonic[longest]
    sizes = np.searchsorted(harmonic, drawn, side="right")
    sizes = np.minimum(sizes, longest)  # a product rounded up
    edges = np.append(edges, len(token_ids))
    return edges.tolist(), words.tolist(), sizes.tolist()


@functools.cache
def _harmonic_numbers(n: int) -> np.ndarray:
    return np.append(0, np.cumsum(1 / np.arange(1, n + 1)))


def build_batch(
    shards: ShardSet,
    examples: ExampleConfig,
    spans: np.ndarray,
    keys: list[tuple[int, int, int]],
    batch_size: int,
) -> Batch:
    """Cuts, masks and pads examples.

    Args:
        spans: int [R, 5], rows of a plan, 1 <= R <= B.
        keys: R times (seed, epoch, index): what an example's chance depends
            on.
        batch_size: B. Rows R to B - 1 repeat the last one with weight 0.

    Returns:
        x: int32 `token_ids`, `segment_ids`, `padding_mask` [B, S] and
            `masked_positions` [B, P]
        y: int32 `mlm` [B, P]; `sop` [B], 1 where the segments are swapped
        sample_weight: float32 `mlm` [B, P]; `sop` [B], 0 for a chunk of a
            single sentence

        Unused predictions have position, label and weight 0.
    """
    by_token = (batch_size, examples.sequence_length)
    by_prediction = (batch_size, examples.max_predictions)
    token_ids, segment_ids, padding_mask = np.zeros((3, *by_token), "int32")
    masked_positions, labels = np.zeros((2, *by_prediction), "int32")
    label_weights = np.zeros(by_prediction, "float32")
    order_weights = np.zeros(batch_size, "float32")
    order_labels = np.zeros(batch_size, "int32")
    word_starts = shards.tokenizer().word_starts
    rows = zip(spans.tolist(), keys, strict=True)
    for row, ((document, first, split, end, swapped), key) in enumerate(rows):
        seed, epoch, index = key
        rng = np.random.default_rng((seed, _EXAMPLE, epoch, index))
        segments = shards.spans(document, first, split, end)
        tokens, segment = build_example(
            *segments, bool(swapped), examples.sequence_length, rng
        )
        masked, positions, originals = mask_tokens(
            tokens, word_starts, examples, shards.vocab_size, rng
        )
        token_ids[row, : len(tokens)] = masked
        segment_ids[row, : len(tokens)] = segment
        padding_mask[row, : len(tokens)] = 1
        masked_positions[row, : len(positions)] = positions
        labels[row, : len(positions)] = originals
        label_weights[row, : len(positions)] = 1
        order_labels[row] = swapped
        order_weights[row] = split < end
    # A copy and not zeros: a model need not survive a row without a token.
    last = len(spans) - 1
    for values in (token_ids, segment_ids, padding_mask, masked_positions):
        values[last + 1 :] = values[last]
    return (
        {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": padding_mask,
            "masked_positions": masked_positions,
        },
        {"mlm": labels, "sop": order_labels},
        {"mlm": label_weights, "sop": order_weights},
    )


class ExampleStream:
    """The endless row of examples of a seed; any batch of it at any time.

    Epochs follow one another without a gap: the last batch of one holds the
    first examples of the next. All are counted as long as epoch 0, so that no
    earlier epoch must be planned to know where one begins. Lengths differ a
    little, with the documents that draw a short target: a longer epoch leaves
    out the last of its shuffled examples, a shorter one begins again, with
    other masks.

    Args:
        shards: the documents.
        examples: how to cut and mask them.
        seed: 0 or more.

    Raises:
        AlbertError: a negative seed.
    """

    def __init__(self, shards: ShardSet, examples: ExampleConfig, seed: int):
        check_seed(seed)
        self.shards = shards
        self.examples = examples
        self.seed = seed
        # Two, as a batch may end one epoch and begin another.
        self._plan = functools.lru_cache(maxsize=2)(
            functools.partial(plan_epoch, shards, examples, seed)
        )
        self.examples_per_epoch = len(self._plan(0))

    def batch(self, step: int, batch_size: int) -> Batch:
        """Examples `step * batch_size` and on; see `build_batch`."""
        start = step * batch_size
        return self.examples_at(range(start, start + batch_size), batch_size)

    def examples_at(self, numbers: range, batch_size: int) -> Batch:
        """A batch of the examples with these numbers in the stream."""
        spans, keys = [], []
        for number in numbers:
            epoch, index = divmod(number, self.examples_per_epoch)
            plan = self._plan(epoch)
            spans.append(plan[index % len(plan)])
            keys.append((self.seed, epoch, index))
        return build_batch(
            self.shards, self.examples, np.stack(spans), keys, batch_size
        )


def pretraining_dataset(
    shards: ShardSet,
    examples: ExampleConfig,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    steps: int | None = None,
):
    """tf.data.Dataset of training batches (x, y, sample_weight).

    Step s depends on nothing but the arguments, `seed` and s, so a run that
    starts at `start_step` sees what the uninterrupted one would have seen; it
    starts at once. Shapes and dtypes are those of `build_batch`, all static.

    Args:
        batch_size: B.
        seed: 0 or more.
        start_step: the first step, 0 or more.
        steps: how many steps follow it; without end when None. Epochs of the
            documents follow one another, see `ExampleStream`.

    Raises:
        AlbertError: a number out of range, or no TensorFlow.
    """
    check_positive("batch_size", batch_size)
    if steps is not None:
        check_positive("steps", steps)
    if type(start_step) is not int or start_step < 0:
        raise AlbertError(
            "`start_step` must be an integer, 0 or more. "
            f"Received: start_step={start_step!r}."
        )
    stream = ExampleStream(shards, examples, seed)

    def batches() -> Iterator[Batch]:
        step = start_step
        while steps is None or step < start_step + steps:
            yield stream.batch(step, batch_size)
            step += 1

    return batch_dataset(batches, _signature(examples, batch_size), steps)


def validation_dataset(
    shards: ShardSet,
    examples: ExampleConfig,
    *,
    batch_size: int,
    seed: int = 0,
):
    """tf.data.Dataset of held-out batches: epoch 0 of a seed, each once.

    The order is that of the plan: a random one, the same every time, so that
    the first batches are a fair sample. The last batch is filled up with rows
    of weight 0.

    Raises:
        AlbertError: a number out of range, or no TensorFlow.
    """
    check_positive("batch_size", batch_size)
    stream = ExampleStream(shards, examples, seed)
    count = stream.examples_per_epoch

    def batches() -> Iterator[Batch]:
        for start in range(0, count, batch_size):
            numbers = range(start, min(start + batch_size, count))
            yield stream.examples_at(numbers, batch_size)

    return batch_dataset(
        batches, _signature(examples, batch_size), -(-count // batch_size)
    )


def _signature(examples: ExampleConfig, batch_size: int):
    tf = import_tensorflow()
    tokens = tf.TensorSpec((batch_size, examples.sequence_length), tf.int32)
    positions = tf.TensorSpec((batch_size, examples.max_predictions), tf.int32)
    return (
        {
            "token_ids": tokens,
            "segment_ids": tokens,
            "padding_mask": tokens,
            "masked_positions": positions,
        },
        {"mlm": positions, "sop": tf.TensorSpec((batch_size,), tf.int32)},
        {
            "mlm": tf.TensorSpec(positions.shape, tf.float32),
            "sop": tf.TensorSpec((batch_size,), tf.float32),
        },
    )


def batch_dataset(
    batches: Callable[[], Iterator], signature, count: int | None
):
    """tf.data.Dataset of batches made in NumPy, two of them ahead.

    Args:
        batches: called at the start of every pass over the dataset.
        signature: structure of tf.TensorSpec, as one batch.
        count: batches in a pass; None: without end.
    """
    tf = import_tensorflow()
    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=signature
    )
    cardinality = tf.data.INFINITE_CARDINALITY if count is None else count
    return dataset.apply(
        tf.data.experimental.assert_cardinality(cardinality)
    ).prefetch(2)


def import_tensorflow() -> ModuleType:
    """TensorFlow, which the package does not import on its own account.

    Raises:
        AlbertError: it is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError:
        raise AlbertError(
            "TensorFlow is needed for the tf.data pipeline: "
            "pip install 'keras-albert[tensorflow]'"
        ) from None
    return tf
