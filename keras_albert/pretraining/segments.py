"""Which tokens are in which example of an epoch.

    plan_epoch      documents -> chunks of sentences, and their order; which
                    of them share a row
    example_spans   chunk -> segments A and B, ordered and truncated

A plan holds 12 bytes an example, where they share rows at most 24. All else is
a function of (seed, epoch, index) that is computed when the example is needed,
many at a time.

Shapes: N examples in an epoch, R examples looked at together.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from keras_albert.corpus.shards import Shard
from keras_albert.corpus.token_index import Corpus
from keras_albert.pretraining.config import ExampleConfig
from keras_albert.pretraining.counter_rng import (
    below,
    count_heads,
    fold,
    uniform,
)
from keras_albert.pretraining.packing import Packing, pack_examples
from keras_albert.text.tokenizer import truncated_lengths

SHORTEST_TARGET = 2  # tokens; create_instances_from_document

FEW_DOCUMENTS = 64  # a round over them takes as long as over one
MEASURED = 2**16  # examples at a time, whose lengths a plan asks for

# What a random number is for: the second step of every path from the seed.
PLANS, EXAMPLES = range(2)
# ... in a plan,
ORDER, IS_SHORT, SHORT_TARGET, ROWS = range(4)
# ... and in an example. The last two are masking's.
SPLIT, TAMPER, OTHER, OTHER_SPLIT, CUT_A, CUT_B, VISIT, REPLACE = range(8)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The chunks of an epoch."""

    edges: np.ndarray
    """int64 [N + 1]: chunk c is the sentences edges[c] : edges[c + 1] of the
    corpus; no chunk reaches over the end of a document"""
    order: np.ndarray
    """uint32 (or int64) [N]: example i is chunk order[i]"""
    packing: Packing | None = None
    """which examples share a row; None: each has its own"""

    @property
    def num_rows(self) -> int:
        """Rows in the epoch."""
        edges = self.edges if self.packing is None else self.packing.edges
        return len(edges) - 1

    def examples_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples of some rows, and how many each row has.

        From row `num_rows` on they start again: unpacked as examples N and
        on, which have other masks.
        """
        if self.packing is None:
            return rows, np.ones_like(rows)
        return self.packing.examples_of(rows % self.num_rows)


@dataclasses.dataclass(frozen=True)
class Spans:
    """Where the tokens of R examples are."""

    starts: np.ndarray
    """int64 [R, 2]: first tokens of A and B in the corpus"""
    lengths: np.ndarray
    """int64 [R, 2]: tokens of A and B; 0 for no B"""
    labels: np.ndarray
    """int32 [R]: 1 where the pair was tampered with"""


def example_keys(seed: int, epochs, indices) -> np.ndarray:
    """uint64: what all chance in an example hangs from.

    Args:
        epochs, indices: int [R], or one of them a number.
    """
    root = fold(np.uint64(seed), EXAMPLES)
    return fold(fold(root, epochs), indices)


def plan_epoch(
    corpus: Corpus, examples: ExampleConfig, seed: int, epoch: int
) -> Plan:
    """The examples of an epoch, shuffled over all documents.

    A chunk gathers sentences until they have as many tokens as its target, or
    the document ends. The target is what an example has room for, or with
    `short_seq_prob` a uniform shorter one, drawn once for each document (or
    each chunk: `target_per`).
    """
    key = fold(fold(np.uint64(seed), PLANS), epoch)
    parts = []
    for number, shard in enumerate(corpus.shards):
        first_sentence = corpus.first_sentences[number]
        target = functools.partial(
            _targets,
            examples,
            key,
            corpus.first_documents[number],
            first_sentence,
        )
        overshoot = examples.sentence_task != "none"
        parts.append(cut_documents(shard, target, overshoot) + first_sentence)
    edges = np.concatenate([*parts, corpus.first_sentences[-1:]])
    count = len(edges) - 1
    order = np.argsort(fold(fold(key, ORDER), np.arange(count)))
    plan = Plan(edges, order.astype("uint32") if count < 2**32 else order)
    if not examples.pack:
        return plan
    packing = pack_examples(
        example_lengths(corpus, plan, examples, seed, epoch),
        examples.sequence_length,
        examples.max_examples,
        fold(key, ROWS),
    )
    return dataclasses.replace(plan, packing=packing)


def _targets(
    examples: ExampleConfig,
    key: np.uint64,
    first_document: int,
    first_sentence: int,
    documents: np.ndarray,
    sentences: np.ndarray,
) -> np.ndarray:
    """Tokens that chunks are to have; see `cut_documents`."""
    drawn_for = (
        documents + first_document
        if examples.target_per == "document"
        else sentences + first_sentence
    )
    room = _room(examples)
    short = uniform(fold(fold(key, IS_SHORT), drawn_for))
    target = fold(fold(key, SHORT_TARGET), drawn_for)
    return np.where(
        short < examples.short_seq_prob,
        SHORTEST_TARGET + below(target, room - SHORTEST_TARGET + 1),
        room,
    )


def _room(examples: ExampleConfig) -> int:
    """Tokens that an example has room for beside [CLS] and its [SEP]."""
    return examples.sequence_length - (
        2 if examples.sentence_task == "none" else 3
    )


def cut_documents(
    shard: Shard,
    target: Callable[[np.ndarray, np.ndarray], np.ndarray],
    overshoot: bool,
) -> np.ndarray:
    """Cuts each document of a shard into chunks.

    Args:
        shard: D documents.
        target: (documents, their sentences at which chunks begin) -> tokens
            that these chunks are to have.
        overshoot: a chunk ends with the sentence that reaches its target;
            else before the one that exceeds it, which may leave it a single
            sentence that is longer.

    Returns:
        int64 [N], growing: the first sentence of each chunk.

    Sentences of 3, 4, 2 and 6 tokens and a target of 6: chunks begin at 0 and
    2 with overshoot (7 and 8 tokens), at 0, 1 and 3 without (3, 6 and 6).
    """
    document_ends = np.asarray(shard.documents[1:])
    document = np.arange(len(document_ends))
    first = np.asarray(shard.documents[:-1])
    rounds = [np.zeros(0, "int64")]

    def end_of(document, first):
        """Where chunks end that begin at these sentences."""
        goal = shard.sentences[first] + target(document, first)
        if overshoot:
            return np.searchsorted(shard.sentences, goal)
        end = np.searchsorted(shard.sentences, goal, side="right") - 1
        return np.maximum(end, first + 1)

    # One chunk of every unfinished document at a time, while they are many.
    while len(document) > FEW_DOCUMENTS:
        rounds.append(first)
        end = end_of(document, first)
        unfinished = end < document_ends[document]
        document, first = document[unfinished], end[unfinished]
    # A long one by itself: where chunks would end that begin at any of its
    # sentences; then from end to end.
    for each, begin in zip(document.tolist(), first.tolist(), strict=True):
        sentences = np.arange(begin, document_ends[each])
        ends = end_of(np.full_like(sentences, each), sentences).tolist()
        starts, at = [], begin
        while at - begin < len(ends):
            starts.append(at)
            at = ends[at - begin]
        rounds.append(np.array(starts, "int64"))
    return np.sort(np.concatenate(rounds))


def example_spans(
    corpus: Corpus,
    plan: Plan,
    examples: ExampleConfig,
    indices: np.ndarray,
    keys: np.ndarray,
) -> Spans:
    """The segments of some examples of an epoch.

    The first 1 to n - 1 of a chunk's n sentences, with equal chance, are one
    segment, the others the second. In half of the pairs, sentence order swaps
    them, and next sentence replaces the second, see `_other_documents`.

    Args:
        indices: int64 [R], 0 or more; from N on they start again.
        keys: uint64 [R], `example_keys` of the examples.
    """
    chunks = plan.order[indices % len(plan.order)].astype("int64")
    starts, lengths, labels = _segments(corpus, plan, examples, chunks, keys)
    starts, lengths = truncate(starts, lengths, examples.sequence_length, keys)
    return Spans(starts, lengths, labels)


def example_lengths(
    corpus: Corpus, plan: Plan, examples: ExampleConfig, seed: int, epoch: int
) -> np.ndarray:
    """int32 [N]: tokens of each example, special ones included."""
    count = len(plan.order)
    example_of = np.empty_like(plan.order)
    example_of[plan.order] = np.arange(count)
    result = np.empty(count, "int32")
    # Chunk by chunk, as neighbours lie in the same shard.
    for start in range(0, count, MEASURED):
        chunks = np.arange(start, min(start + MEASURED, count))
        mine = example_of[chunks]
        keys = example_keys(seed, epoch, mine)
        _, lengths, _ = _segments(corpus, plan, examples, chunks, keys)
        kept = kept_lengths(lengths, examples.sequence_length)
        result[mine] = kept.sum(1) + num_special(lengths)
    return result


def _segments(
    corpus: Corpus,
    plan: Plan,
    examples: ExampleConfig,
    chunks: np.ndarray,
    keys: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`Spans` of R chunks, not yet truncated."""
    first, end = plan.edges[chunks], plan.edges[chunks + 1]
    split = _split(first, end, fold(keys, SPLIT))
    if examples.sentence_task == "none":
        split = end
    single = split == end
    tamper = uniform(fold(keys, TAMPER)) < 0.5
    swap = ~single & tamper & (examples.sentence_task == "sop")
    replace = ~single & tamper & (examples.sentence_task == "nsp")
    if examples.pairs_single_sentences:
        replace |= single
    begin_a, begin_b, end_b = corpus.token_offsets(
        np.stack([first, split, end])
    )
    starts = np.stack([begin_a, begin_b], axis=1)
    lengths = np.stack([begin_b - begin_a, end_b - begin_b], axis=1)
    others = _other_documents(
        corpus, plan, first[replace], lengths[replace, 1], keys[replace]
    )
    begin_b, end_b = corpus.token_offsets(np.stack(others))
    starts[replace, 1], lengths[replace, 1] = begin_b, end_b - begin_b
    starts[swap] = starts[swap, ::-1]
    lengths[swap] = lengths[swap, ::-1]
    return starts, lengths, (swap | replace).astype("int32")


def _split(first, end, random) -> np.ndarray:
    """Where the second segment begins; at the end of a single sentence."""
    return first + 1 + below(random, np.maximum(end - first - 1, 1))


def _other_documents(
    corpus: Corpus,
    plan: Plan,
    first: np.ndarray,
    lengths: np.ndarray,
    keys: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Sentences from where the second segment of another chunk begins.

    The chunk is drawn uniformly from those of other documents. Sentences
    follow until they have as many tokens as what they replace, or their
    document ends: pairs of both labels are about as long.

    Args:
        first: int64 [R], sentences of the documents to avoid.
        lengths: int64 [R], tokens of the segments to replace.
        keys: uint64 [R].

    Returns:
        int64 [R], [R]: first sentences and ends.
    """
    # The chunks of each example's own document.
    own, own_end = np.searchsorted(plan.edges, corpus.documents_of(first))
    others = len(plan.order) - (own_end - own)
    chunk = below(fold(keys, OTHER), others)
    chunk += np.where(chunk >= own, own_end - own, 0)
    begin, end = plan.edges[chunk], plan.edges[chunk + 1]
    split = _split(begin, end, fold(keys, OTHER_SPLIT))
    begin = np.where(split < end, split, begin)
    goal = corpus.token_offsets(begin) + lengths
    _, document_end = corpus.documents_of(begin)
    end = np.clip(corpus.sentences_from(goal), begin + 1, document_end)
    return begin, end


def truncate(
    starts: np.ndarray,
    lengths: np.ndarray,
    sequence_length: int,
    keys: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Cuts what does not fit, as the reference's truncate_seq_pair.

    Token by token from the longer segment (from B when they are equally
    long), at its front or its back with equal chance. In closed form: what
    stays is known from the lengths, and what of the rest was taken from the
    front is a number of coin flips.

    Args:
        starts, lengths: int64 [R, 2] of A and B.
        sequence_length: tokens, [CLS] and [SEP] included.
        keys: uint64 [R].

    Returns:
        The same, of what stays.

    7 and 4 tokens in a sequence of 8, which has room for 5: 3 and 2 stay.
    """
    kept = kept_lengths(lengths, sequence_length)
    coins = fold(keys[:, None], [CUT_A, CUT_B])
    front = count_heads(coins.ravel(), (lengths - kept).ravel())
    return starts + front.reshape(-1, 2), kept


def kept_lengths(lengths: np.ndarray, sequence_length: int) -> np.ndarray:
    """int64 [R, 2]: how much of A and B stays, see `truncate`."""
    a, b = lengths.T
    room = sequence_length - num_special(lengths)
    return np.stack(truncated_lengths(a, b, room), axis=1)


def num_special(lengths: np.ndarray) -> np.ndarray:
    """int64 [R]: [CLS] and one [SEP], or two where there is a B."""
    return 2 + (lengths[:, 1] > 0)
