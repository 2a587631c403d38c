"""tf.data datasets of pretraining examples, cut and masked on the fly.

Every example is a pure function of (seed, epoch, index). Each epoch therefore
has new masks, and any host can compute any step without the steps before it:

    segments.py             cuts documents into chunks and shuffles them;
                            splits a chunk into segments A and B
    packing.py              packs short examples into rows
    corpus/token_index.py   reads the tokens of segments from memory maps
    masking.py              turns tokens into (x, y, sample_weight) batches
    this file               assigns rows to batches, in a tf.data pipeline

A row holds one example, or several if `ExampleConfig.pack` is set.

Shapes: B rows in a batch of this host, M examples in them, S sequence length,
W = S - 2.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_albert.corpus.shards import ShardSet
from keras_albert.corpus.token_index import Corpus
from keras_albert.data.input_pipeline import (
    batch_dataset,
    host_rows,
    import_tensorflow,
    without_tuning,
)
from keras_albert.distribution.config import available_cores
from keras_albert.errors import (
    AlbertError,
    check_positive,
    check_seed,
    is_whole,
)
from keras_albert.pretraining.config import ExampleConfig
from keras_albert.pretraining.counter_rng import fold
from keras_albert.pretraining.packing import Packing
from keras_albert.pretraining.segments import (
    example_keys,
    example_spans,
    plan_epoch,
)

if TYPE_CHECKING:
    import tensorflow as tf


# Share of documents of one line from which on these documents, and not the
# length of lines, are named as the cause of examples of a single sentence.
CAUSED_BY_DOCUMENTS = 0.5


def advice_on_pairs(shards: ShardSet, length: int) -> str:
    """What to do if too few examples, of `length` tokens, have two sentences.

    The cause is either that documents are single lines, or that lines are long.
    """
    if shards.share_of_single_lines >= CAUSED_BY_DOCUMENTS:
        return (
            f"{shards.share_of_single_lines:.0%} of the documents are a single "
            "line. Prepare the text with --blank-lines 2 if blank lines also "
            "stand inside documents, or with --split-sentences en if a line is "
            "a paragraph. Or let --examples.single-sentence random_document "
            "pair single sentences with others"
        )
    return (
        f"{shards.share_of_single_lines:.0%} of the documents are a single "
        f"line. Of the others, two lines may be too long for {length} tokens: "
        "raise --examples.sequence-length, or, if a line is a paragraph, "
        "prepare the text with --split-sentences en"
    )


def check_documents(corpus: Corpus, examples: ExampleConfig) -> None:
    """Raises AlbertError if examples need two documents and there is one."""
    if examples.needs_other_documents and corpus.num_documents < 2:
        cause = f"sentence_task={examples.sentence_task!r}"
        remedy = "choose another sentence task"
        if examples.sentence_task == "sop":
            cause = f"single_sentence={examples.single_sentence!r}"
            remedy = 'set single_sentence="skip_order"'
        raise AlbertError(
            f"{cause} pairs two documents, but the shards hold a single one. "
            f"Separate documents with a blank line, or {remedy}."
        )


class ExampleStream:
    """The endless sequence of rows of a seed, with access to any of them.

    Epochs follow one another without a gap: the last batch of an epoch also
    holds the first rows of the next one. Every epoch is treated as if it had
    the length of epoch 0, so that the start of an epoch is known without
    planning the earlier ones. The true lengths differ a little, since random
    documents have short targets. A longer epoch therefore omits the last of its
    shuffled rows; a shorter one repeats its first rows (with other masks,
    unless examples are packed).

    Raises AlbertError if the seed is negative, or the sentence task pairs texts
    of two documents and the shards hold only one.
    """

    def __init__(self, shards: ShardSet, examples: ExampleConfig, seed: int):
        check_seed(seed)
        self.corpus = Corpus(shards)
        self._shards = shards
        self.word_starts = shards.tokenizer().word_starts
        self.examples = examples
        self.seed = seed
        check_documents(self.corpus, examples)
        # Two plans are cached, as a batch may belong to two epochs.
        self._plan = functools.lru_cache(maxsize=2)(
            functools.partial(plan_epoch, self.corpus, examples, seed)
        )
        self.rows_per_epoch = self._plan(0).num_rows

    @property
    def packing(self) -> Packing | None:
        """The packing of epoch 0; None if examples are not packed."""
        return self._plan(0).packing

    @property
    def share_of_pairs(self) -> float:
        """Share of the examples of epoch 0 that count for the sentence task.

        An example of a single sentence has no order, and is no pair.
        """
        if self.examples.pairs_single_sentences:
            return 1.0
        return float((np.diff(self._plan(0).edges) > 1).mean())

    def check_pairs(self) -> None:
        """Raises AlbertError if no example counts for the sentence task."""
        examples = self.examples
        if examples.sentence_task != "none" and not self.share_of_pairs:
            advice = advice_on_pairs(self._shards, examples.sequence_length)
            raise AlbertError(
                f"sentence_task={examples.sentence_task!r} needs examples of "
                f"two sentences, but every one has a single sentence. {advice}."
                " Or leave the task out: --examples.sentence-task none."
            )

    def rows(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        """Reads the examples of rows, int64 [B] ascending, before masking.

        Returns int32 text [M, W], int32 lengths [M, 2], int32 labels [M] and
        uint64 keys [M], see `masking.ExampleBatch`; and int32 [B], examples per
        row.
        """
        epochs, rows = np.divmod(numbers, self.rows_per_epoch)
        parts = [
            self._examples(int(epoch), rows[epochs == epoch])
            for epoch in np.unique(epochs)
        ]
        starts, lengths, labels, keys, counts = map(
            np.concatenate, zip(*parts, strict=True)
        )
        width = self.examples.sequence_length - 2
        text = self.corpus.read(starts, lengths, width)
        lengths, counts = lengths.astype("int32"), counts.astype("int32")
        return text, lengths, labels, keys, counts

    def _examples(self, epoch: int, rows: np.ndarray) -> tuple:
        plan = self._plan(epoch)
        indices, counts = plan.examples_of(rows)
        keys = example_keys(self.seed, epoch, indices)
        spans = example_spans(self.corpus, plan, self.examples, indices, keys)
        return spans.starts, spans.lengths, spans.labels, keys, counts


def pretraining_dataset(
    shards: ShardSet,
    examples: ExampleConfig,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    steps: int | None = None,
    host_index: int = 0,
    host_count: int = 1,
) -> "tf.data.Dataset":
    """Makes a tf.data.Dataset of training batches (x, y, sample_weight).

    The batch of a step depends only on the arguments and the number of the
    step. A run that resumes at `start_step` therefore gets the batches that an
    uninterrupted run would have got, and need not compute the earlier ones. The
    examples of a step, and their masks, depend on neither `host_count` nor
    `host_index`. `masking.build_batch` has the shapes; all are static.

    Args:
        shards: the documents.
        examples: how to cut and mask them.
        batch_size: rows in a step, over all hosts.
        seed: seed of all random choices, 0 or more.
        start_step: number of the first step, 0 or more.
        steps: number of steps; None for an endless dataset.
        host_index: number of this host, from 0. It gets B rows of each step,
            from row `host_index * B` on, with B = batch_size / host_count.
        host_count: number of hosts.

    Raises:
        AlbertError: a number is out of range, no example has two segments for
            the sentence task, or TensorFlow is not installed.
    """
    rows = host_rows(batch_size, host_index, host_count)
    if steps is not None:
        check_positive("steps", steps)
    _check_start(start_step)
    stream = ExampleStream(shards, examples, seed)
    stream.check_pairs()

    def numbers() -> Iterator[np.ndarray]:
        for step in itertools.islice(itertools.count(start_step), steps):
            yield step * batch_size + rows

    return _examples_dataset(stream, numbers, len(rows), steps)


def validation_dataset(
    shards: ShardSet,
    examples: ExampleConfig,
    *,
    batch_size: int,
    seed: int = 0,
    host_index: int = 0,
    host_count: int = 1,
) -> "tf.data.Dataset":
    """Makes a tf.data.Dataset of held-out batches: epoch 0 of a seed, once.

    The order of the rows is random but the same each time, so that the first
    batches are a fair sample. The last batch is filled up with rows of weight
    0. See `pretraining_dataset` for the arguments. Raises AlbertError if a
    number is out of range, or there is no TensorFlow.
    """
    rows = host_rows(batch_size, host_index, host_count)
    stream = ExampleStream(shards, examples, seed)
    count = stream.rows_per_epoch

    def numbers() -> Iterator[np.ndarray]:
        for start in range(0, count, batch_size):
            yield start + rows

    return _examples_dataset(
        stream, numbers, len(rows), -(-count // batch_size), end=count
    )


def phased_dataset(
    shards: ShardSet,
    phases: Sequence[tuple[ExampleConfig, int]],
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    host_index: int = 0,
    host_count: int = 1,
) -> "tf.data.Dataset":
    """Makes a tf.data.Dataset of training batches in consecutive phases.

    An example is nine tenths of the steps with short sequences and the rest
    with long ones (Devlin et al. 2018, appendix A.2). Each phase is the
    `pretraining_dataset` of its own config, from its step 0 on, with a seed of
    its own, so that no phase repeats the masks of another. If the
    sequence lengths differ, S is None in `element_spec`, and the model is
    traced or compiled once for each phase.

    Args:
        shards: the documents.
        phases: (config of the examples, number of steps) of each phase.
        start_step: number of the first step, counted through all phases.
        batch_size, seed, host_index, host_count: see `pretraining_dataset`.

    Raises:
        AlbertError: as `pretraining_dataset`; or the phases do not fit.
    """
    _check_start(start_step)
    if len({examples.pack for examples, _ in phases}) > 1:
        raise AlbertError(
            "`pack` must be the same in all phases, as it changes the inputs "
            "of the model. Set it in each of them, or in none."
        )
    for _, steps in phases:
        check_positive("steps", steps)
    total = sum(steps for _, steps in phases)
    if start_step >= total:
        raise AlbertError(
            "`start_step` must be less than the steps of all phases together. "
            f"Received: start_step={start_step}, {total} steps. Lower it, or "
            "add a phase."
        )
    parts = []
    for number, (examples, steps) in enumerate(phases):
        is_over = start_step >= steps
        done = 0 if is_over else start_step
        part = pretraining_dataset(
            shards,
            examples,
            batch_size=batch_size,
            seed=_phase_seed(seed, number),
            start_step=done,
            steps=steps - done,
            host_index=host_index,
            host_count=host_count,
        )
        # A phase that is over stays as an empty part. Without it, S would be
        # fixed in `element_spec`, TensorFlow would compile the model in another
        # way, and a continued run would differ from an uninterrupted one by
        # rounding.
        parts.append(part.take(0) if is_over else part)
        start_step = max(start_step - steps, 0)
    return functools.reduce(lambda first, then: first.concatenate(then), parts)


def _phase_seed(seed: int, phase: int) -> int:
    """The seed of a phase; that of phase 0 is the seed itself."""
    check_seed(seed)
    return int(fold(np.uint64(seed), phase)) % 2**32 if phase else seed


def _check_start(start_step: int) -> None:
    if not is_whole(start_step) or start_step < 0:
        raise AlbertError(
            "`start_step` must be an integer, 0 or more. "
            f"Received: start_step={start_step!r}."
        )


def _examples_dataset(
    stream: ExampleStream,
    numbers: Callable[[], Iterator[np.ndarray]],
    batch_size: int,
    count: int | None,
    end: int | None = None,
):
    """A dataset that reads rows with NumPy and masks batches in parallel.

    `numbers` returns an iterator over the numbers of the rows of each batch,
    int64 [B], and `count` is the number of batches, None for an endless
    dataset. Rows from number `end` on only fill up the last batch. They are
    copies of the last row, with weight 0. (Rows of zeros would have no token,
    and attention over no token may give NaN.)
    """
    tf = import_tensorflow()
    from keras_albert.pretraining.masking import ExampleBatch, build_batch

    def batches() -> Iterator[tuple]:
        for wanted in numbers():
            weights = np.ones(batch_size, "float32")
            if end is not None:
                weights[wanted >= end] = 0
                wanted = np.minimum(wanted, end - 1)
            text, lengths, labels, keys, counts = stream.rows(wanted)
            weights = np.repeat(weights, counts)
            yield text, lengths, labels, weights, keys, counts

    examples = stream.examples

    @tf.autograph.experimental.do_not_convert
    def mask(*parts):
        batch = ExampleBatch(*parts)
        if not examples.pack:
            batch = batch._replace(counts=None)
        return build_batch(batch, stream.word_starts, examples)

    count_examples = None if examples.pack else batch_size
    signature = (
        tf.TensorSpec((count_examples, examples.sequence_length - 2), tf.int32),
        tf.TensorSpec((count_examples, 2), tf.int32),
        tf.TensorSpec((count_examples,), tf.int32),
        tf.TensorSpec((count_examples,), tf.float32),
        tf.TensorSpec((count_examples,), tf.uint64),
        tf.TensorSpec((batch_size,), tf.int32),
    )
    return without_tuning(
        batch_dataset(batches, signature, count)
        .map(mask, num_parallel_calls=available_cores(), deterministic=True)
        .prefetch(2)
    )
