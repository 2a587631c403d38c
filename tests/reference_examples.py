"""How the reference makes examples, in plain Python, an example at a time.

A transcription of the algorithm of create_pretraining_data.py on token ids:
what tests compare with, and the peer of the benchmark. Chance is an argument.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise

import numpy as np
import tensorflow as tf

import keras_albert as ka
from keras_albert.pretraining.counter_rng import fold
from keras_albert.pretraining.masking import (
    KEEP_SHARE,
    MASK_SHARE,
    ExampleBatch,
)
from keras_albert.pretraining.segments import SHORTEST_TARGET
from keras_albert.text.special_tokens import CLS_ID, MASK_ID, SEP_ID

Sentence = list[int]


def documents_of(shards: ka.ShardSet) -> list[list[Sentence]]:
    """The documents of all shards, token by token."""
    return [
        [
            shard.tokens[start:end].tolist()
            for start, end in pairwise(shard.sentences[first : last + 1])
        ]
        for shard in shards.shards
        for first, last in pairwise(shard.documents)
    ]


def pairs_of_document(
    documents: list[list[Sentence]], number: int, length: int, short: float, rng
) -> Iterator[tuple[list[int], list[int], int]]:
    """(A, B, label) of each chunk of a document, as in sentence order.

    Args:
        length: tokens of an example, special ones included.
        short: chance of a shorter target.
        rng: random.Random.
    """
    document, room = documents[number], length - 3
    target = room
    if rng.random() < short:
        target = rng.randint(SHORTEST_TARGET, room)
    chunk, size = [], 0
    for i, sentence in enumerate(document):
        chunk.append(sentence)
        size += len(sentence)
        if size < target and i < len(document) - 1:
            continue
        if len(chunk) == 1:
            a = list(chunk[0])
            b = random_text(documents, number, target - len(a), rng)
            label = 1
        else:
            split = rng.randint(1, len(chunk) - 1)
            a = [token for part in chunk[:split] for token in part]
            b = [token for part in chunk[split:] for token in part]
            label = int(rng.random() < 0.5)
            if label:
                a, b = b, a
        truncate(a, b, room, rng)
        yield a, b, label
        chunk, size = [], 0


def random_text(documents, number: int, target: int, rng) -> list[int]:
    """Sentences of another document, from a random one on."""
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != number:
            break
    document, tokens = documents[other], []
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        tokens.extend(sentence)
        if len(tokens) >= target:
            break
    return tokens


def truncate(a: list[int], b: list[int], room: int, rng) -> None:
    """Removes tokens of the longer one in place until both fit."""
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def pack(a: list[int], b: list[int]) -> tuple[list[int], list[int]]:
    """Token and segment ids; `[CLS] A [SEP]` where B is empty."""
    tokens = [CLS_ID, *a, SEP_ID]
    segments = [0] * len(tokens)
    if b:
        tokens += [*b, SEP_ID]
        segments += [1] * (len(b) + 1)
    return tokens, segments


def words_of(tokens, word_starts, cross_sep: bool) -> list[list[list[int]]]:
    """Groups of words, each word the positions of its tokens.

    N-grams stay in a group: a segment, or all of the example.
    """
    groups = [[]]
    for position, token in enumerate(tokens):
        if token in (CLS_ID, SEP_ID):
            if token == SEP_ID and not cross_sep:
                groups.append([])
        elif groups[-1] and not word_starts[token]:
            groups[-1][-1].append(position)
        else:
            groups[-1].append([position])
    return groups


def ngrams_of(groups, longest: int) -> list[list[list[int]]]:
    """For each word the n-grams from it on, n = 1 ... longest, as positions.

    Where fewer words follow, the longest ones are the same.
    """
    return [
        [list(chain(*words[i : i + n])) for n in range(1, longest + 1)]
        for words in groups
        for i in range(len(words))
    ]


def choose(
    visits: Iterable[tuple[list[list[int]], Callable[[], int]]], budget: int
) -> list[int]:
    """Positions to predict, in the order in which they were chosen.

    Args:
        visits: (`ngrams_of` a word, what draws its n), in their order.
        budget: most positions.
    """
    covered = []
    for ngrams, draw in visits:
        if len(covered) >= budget:
            break
        n = draw()
        while n > 1 and len(covered) + len(ngrams[n - 1]) > budget:
            n -= 1
        found = ngrams[n - 1]
        if len(covered) + len(found) > budget:
            continue
        if not any(position in covered for position in found):
            covered += found
    return covered


def mask_example(
    tokens: list[int], word_starts, examples: ka.ExampleConfig, rng, draw_n
) -> tuple[list[int], list[int], list[int]]:
    """Masked tokens, positions and labels.

    Args:
        draw_n: () -> an n of p(n) ~ 1/n.
    """
    ngrams = ngrams_of(
        words_of(tokens, word_starts, examples.cross_sep), examples.ngram
    )
    rng.shuffle(ngrams)
    positions = sorted(
        choose(
            ((ngram, draw_n) for ngram in ngrams),
            budget_of(len(tokens), examples),
        )
    )
    masked = list(tokens)
    for position in positions:
        if rng.random() < MASK_SHARE:
            masked[position] = MASK_ID
        elif rng.random() >= KEEP_SHARE / (1 - MASK_SHARE):
            masked[position] = rng.randint(0, len(word_starts) - 1)
    return masked, positions, [tokens[position] for position in positions]


def budget_of(num_tokens: int, examples: ka.ExampleConfig) -> int:
    """Tokens to predict, of an example of so many."""
    share = round(num_tokens * examples.masked_lm_prob)
    return min(examples.max_predictions, max(1, share))


def rows_of(pairs, sequence_length: int, seed: int) -> ExampleBatch:
    """Pairs (A, B) of token ids as the input of `masking.build_batch`."""
    text = np.zeros((len(pairs), sequence_length - 2), "int32")
    for row, (a, b) in zip(text, pairs, strict=True):
        row[: len(a) + len(b)] = [*a, *b]
    count = len(pairs)
    return ExampleBatch(
        text=tf.constant(text),
        lengths=tf.constant([[len(a), len(b)] for a, b in pairs], tf.int32),
        labels=tf.zeros(count, tf.int32),
        weights=tf.ones(count),
        keys=tf.constant(fold(np.uint64(seed), np.arange(count))),
    )
