"""What must hold for every pretraining example."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from reference_examples import (
    budget_of,
    choose,
    ngrams_of,
    pack,
    rows_of,
    truncate as remove_tokens,
    words_of,
)

import keras_albert as ka
from keras_albert.corpus.shards import Shard
from keras_albert.corpus.token_index import Corpus
from keras_albert.pretraining import masking, segments
from keras_albert.pretraining.counter_rng import fold
from keras_albert.pretraining.dataset import ExampleStream
from keras_albert.pretraining.segments import (
    REPLACE,
    cut_documents,
    example_keys,
    plan_epoch,
    truncate,
)

pytestmark = pytest.mark.any_backend

CLS, SEP, MASK = 2, 3, 4
VOCAB_SIZE = 1009
WORD_STARTS = np.arange(VOCAB_SIZE) % 3 > 0
MOST_TOKENS = 83

configs = st.builds(
    ka.ExampleConfig,
    sequence_length=st.integers(8, MOST_TOKENS),
    max_predictions=st.integers(1, 20),
    masked_lm_prob=st.floats(0.01, 0.9),
    ngram=st.integers(1, 5),
    short_seq_prob=st.floats(0, 0.9),
    sentence_task=st.sampled_from(["sop", "nsp", "none"]),
    target_per=st.sampled_from(["document", "example"]),
    single_sentence=st.sampled_from(["skip_order", "random_document"]),
    cross_sep=st.booleans(),
)
seeds = st.integers(0, 2**32 - 1)
# Lengths of the sentences of each document.
corpora = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    min_size=1,
    max_size=8,
)


def shard_of(documents, first_token=5):
    """Every token tells where it is: its id is its number, and more."""
    lengths = [length for document in documents for length in document]
    return Shard(
        tokens=np.arange(sum(lengths)) + first_token,
        sentences=np.append(0, np.cumsum(lengths)),
        documents=np.append(0, np.cumsum([len(d) for d in documents])),
    )


def set_of(shards, word_starts):
    return SimpleNamespace(
        shards=tuple(shards),
        tokenizer=lambda: SimpleNamespace(word_starts=word_starts),
    )


@pytest.mark.parametrize("few", [0, 64])  # in rounds, and each by itself
@given(documents=corpora, overshoot=st.booleans(), data=st.data())
def test_cutting_is_what_a_loop_would_do(few, documents, overshoot, data):
    count = len(documents)
    targets = data.draw(
        st.lists(st.integers(2, 60), min_size=count, max_size=count)
    )
    expected, sentence = [], 0
    for lengths, target in zip(documents, targets, strict=True):
        total = None
        for length in lengths:
            full = total is not None and (
                total >= target if overshoot else total + length > target
            )
            if total is None or full:
                expected.append(sentence)
                total = 0
            total += length
            sentence += 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "FEW_DOCUMENTS", few)
        found = cut_documents(
            shard_of(documents), lambda d, _: np.array(targets)[d], overshoot
        )
    assert found.tolist() == expected


@given(st.integers(1, 60), st.integers(0, 60), st.integers(8, 60), seeds)
def test_truncation_is_what_a_loop_would_do(a, b, sequence_length, seed):
    starts, lengths = truncate(
        np.array([[100, 500]]),
        np.array([[a, b]]),
        sequence_length,
        example_keys(seed, 0, [0]),
    )
    tokens_a, tokens_b = [0] * a, [0] * b
    room = sequence_length - (3 if b else 2)
    remove_tokens(tokens_a, tokens_b, room, np.random.default_rng(0))
    assert lengths.tolist() == [[len(tokens_a), len(tokens_b)]]
    front = starts[0] - [100, 500]
    assert (front >= 0).all() and (front <= [a, b] - lengths[0]).all()


def built(rows, word_starts, config):
    """x, y and weights of a batch as arrays."""
    return (
        {name: np.asarray(tensor) for name, tensor in part.items()}
        for part in masking.build_batch(rows, word_starts, config)
    )


@st.composite
def pairs(draw):
    tokens = st.integers(5, VOCAB_SIZE - 1)
    a = draw(st.lists(tokens, min_size=1, max_size=60))
    return a, draw(st.lists(tokens, max_size=MOST_TOKENS - 3 - len(a)))


@settings(max_examples=25)
@given(st.lists(pairs(), min_size=1, max_size=9), configs, seeds)
def test_masking_is_what_a_loop_would_do(texts, config, seed):
    rows = rows_of(texts, MOST_TOKENS, seed)
    config = ka.ExampleConfig(
        **{**vars(config), "sequence_length": MOST_TOKENS}
    )
    x, y, weight = built(rows, WORD_STARTS, config)
    harmonic = np.cumsum(1 / np.arange(1, config.ngram + 1))
    bits = fold(
        fold(rows.keys.numpy(), REPLACE)[:, None],
        np.arange(config.num_predictions),
    )
    for row, (a, b) in enumerate(texts):
        tokens, segment_ids = pack(a, b)
        length = len(tokens)
        ngrams = ngrams_of(
            words_of(tokens, WORD_STARTS, config.cross_sep), config.ngram
        )
        key, words = rows.keys[row : row + 1], np.array([len(ngrams)])
        visits = masking.draw_visits(key, words, MOST_TOKENS - 2).numpy()[0]

        def draw(visit):
            share = (visit >> 16) % 2**20 / 2**20
            return 1 + int((share >= harmonic[:-1] / harmonic[-1]).sum())

        visited = (
            (ngrams[visit % 2**16], lambda visit=visit: draw(visit))
            for visit in sorted(visits[visits >= 0].tolist(), reverse=True)
        )
        positions = sorted(choose(visited, budget_of(length, config)))
        count = len(positions)
        unused = [0] * (config.num_predictions - count)
        assert x["masked_positions"][row].tolist() == positions + unused
        assert weight["mlm"][row].tolist() == [1] * count + unused
        masked = list(tokens)
        for position, random in zip(
            positions, bits[row, :count].tolist(), strict=True
        ):
            kind, low = divmod(random, 2**32)
            if kind < 0.8 * 2**32:
                masked[position] = MASK
            elif kind >= 0.9 * 2**32:
                masked[position] = low * VOCAB_SIZE // 2**32
        labels = [tokens[position] for position in positions]
        assert y["mlm"][row, :count].tolist() == labels
        assert not y["mlm"][row, count:].any()
        padding = [0] * (MOST_TOKENS - length)
        assert x["token_ids"][row].tolist() == masked + padding
        assert x["segment_ids"][row].tolist() == segment_ids + padding
        assert x["padding_mask"][row].tolist() == [1] * length + padding


@given(
    corpora.filter(lambda documents: len(documents) > 1),
    configs,
    seeds,
    st.integers(0, 3),
    st.integers(0, 40),
)
def test_batches(documents, config, seed, epoch, step):
    half = len(documents) // 2
    first = shard_of(documents[:half])
    shards = [first, shard_of(documents[half:], 5 + len(first.tokens))]
    end = 5 + sum(map(sum, documents))
    word_starts = np.arange(end) % 3 > 0
    stream = ExampleStream(set_of(shards, word_starts), config, seed)
    first_number = epoch * stream.rows_per_epoch + step
    numbers = np.arange(first_number, first_number + 7)
    text, lengths, labels, keys, _ = stream.rows(numbers)
    rows = masking.ExampleBatch(
        text, lengths, labels, np.ones(len(numbers), "float32"), keys
    )
    x, y, weight = built(rows, word_starts, config)
    document_ends = 5 + np.cumsum([sum(d) for d in documents])

    def home(token):
        return np.searchsorted(document_ends, token, side="right")

    task = config.sentence_task
    for row in range(len(numbers)):
        length = x["padding_mask"][row].sum()
        assert 3 <= length <= config.sequence_length
        assert x["padding_mask"][row, :length].all()
        used = weight["mlm"][row] == 1
        positions = x["masked_positions"][row, used]
        assert len(positions) <= budget_of(int(length), config)
        assert (np.diff(positions) > 0).all() and (positions < length).all()
        # Labels restore the text; special tokens are never masked.
        tokens = x["token_ids"][row, :length].copy()
        assert ((tokens >= 0) & (tokens < end)).all()
        tokens[positions] = y["mlm"][row, used]
        (ends,) = np.nonzero(tokens == SEP)
        assert tokens[0] == CLS and ends[-1] == length - 1
        assert not np.isin(positions, [0, *ends]).any()
        a, b = tokens[1 : ends[0]], tokens[ends[0] + 1 : -1]
        for part in (a, b):  # a text without a gap, of one document
            if len(part):
                assert (np.diff(part) == 1).all()
                assert home(part[0]) == home(part[-1])
        if task == "none":
            assert not len(b) and set(y) == {"mlm"}
            continue
        assert weight[task][row] == (len(b) > 0) == (len(ends) == 2)
        if len(b):
            if home(a[0]) == home(b[0]):  # B comes first exactly if swapped
                assert (
                    y[task][row]
                    == (a[0] > b[0])
                    == (y[task][row] and task == "sop")
                )
            else:
                assert y[task][row] == 1
                assert config.needs_other_documents
        else:
            assert y[task][row] == 0
            assert config.single_sentence == "skip_order"
        # Words are masked whole.
        chosen = np.isin(np.arange(length), positions)
        for i in range(1, length):
            special = {int(tokens[i]), int(tokens[i - 1])} & {CLS, SEP}
            if not special and not word_starts[tokens[i]]:
                assert chosen[i] == chosen[i - 1]


@given(corpora, configs, seeds)
def test_a_plan_is_a_partition(documents, config, seed):
    shards = shard_of(documents), shard_of(documents[:1])
    corpus = Corpus(SimpleNamespace(shards=shards))
    plan = plan_epoch(corpus, config, seed, 0)
    count = corpus.first_sentences[-1]
    assert plan.edges[0] == 0 and plan.edges[-1] == count
    assert sorted(plan.order.tolist()) == list(range(len(plan.edges) - 1))
    sentences = np.arange(count)
    chunk = np.searchsorted(plan.edges, sentences, side="right")
    first, end = corpus.documents_of(sentences)
    for number in range(1, len(plan.edges)):
        assert len(np.unique(first[chunk == number])) == 1
        assert len(np.unique(end[chunk == number])) == 1
