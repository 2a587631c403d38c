"""Examples against 40 instances made by the original ALBERT code.

They are 8 pieces of text, masked 5 times each with independent chance. So
where texts are cut, how they are truncated, counts of predictions and word
boundaries must be equal, while shares can only be compared as samples. Each
tolerance is 4 standard deviations of the same statistic over 40 instances,
measured on 100 of our own maskings of the same 40 texts: wide enough that a
right implementation passes, and narrow enough that p(n) turned round (2/11,
3/11, 6/11) fails in the last test.
"""

import itertools
import json

import numpy as np
import pytest
from reference_examples import budget_of, documents_of, rows_of

import keras_albert as ka
from keras_albert.corpus.config import PrepareRun
from keras_albert.corpus.prepare import prepare
from keras_albert.corpus.token_index import Corpus
from keras_albert.pretraining import masking
from keras_albert.pretraining.segments import example_keys, plan_epoch, truncate
from keras_albert.text.special_tokens import CLS_ID, SEP_ID

pytestmark = pytest.mark.any_backend

# As the instances were made.
CONFIG = ka.ExampleConfig(sequence_length=128, short_seq_prob=0, cross_sep=True)
REPEATS = 100


@pytest.fixture(scope="module")
def rows(data_folder):
    path = data_folder / "golden" / "pretraining_instances.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 40
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def instances(rows, tokenizer):
    """(tokens before masking, masked tokens, positions, word boundaries)."""
    result = []
    for row in rows:
        positions = np.array(row["masked_lm_positions"])
        masked = ids_of(tokenizer, row["tokens"])
        tokens = masked.copy()
        tokens[positions] = ids_of(tokenizer, row["masked_lm_labels"])
        result.append(
            (tokens, masked, positions, np.array(row["token_boundary"]))
        )
    return result


def ids_of(tokenizer, pieces):
    return np.array([tokenizer.piece_to_id(piece) for piece in pieces])


def pair_of(tokens):
    """A and B of `[CLS] A [SEP] B [SEP]`, as lists."""
    (ends,) = np.nonzero(tokens == SEP_ID)
    return tokens[1 : ends[0]].tolist(), tokens[ends[0] + 1 : -1].tolist()


@pytest.fixture(scope="module")
def ours(instances, tokenizer):
    """Positions of `REPEATS` maskings of every instance."""
    return sample(instances, tokenizer)


def sample(instances, tokenizer):
    pairs = [pair_of(tokens) for tokens, *_ in instances] * REPEATS
    x, _, weight = masking.build_batch(
        rows_of(pairs, CONFIG.sequence_length, 0), tokenizer.word_starts, CONFIG
    )
    positions = [
        row[used > 0]
        for row, used in zip(
            x["masked_positions"].numpy(), weight["mlm"].numpy(), strict=True
        )
    ]
    count = len(instances)
    return [
        positions[start : start + count]
        for start in range(0, len(positions), count)
    ]


def word_numbers(tokens, boundaries):
    """Which word each token belongs to, as the reference counts them."""
    special = (tokens == CLS_ID) | (tokens == SEP_ID)
    starts = (boundaries == 1) | special
    starts[1:] |= special[:-1]
    return np.cumsum(starts)


def statistics(instances, all_positions) -> dict[str, float]:
    """Shares of masked tokens by word length, and of runs by words in them."""
    word_lengths, runs = [], []
    for (tokens, _, _, boundaries), positions in zip(
        instances, all_positions, strict=True
    ):
        words = word_numbers(tokens, boundaries)
        word_lengths += np.bincount(words)[words[positions]].tolist()
        masked_words = np.unique(words[positions])
        breaks = np.flatnonzero(np.diff(masked_words) > 1) + 1
        runs += [len(run) for run in np.split(masked_words, breaks)]
    word_lengths, runs = np.array(word_lengths), np.array(runs)
    return {
        "tokens in one-piece words": (word_lengths == 1).mean(),
        "tokens in two-piece words": (word_lengths == 2).mean(),
        "tokens in longer words": (word_lengths > 2).mean(),
        "runs of one word": (runs == 1).mean(),
        "runs of two words": (runs == 2).mean(),
        "runs of three words": (runs == 3).mean(),
        "words in a run": runs.mean(),
    }


def outside(instances, all_positions, ours) -> list[str]:
    """The statistics in which a sample is not one of ours."""
    found = statistics(instances, all_positions)
    expected = [statistics(instances, positions) for positions in ours]
    names = []
    for name, value in found.items():
        values = np.array([row[name] for row in expected])
        if abs(value - values.mean()) > 4 * values.std():
            names.append(name)
    return names


def test_words_start_where_the_reference_has_them(instances, tokenizer):
    for tokens, _, _, boundaries in instances:
        special = (tokens == CLS_ID) | (tokens == SEP_ID)
        np.testing.assert_array_equal(
            tokenizer.word_starts[tokens] | special, boundaries == 1
        )


def test_number_of_predictions(instances, ours):
    for number, (tokens, _, positions, _) in enumerate(instances):
        budget = budget_of(len(tokens), CONFIG)
        assert len(positions) == budget
        assert {len(sample[number]) for sample in ours} == {budget}


@pytest.fixture(scope="module")
def chunks(data_folder, tmp_path_factory):
    """Our chunks of the same text: the sentences of each, as lists of ids."""
    run = PrepareRun(
        input=(data_folder / "golden" / "pretraining_input.txt",),
        vocab=data_folder / "vocab" / "30k-clean.model",
        output=tmp_path_factory.mktemp("parity") / "shards",
    )
    prepare(run)
    shards = ka.ShardSet.open(run.output)
    plan = plan_epoch(Corpus(shards), CONFIG, 0, 0)
    sentences = list(itertools.chain.from_iterable(documents_of(shards)))
    return [
        sentences[first:end] for first, end in itertools.pairwise(plan.edges)
    ]


def could_be(pair, swapped, chunk) -> bool:
    """Whether a pair is a chunk, split at a sentence and truncated."""
    for split in range(1, len(chunk)):
        segments = [
            list(itertools.chain(*part))
            for part in (chunk[:split], chunk[split:])
        ]
        if swapped:
            segments.reverse()
        _, sizes = truncate(
            np.zeros((1, 2), "int64"),
            np.array([[len(segment) for segment in segments]]),
            CONFIG.sequence_length,
            example_keys(0, 0, [0]),
        )
        if [len(part) for part in pair] == sizes[0].tolist() and all(
            part in [segment[i : i + len(part)] for i in range(len(segment))]
            for part, segment in zip(pair, segments, strict=True)
        ):
            return True
    return False


def test_texts_are_cut_where_the_reference_cuts(rows, instances, chunks):
    """Every instance is a chunk of ours, and each chunk is one 5 times."""
    found = []
    for row, (tokens, *_) in zip(rows, instances, strict=True):
        swapped = row["is_random_next(=SOP swapped)"]
        pair = pair_of(tokens)
        possible = [could_be(pair, swapped, chunk) for chunk in chunks]
        # What the label says is what one sees.
        assert not any(could_be(pair, not swapped, chunk) for chunk in chunks)
        found.append(possible)
    assert np.sum(found, axis=1).tolist() == [1] * 40
    assert np.sum(found, axis=0).tolist() == [5] * 8


def test_which_tokens_are_masked(instances, ours):
    golden = [positions for _, _, positions, _ in instances]
    assert outside(instances, golden, ours) == []


@pytest.mark.proof
def test_the_comparison_can_fail(instances, tokenizer, monkeypatch):
    """Longer n-grams more likely: the golden sample tells them apart."""
    monkeypatch.setattr(
        masking,
        "ngram_thresholds",
        lambda ngram: np.array([2, 5]) * 2**20 // 11,
    )
    wrong = sample(instances, tokenizer)
    golden = [positions for _, _, positions, _ in instances]
    assert "runs of one word" in outside(instances, golden, wrong)
