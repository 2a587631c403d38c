"""Cuts documents into pretraining examples: segments A and B of each.

    plan_epoch      documents -> chunks of sentences, in random order, and
                    which of them are packed into a row
    example_spans   chunk -> segments A and B, swapped or replaced, truncated

A plan holds 12 bytes per example, with packing at most 24. All other properties
of an example are functions of (seed, epoch, index). They are computed for many
examples at a time, when these are needed.

Shapes: N examples in an epoch, R examples computed together.
"""

import dataclasses
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

SHORTEST_TARGET = 2  # tokens; reference create_instances_from_document

# Up to this many documents, a vectorized pass takes as long as for one.
FEW_DOCUMENTS = 64
LENGTHS_AT_ONCE = 2**16  # examples whose lengths are computed at a time

# Purposes of random numbers, which are part of their path (see counter_rng).
# First after the seed: planning an epoch, or making an example.
PLANS, EXAMPLES = range(2)
# The purposes in a plan.
ORDER, IS_SHORT, SHORT_TARGET, ROWS = range(4)
# The purposes in an example; masking.py uses the last two.
SPLIT, TAMPER, OTHER, OTHER_SPLIT, CUT_A, CUT_B, VISIT, REPLACE = range(8)


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """The chunks of an epoch and their order."""

    edges: np.ndarray
    """int64 [N + 1]: chunk c consists of the sentences edges[c] : edges[c + 1]
    of the corpus; no chunk crosses the end of a document"""
    order: np.ndarray
    """uint32 (or int64) [N]: example i is chunk order[i]"""
    key: np.uint64
    """the random key of the plan"""
    packing: Packing | None = None
    """which examples share a row; None if each has its own row"""

    @property
    def num_rows(self) -> int:
        """Number of rows in the epoch."""
        edges = self.edges if self.packing is None else self.packing.edges
        return len(edges) - 1

    def examples_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples of rows, int64 [M]; and int64 [B], how many a row has.

        From row `num_rows` on the rows repeat. Without packing they are then
        the examples from N on: the same texts with other masks.
        """
        if self.packing is None:
            return rows, np.ones_like(rows)
        return self.packing.examples_of(rows % self.num_rows)


@dataclasses.dataclass(frozen=True)
class Spans:
    """The positions of the segments of R examples in the corpus."""

    starts: np.ndarray
    """int64 [R, 2]: index in the corpus of the first token of A and of B"""
    lengths: np.ndarray
    """int64 [R, 2]: numbers of tokens of A and B; 0 if there is no B"""
    labels: np.ndarray
    """int32 [R]: 1 if A and B were swapped (SOP) or B was replaced (NSP)"""


def example_keys(seed: int, epochs, indices) -> np.ndarray:
    """uint64 [R]: random keys, from which all random choices are derived.

    `epochs` and `indices` are int [R], or one number each.
    """
    # The path of an example: seed, purpose, epoch, index. See counter_rng.py.
    root = fold(np.uint64(seed), EXAMPLES)
    return fold(fold(root, epochs), indices)


def plan_epoch(
    corpus: Corpus, examples: ExampleConfig, seed: int, epoch: int
) -> EpochPlan:
    """Plans the examples of an epoch, shuffled over all documents.

    A chunk consists of consecutive sentences. It ends with the sentence that
    reaches its target (before it, without a sentence task), or with its
    document. The target is the number of tokens that fit into an example or,
    with probability `short_seq_prob`, a smaller random number. It is drawn once
    for each document, or for each chunk if `target_per` is "example".
    """
    key = fold(fold(np.uint64(seed), PLANS), epoch)
    parts = []
    for number, shard in enumerate(corpus.shards):
        target = _targets_in_shard(corpus, number, examples, key)
        overshoot = examples.sentence_task != "none"
        firsts = cut_documents(shard, target, overshoot)
        parts.append(firsts + corpus.first_sentences[number])
    edges = np.concatenate([*parts, corpus.first_sentences[-1:]])
    # Sorting random numbers gives a permutation that only depends on the key.
    count = len(edges) - 1
    order = np.argsort(fold(fold(key, ORDER), np.arange(count)))
    order = order.astype("uint32") if count < 2**32 else order
    plan = EpochPlan(edges, order, key)
    if not examples.pack:
        return plan
    packing = pack_examples(
        example_lengths(corpus, plan, examples, seed, epoch),
        examples.sequence_length,
        examples.max_examples,
        fold(key, ROWS),
    )
    return dataclasses.replace(plan, packing=packing)


def _targets_in_shard(
    corpus: Corpus, number: int, examples: ExampleConfig, key: np.uint64
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """`_targets` as a function of the numbers within a shard."""
    document = corpus.first_documents[number]
    sentence = corpus.first_sentences[number]
    return lambda documents, sentences: _targets(
        examples, key, documents + document, sentences + sentence
    )


def _targets(
    examples: ExampleConfig,
    key: np.uint64,
    documents: np.ndarray,
    sentences: np.ndarray,
) -> np.ndarray:
    """Target numbers of tokens of chunks, int64 [R].

    `documents` and `sentences` are the numbers in the corpus of the chunks'
    documents and first sentences; `key` is that of the plan.
    """
    by_document = examples.target_per == "document"
    drawn_for = documents if by_document else sentences
    room = _room(examples)
    short = uniform(fold(fold(key, IS_SHORT), drawn_for))
    target = fold(fold(key, SHORT_TARGET), drawn_for)
    return np.where(
        short < examples.short_seq_prob,
        SHORTEST_TARGET + below(target, room - SHORTEST_TARGET + 1),
        room,
    )


def _room(examples: ExampleConfig) -> int:
    """Number of tokens that fit into an example, without [CLS] and [SEP]s."""
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
        shard: a shard of D documents.
        target: function from numbers of documents, and the sentences at which
            their chunks begin, to the target numbers of tokens.
        overshoot: whether a chunk ends with the sentence that reaches its
            target, or before it. A single sentence may exceed the target.

    Returns int64 [N], ascending: the first sentence of each chunk.

    Example: sentences have 3, 4, 2 and 6 tokens, and the target is 6. With
    overshoot the chunks begin at 0 and 2 (7 and 8 tokens), without at 0, 1 and
    3 (3, 6 and 6 tokens).
    """
    document_ends = np.asarray(shard.documents[1:])
    document = np.arange(len(document_ends))
    first = np.asarray(shard.documents[:-1])
    rounds = [np.zeros(0, "int64")]

    def end_of(document, first):
        """The ends of the chunks that begin at these sentences."""
        goal = shard.sentences[first] + target(document, first)
        if overshoot:
            return np.searchsorted(shard.sentences, goal)
        end = np.searchsorted(shard.sentences, goal, side="right") - 1
        return np.maximum(end, first + 1)

    # Each pass cuts the next chunk of every unfinished document.
    while len(document) > FEW_DOCUMENTS:
        rounds.append(first)
        end = end_of(document, first)
        unfinished = end < document_ends[document]
        document, first = document[unfinished], end[unfinished]
    # The few longest documents are cut one by one: first the end of the chunk
    # that would begin at each sentence is computed, for all sentences at once,
    # and then the chunks are followed from end to end.
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
    plan: EpochPlan,
    examples: ExampleConfig,
    indices: np.ndarray,
    keys: np.ndarray,
) -> Spans:
    """Computes the segments of R examples of an epoch.

    A chunk of n sentences is split at a random position: the first 1 to n - 1
    sentences are segment A, the others segment B. In half of the pairs, the
    task "sop" swaps the segments, and "nsp" replaces B by text of another
    document, see `_second_segments`. From N on, the indices repeat the chunks.
    """
    chunks = plan.order[indices % len(plan.order)].astype("int64")
    starts, lengths, labels = _segments(corpus, plan, examples, chunks, keys)
    starts, lengths = truncate(starts, lengths, examples.sequence_length, keys)
    return Spans(starts, lengths, labels)


def example_lengths(
    corpus: Corpus,
    plan: EpochPlan,
    examples: ExampleConfig,
    seed: int,
    epoch: int,
) -> np.ndarray:
    """int32 [N]: number of tokens of each example, with special tokens."""
    count = len(plan.order)
    example_of = np.empty_like(plan.order)
    example_of[plan.order] = np.arange(count)
    result = np.empty(count, "int32")
    # In the order of the chunks, whose neighbours are in the same shard.
    for start in range(0, count, LENGTHS_AT_ONCE):
        chunks = np.arange(start, min(start + LENGTHS_AT_ONCE, count))
        mine = example_of[chunks]
        keys = example_keys(seed, epoch, mine)
        _, lengths, _ = _segments(corpus, plan, examples, chunks, keys)
        kept = kept_lengths(lengths, examples.sequence_length)
        result[mine] = kept.sum(1) + num_special(lengths)
    return result


def _segments(
    corpus: Corpus,
    plan: EpochPlan,
    examples: ExampleConfig,
    chunks: np.ndarray,
    keys: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The fields of `Spans` for R chunks, before truncation."""
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
    # A replaced segment is as long as the one that it replaces, and the
    # segment beside a single sentence fills the chunk up to its target.
    wanted = lengths[:, 1].copy()
    alone = first[replace & single]
    targets = _targets(
        examples, plan.key, corpus.document_numbers(alone), alone
    )
    left = targets - lengths[replace & single, 0]
    wanted[replace & single] = np.maximum(left, 0)
    begin = np.where(
        single[replace],
        _any_sentences(corpus, first[replace], keys[replace]),
        _second_segments(corpus, plan, first[replace], keys[replace]),
    )
    others = begin, _ends(corpus, begin, wanted[replace])
    begin_b, end_b = corpus.token_offsets(np.stack(others))
    starts[replace, 1], lengths[replace, 1] = begin_b, end_b - begin_b
    # The segments are swapped by exchanging their positions; no token moves.
    starts[swap] = starts[swap, ::-1]
    lengths[swap] = lengths[swap, ::-1]
    return starts, lengths, (swap | replace).astype("int32")


def _split(first, end, random) -> np.ndarray:
    """The sentence at which B begins; the end if there is only one sentence."""
    return first + 1 + below(random, np.maximum(end - first - 1, 1))


def _any_sentences(
    corpus: Corpus, first: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """Draws where the text beside a single sentence begins: int64 [R].

    As by the reference: a document is drawn uniformly from all others, and a
    sentence uniformly from that document. The arguments, [R] each, are the
    first sentences and the keys of the examples.
    """
    own = corpus.document_numbers(first)
    document = below(fold(keys, OTHER), corpus.num_documents - 1)
    document += document >= own
    begin, end = corpus.sentences_in(document)
    return begin + below(fold(keys, OTHER_SPLIT), end - begin)


def _second_segments(
    corpus: Corpus, plan: EpochPlan, first: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """Draws where texts that replace segments B begin: int64 [R].

    A chunk is drawn uniformly from those of all other documents, and the text
    begins with its second segment. (The reference draws as `_any_sentences`
    does. Then the first sentence of a document would only stand in replaced
    texts, which tells the label.) The arguments are those of `_any_sentences`.
    """
    # The chunks of each example's own document.
    own, own_end = np.searchsorted(plan.edges, corpus.documents_of(first))
    others = len(plan.order) - (own_end - own)
    # A random number among the chunks of other documents: numbers from the
    # example's own document on are shifted past it.
    chunk = below(fold(keys, OTHER), others)
    chunk += np.where(chunk >= own, own_end - own, 0)
    begin, end = plan.edges[chunk], plan.edges[chunk + 1]
    split = _split(begin, end, fold(keys, OTHER_SPLIT))
    return np.where(split < end, split, begin)


def _ends(corpus: Corpus, begin: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Where texts end that begin with some sentences: int64 [R].

    A text ends with the sentence that reaches `lengths` tokens, or with its
    document, and has one sentence at least.
    """
    goal = corpus.token_offsets(begin) + lengths
    _, document_end = corpus.documents_of(begin)
    return np.clip(corpus.sentences_from(goal), begin + 1, document_end)


def truncate(
    starts: np.ndarray,
    lengths: np.ndarray,
    sequence_length: int,
    keys: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Truncates segments to the sequence length, as the reference does.

    The reference (truncate_seq_pair) removes one token at a time from the
    longer segment (from B if both are equally long), from its front or its
    back with probability 1/2. The numbers of tokens that remain only depend on
    the lengths; how many were removed from the front is a number of coin
    flips. Both are computed here without a loop over tokens.

    Returns new `starts` and `lengths`, int64 [R, 2]. Example: of 7 and 4
    tokens, 3 and 2 remain for a sequence of 8 tokens, which fits 5 besides
    [CLS] and two [SEP]s.
    """
    kept = kept_lengths(lengths, sequence_length)
    coins = fold(keys[:, None], [CUT_A, CUT_B])
    front = count_heads(coins.ravel(), (lengths - kept).ravel())
    return starts + front.reshape(-1, 2), kept


def kept_lengths(lengths: np.ndarray, sequence_length: int) -> np.ndarray:
    """int64 [R, 2]: tokens of A and B that remain; see `truncate`."""
    a, b = lengths.T
    room = sequence_length - num_special(lengths)
    return np.stack(truncated_lengths(a, b, room), axis=1)


def num_special(lengths: np.ndarray) -> np.ndarray:
    """int64 [R]: number of special tokens; 2, or 3 for an example with B."""
    return 2 + (lengths[:, 1] > 0)
