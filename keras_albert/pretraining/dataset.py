"""Token shards to masked pretraining examples, cut and masked on the fly.

Every example is a pure function of (seed, epoch, index), so masks are fresh in
each epoch, and any step can be made at once, on any host:

    plan.py      documents -> chunks, shuffled; chunk -> where A and B are
    corpus.py    where they are -> their tokens, from the memory maps
    packing.py   which chunks share a row, where asked
    masking.py   tokens -> (x, y, sample_weight), a batch at a time
    this file    which rows are in which batch; tf.data around all

A row holds one example, or several where `ExampleConfig.pack` is set.

Shapes: B rows in a batch of this host, M examples in them, S sequence length,
W = S - 2.
"""

import functools
import itertools
import os
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
from keras_albert.errors import AlbertError, check_positive, check_seed
from keras_albert.pretraining.config import ExampleConfig
from keras_albert.pretraining.packing import Packing
from keras_albert.pretraining.segments import (
    example_keys,
    example_spans,
    plan_epoch,
)

if TYPE_CHECKING:
    import tensorflow as tf


class ExampleStream:
    """The endless sequence of rows of a seed; any of them at any time.

    Epochs follow one another without a gap: the last batch of one holds the
    first rows of the next. All are counted as long as epoch 0, so that no
    earlier epoch must be planned to know where one begins. Lengths differ a
    little, with the documents that draw a short target: a longer epoch leaves
    out the last of its shuffled rows, a shorter one begins again (with other
    masks, where examples do not share rows).

    Args:
        shards: the documents.
        examples: how to cut and mask them.
        seed: 0 or more.

    Raises:
        AlbertError: a negative seed, or a sentence task that takes more than
            one document.
    """

    def __init__(self, shards: ShardSet, examples: ExampleConfig, seed: int):
        check_seed(seed)
        self.corpus = Corpus(shards)
        self.word_starts = shards.tokenizer().word_starts
        self.examples = examples
        self.seed = seed
        if examples.needs_other_documents and self.corpus.num_documents < 2:
            raise AlbertError(
                f"sentence_task={examples.sentence_task!r} pairs two "
                "documents, but the shards hold a single one. Separate "
                'documents with a blank line, or set sentence_task="none".'
            )
        # Two, as a batch may end one epoch and begin another.
        self._plan = functools.lru_cache(maxsize=2)(
            functools.partial(plan_epoch, self.corpus, examples, seed)
        )
        self.rows_per_epoch = self._plan(0).num_rows

    @property
    def packing(self) -> Packing | None:
        """Which examples share a row in epoch 0; None where none do."""
        return self._plan(0).packing

    def check_pairs(self) -> None:
        """AlbertError if no example has a pair for the sentence task."""
        examples = self.examples
        if (
            examples.sentence_task != "none"
            and not examples.pairs_single_sentences
            and (np.diff(self._plan(0).edges) < 2).all()
        ):
            raise AlbertError(
                f"sentence_task={examples.sentence_task!r} needs examples of "
                "two sentences, but every one has a single sentence: "
                "documents have one line, or lines are longer than "
                f"sequence_length={examples.sequence_length}. Prepare the "
                "text with a sentence a line, or set "
                'sentence_task="none".'
            )

    def rows(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        """The examples of the rows with these numbers, not yet masked.

        Args:
            numbers: int64 [B], growing.

        Returns:
            int32 text [M, W], lengths [M, 2], labels [M], and uint64 keys [M],
            see `masking.Rows`; int32 [B], examples in each row.
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
    """tf.data.Dataset of training batches (x, y, sample_weight).

    Step s depends on nothing but the arguments, `seed` and s, so a run that
    starts at `start_step` sees what the uninterrupted one would have seen; it
    starts at once. Which examples a step has, and their masks, depend on
    neither `host_count` nor `host_index`. Shapes and dtypes are those of
    `masking.build_batch`, all static.

    Args:
        batch_size: rows in a step, over all hosts.
        seed: 0 or more.
        start_step: the first step, 0 or more.
        steps: how many steps follow it; without end when None. Epochs of the
            documents follow one another, see `ExampleStream`.
        host_index, host_count: this host gives rows `host_index * B` and on of
            each step, B = batch_size / host_count.

    Raises:
        AlbertError: a number out of range, no example with a pair for the
            sentence task, or no TensorFlow.
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
    """tf.data.Dataset of held-out batches: epoch 0 of a seed, each once.

    The order is that of the plan: a random one, the same every time, so that
    the first batches are a fair sample. The last batch is filled up with rows
    of weight 0. Arguments are those of `pretraining_dataset`.

    Raises:
        AlbertError: a number out of range, or no TensorFlow.
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
    """tf.data.Dataset of training batches in phases, one after another.

    Such as nine tenths of the steps with short sequences and the rest with
    long ones (Devlin et al. 2018, appendix A.2). Steps count through all
    phases; each phase is the `pretraining_dataset` of its own config, from its
    step 0. Where lengths differ, S is None in `element_spec`, and the model is
    traced or compiled once a phase.

    Args:
        phases: (examples, steps) of each.

    Other arguments, and what is raised, are those of `pretraining_dataset`.
    """
    _check_start(start_step)
    if len({examples.pack for examples, _ in phases}) > 1:
        raise AlbertError(
            "`pack` must be the same in all phases, as it changes the inputs "
            "of the model. Set it in each of them, or in none."
        )
    parts = []
    for examples, steps in phases:
        check_positive("steps", steps)
        if start_step < steps:
            parts.append(
                pretraining_dataset(
                    shards,
                    examples,
                    batch_size=batch_size,
                    seed=seed,
                    start_step=start_step,
                    steps=steps - start_step,
                    host_index=host_index,
                    host_count=host_count,
                )
            )
        start_step = max(start_step - steps, 0)
    if not parts:
        raise AlbertError(
            "`start_step` must be less than the steps of all phases: nothing "
            "would be left. Lower it, or add a phase."
        )
    return functools.reduce(lambda first, then: first.concatenate(then), parts)


def _check_start(start_step: int) -> None:
    if type(start_step) is not int or start_step < 0:
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
    """Reads rows in NumPy, and masks them in parallel, in order.

    Args:
        numbers: gives the numbers of the rows of each batch, int64 [B].
        batch_size: B.
        count: batches; None: without end.
        end: rows from this number on only fill up: the last one before it,
            with weight 0. A copy and not zeros, as a model need not survive a
            row without a token.
    """
    tf = import_tensorflow()
    from keras_albert.pretraining.masking import Rows, build_batch

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
        rows = Rows(*parts)
        if not examples.pack:
            rows = rows._replace(counts=None)
        return build_batch(rows, stream.word_starts, examples)

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
        .map(mask, num_parallel_calls=os.cpu_count(), deterministic=True)
        .prefetch(2)
    )
