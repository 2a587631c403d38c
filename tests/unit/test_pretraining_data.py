"""Cutting, ordering, truncating and masking, with answers known by hand."""

import numpy as np
import pytest

from keras_albert.config import AlbertError, ExampleConfig, PrepareRun
from keras_albert.data import pretraining
from keras_albert.data.prepare import prepare
from keras_albert.data.pretraining import (
    DOCUMENT,
    END,
    FIRST,
    SPLIT,
    SWAPPED,
    build_example,
    cut_documents,
    mask_tokens,
    plan_epoch,
    pretraining_dataset,
    validation_dataset,
)
from keras_albert.data.shards import Shard, ShardSet

pytestmark = pytest.mark.any_backend

CLS, SEP, MASK = 2, 3, 4


@pytest.fixture(scope="module")
def shards(tiny_lines, tiny_vocab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    text = folder / "text.txt"
    # 47 documents of 1 to 23 sentences
    lines, documents = iter(tiny_lines), []
    for size in range(47):
        taken = [next(lines) for _ in range(size % 23 + 1)]
        documents.append("\n".join(taken))
    text.write_text("\n\n".join(documents))
    prepare(
        PrepareRun(
            input=(text,),
            vocab=tiny_vocab,
            output=folder / "shards",
            shard_bytes=20_000,
        )
    )
    result = ShardSet.open(folder / "shards")
    assert len(result.shards) > 1
    return result


def rng(seed=0):
    return np.random.default_rng(seed)


def sentences_of(lengths, documents):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Shard(np.arange(offsets[-1]), offsets, np.array(documents))


def test_documents_are_cut_where_the_target_is_reached():
    shard = sentences_of([3, 4, 2, 6, 10, 1], [0, 4, 6])
    np.testing.assert_array_equal(
        cut_documents(shard, np.array([5, 20])),
        [[0, 0, 2], [0, 2, 4], [1, 0, 2]],
    )
    np.testing.assert_array_equal(
        cut_documents(shard, np.array([7, 10])),
        [[0, 0, 2], [0, 2, 4], [1, 0, 1], [1, 1, 2]],
    )
    np.testing.assert_array_equal(
        cut_documents(shard, np.array([8, 2])),
        [[0, 0, 3], [0, 3, 4], [1, 0, 1], [1, 1, 2]],
    )


def test_a_plan_covers_every_sentence_once(shards):
    plan = plan_epoch(shards, ExampleConfig(sequence_length=61), 3, 5)
    assert plan.dtype == "int64"
    order = np.lexsort((plan[:, FIRST], plan[:, DOCUMENT]))
    assert (order != np.arange(len(plan))).any()
    plan = plan[order]
    for document in range(shards.num_documents):
        rows = plan[plan[:, DOCUMENT] == document]
        count = len(shards.sentences(document))
        assert rows[0, FIRST] == 0 and rows[-1, END] == count
        np.testing.assert_array_equal(rows[1:, FIRST], rows[:-1, END])
    single = plan[:, END] - plan[:, FIRST] == 1
    assert (plan[single, SPLIT] == plan[single, END]).all()
    assert (plan[single, SWAPPED] == 0).all()
    several = plan[~single]
    assert (several[:, FIRST] < several[:, SPLIT]).all()
    assert (several[:, SPLIT] < several[:, END]).all()


def test_short_documents_follow_their_probability():
    # 4000 documents of 40 sentences of 1 token. Long target 10: 4 chunks.
    class Documents:
        shards = (
            sentences_of(np.ones(160_000, int), np.arange(0, 160_001, 40)),
        )

    config = ExampleConfig(sequence_length=13, short_seq_prob=0.1)
    plan = plan_epoch(Documents, config, 0, 0)
    sizes = plan[:, END] - plan[:, FIRST]
    shortened = {
        document
        for document, size in zip(plan[:, DOCUMENT], sizes, strict=True)
        if size != 10
    }
    # A target of 2 to 10, each 1/9; 10 looks unshortened. 40 % 4 == 0 etc.
    expected = 4000 * 0.1 * 8 / 9
    assert abs(len(shortened) - expected) < 4 * np.sqrt(expected)
    assert sizes.min() >= 1 and sizes.max() == 10
    long = sizes == 10
    assert abs(plan[:, SWAPPED].mean() - 0.5) < 4 * 0.5 / len(plan) ** 0.5
    # Split after 1 to 9 of 10 sentences, with equal chance.
    counts = np.bincount((plan[:, SPLIT] - plan[:, FIRST])[long])[1:]
    assert len(counts) == 9
    expected = long.sum() / 9
    assert np.abs(counts - expected).max() < 4.5 * np.sqrt(expected)


def test_example_by_hand():
    tokens, segments = build_example(
        np.array([7, 8]), np.array([9]), True, 128, rng()
    )
    assert tokens.tolist() == [CLS, 9, SEP, 7, 8, SEP]
    assert segments.tolist() == [0, 0, 0, 1, 1, 1]
    tokens, segments = build_example(
        np.array([7, 8]), np.array([9]), False, 128, rng()
    )
    assert tokens.tolist() == [CLS, 7, 8, SEP, 9, SEP]
    assert segments.tolist() == [0, 0, 0, 0, 1, 1]
    tokens, segments = build_example(
        np.array([7, 8], "uint16"), np.array([], "uint16"), False, 128, rng()
    )
    assert tokens.tolist() == [CLS, 7, 8, SEP]
    assert segments.tolist() == [0, 0, 0, 0]
    assert tokens.dtype == segments.dtype == "int32"


def test_truncation_by_hand():
    # Room for 5 of 7 + 4: from the longer until 3 + 2; ties cost B.
    starts = set()
    for seed in range(50):
        tokens, _ = build_example(
            np.arange(10, 17), np.arange(20, 24), False, 8, rng(seed)
        )
        a, b = tokens[1:4], tokens[5:7]
        assert tokens[[0, 4, 7]].tolist() == [CLS, SEP, SEP]
        assert a.tolist() == list(range(a[0], a[0] + 3)) and 10 <= a[0] <= 14
        assert b.tolist() == [b[0], b[0] + 1] and 20 <= b[0] <= 22
        starts.add((int(a[0]), int(b[0])))
    assert len(starts) > 8  # front or back, at random
    # The short one stays whole: room 5 of 9 + 1 gives 4 + 1.
    tokens, _ = build_example(
        np.arange(10, 19), np.array([30]), False, 8, rng()
    )
    assert tokens[6] == 30


WORD_STARTS = np.ones(100, bool)
WORD_STARTS[50:] = False  # ids from 50 on continue a word


def masked_positions(tokens, seed, **config):
    config = ExampleConfig(sequence_length=128, **config)
    masked, positions, labels = mask_tokens(
        np.array(tokens), WORD_STARTS, config, 100, rng(seed)
    )
    np.testing.assert_array_equal(labels, np.array(tokens)[positions])
    untouched = np.delete(np.arange(len(tokens)), positions)
    np.testing.assert_array_equal(
        masked[untouched], np.array(tokens)[untouched]
    )
    assert masked.dtype == positions.dtype == labels.dtype == "int32"
    return positions.tolist()


def test_masking_by_hand():
    # words: (10 50) (11); T = 5, so prob 0.2 gives 1 token, 0.4 gives 2.
    tokens = [CLS, 10, 50, 11, SEP]
    for seed in range(30):
        assert masked_positions(tokens, seed, masked_lm_prob=0.2) == [3]
        assert masked_positions(tokens, seed, masked_lm_prob=0.4) in (
            [1, 2],
            [3],
        )
        assert masked_positions(tokens, seed, masked_lm_prob=0.6) == [1, 2, 3]
    # the limit on predictions counts before the probability
    assert masked_positions(
        tokens, 0, masked_lm_prob=0.6, max_predictions=1
    ) == [3]


def test_the_budget_rounds_as_the_reference():
    tokens = [CLS, *range(10, 33), SEP]  # 25 tokens
    # Python: round(12.5) is 12
    assert len(masked_positions(tokens, 0, masked_lm_prob=0.5)) == 12
    assert len(masked_positions(tokens, 0, masked_lm_prob=0.01)) == 1
    assert len(masked_positions(tokens, 0, masked_lm_prob=0.99)) == 20


def test_a_word_starts_after_every_separator():
    # (10) | (60 61): the continuation piece after [SEP] is a word of its own
    tokens = [CLS, 10, SEP, 60, 61, SEP]
    found = {
        tuple(masked_positions(tokens, seed, masked_lm_prob=0.34))
        for seed in range(40)  # budget 2: one of the words, whole
    }
    assert found == {(1,), (3, 4)}
    # ... and at the beginning, where truncation cut into a word
    assert masked_positions([CLS, 60, 10, SEP], 0, masked_lm_prob=0.75) == [
        1,
        2,
    ]


def test_words_that_do_not_fit_leave_no_prediction():
    assert masked_positions([CLS, 10, 50, 51, SEP], 0, masked_lm_prob=0.2) == []


def test_ngrams_stay_inside_a_segment():
    # With ngram 3 and budget 2 of 3 one-word segments: never more than the
    # first n-gram of one word, so any pair of positions can occur.
    tokens = [CLS, 10, SEP, 11, SEP, 12, SEP]
    found = {
        tuple(masked_positions(tokens, seed, masked_lm_prob=0.29))
        for seed in range(60)
    }
    assert found == {(1, 3), (1, 5), (3, 5)}


def test_ngram_lengths_follow_the_paper():
    """p(n) = (1/n) / sum(1/k): 6/11, 3/11, 2/11 where three words follow."""
    tokens = np.array([CLS, *[10] * 50_000, SEP], "int32")
    config = ExampleConfig(sequence_length=8)
    _, order, sizes = pretraining._draw_ngrams(
        tokens, WORD_STARTS, config, rng(1)
    )
    assert sorted(order) == list(range(1, 50_001))
    share = np.bincount(sizes, minlength=4) / len(sizes)
    np.testing.assert_allclose(
        share, [0, 6 / 11, 3 / 11, 2 / 11], atol=4 * 0.5 / 50_000**0.5
    )
    # Renormalised for the last words of a segment.
    last = {50_000: [], 49_999: []}
    short = tokens[-6:]
    short[0] = CLS  # four words
    for seed in range(4000):
        _, order, sizes = pretraining._draw_ngrams(
            short, WORD_STARTS, config, rng(seed)
        )
        last[50_000].append(sizes[order.index(4)])
        last[49_999].append(sizes[order.index(3)])
    assert set(last[50_000]) == {1}
    two = np.bincount(last[49_999]) / 4000
    np.testing.assert_allclose(two, [0, 2 / 3, 1 / 3], atol=4 * 0.5 / 4000**0.5)


def test_what_masked_tokens_become():
    tokens = np.array([CLS, *[10] * 40, SEP], "int32")
    config = ExampleConfig(
        sequence_length=64, max_predictions=40, masked_lm_prob=0.95, ngram=1
    )
    seen = np.concatenate(
        [
            mask_tokens(tokens, WORD_STARTS, config, 100, rng(seed))[0][1:-1]
            for seed in range(500)
        ]
    )
    count = len(seen)
    assert count == 20_000
    tolerance = 4 * 0.5 / count**0.5
    # 80 %, and 1 in 100 of the random tenth is [MASK] or 10 itself
    assert abs((seen == MASK).mean() - 0.801) < tolerance
    assert abs((seen == 10).mean() - 0.101) < tolerance
    rest = seen[(seen != MASK) & (seen != 10)]
    assert len(np.unique(rest)) == 98  # all others, special pieces included


def batches_equal(first, second):
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_pretraining_dataset(shards):
    config = ExampleConfig(sequence_length=37, max_predictions=7)
    dataset = pretraining_dataset(
        shards, config, batch_size=5, seed=1, steps=11
    )
    x, y, weight = dataset.element_spec
    assert x["token_ids"].shape == x["segment_ids"].shape == (5, 37)
    assert x["padding_mask"].shape == (5, 37)
    assert x["masked_positions"].shape == y["mlm"].shape == (5, 7)
    assert y["sop"].shape == weight["sop"].shape == (5,)
    assert dataset.cardinality() == 11
    batches = list(dataset.as_numpy_iterator())
    assert len(batches) == 11
    later = pretraining_dataset(
        shards, config, batch_size=5, seed=1, start_step=8, steps=3
    )
    for a, b in zip(later.as_numpy_iterator(), batches[8:], strict=True):
        for one, other in zip(a, b, strict=True):
            batches_equal([one], [other])
    endless = pretraining_dataset(shards, config, batch_size=5, seed=1)
    assert endless.cardinality() == -1
    batches_equal(next(endless.as_numpy_iterator()), batches[0])


def test_epochs_follow_without_a_gap(shards):
    """A batch over the end of an epoch; other masks in the next one."""
    config = ExampleConfig(sequence_length=37, short_seq_prob=0)
    stream = pretraining.ExampleStream(shards, config, 0)
    count = stream.examples_per_epoch
    two_epochs = stream.batch(0, 2 * count)
    for step in range(2 * count // 7):
        one = stream.batch(step, 7)
        for part, whole in zip(one, two_epochs, strict=True):
            for name in part:
                np.testing.assert_array_equal(
                    part[name], whole[name][7 * step : 7 * step + 7]
                )
    x = two_epochs[0]["token_ids"]
    assert (x[:count] != x[count:]).any()
    # without short documents every epoch has the same chunks
    lengths = two_epochs[0]["padding_mask"].sum(1)
    assert sorted(lengths[:count]) == sorted(lengths[count:])


def test_chance_depends_on_seed_epoch_and_index(shards):
    config = ExampleConfig(sequence_length=128)
    span = plan_epoch(shards, config, 0, 0)[:1]
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    masks = {
        pretraining.build_batch(shards, config, span, [key], 1)[0][
            "masked_positions"
        ].tobytes()
        for key in keys + keys
    }
    assert len(masks) == len(keys)


def test_validation_has_every_example_once(shards):
    config = ExampleConfig(sequence_length=37, max_predictions=7)
    count = len(plan_epoch(shards, config, 0, 0))
    dataset = validation_dataset(shards, config, batch_size=64)
    batches = list(dataset.as_numpy_iterator())
    assert len(batches) == dataset.cardinality() == -(-count // 64)
    assert count % 64, "choose another batch size"
    assert {x["token_ids"].shape for x, _, _ in batches} == {(64, 37)}
    rows = len(pretraining.plan_epoch(shards, config, 0, 0))
    assert rows == count
    predicting = sum((w["mlm"].sum(1) > 0).sum() for _, _, w in batches)
    assert predicting == count
    x, _, weight = batches[-1]
    assert not weight["sop"][count % 64 :].any()
    assert not weight["mlm"][count % 64 :].any()
    assert x["padding_mask"][count % 64 :, 0].all()  # no row is empty
    for a, b in zip(batches, dataset.as_numpy_iterator(), strict=True):
        for one, other in zip(a, b, strict=True):
            batches_equal([one], [other])


def test_single_sentences_do_not_count_for_the_order(tmp_path, tiny_vocab):
    text = tmp_path / "a.txt"
    text.write_text("two hens\n\nnothing\n\nthe old barn\n")
    prepare(
        PrepareRun(input=(text,), vocab=tiny_vocab, output=tmp_path / "shards")
    )
    shards = ShardSet.open(tmp_path / "shards")
    config = ExampleConfig(
        sequence_length=16, max_predictions=14, masked_lm_prob=0.8
    )
    (batch,) = validation_dataset(
        shards, config, batch_size=3
    ).as_numpy_iterator()
    x, _, weight = batch
    assert weight["sop"].tolist() == [0, 0, 0]
    assert not x["segment_ids"].any()
    assert ((x["token_ids"] == SEP).sum(1) == 1).all()
    # Three examples an epoch: a batch of 8 spans three epochs.
    stream = pretraining.ExampleStream(shards, config, 0)
    assert stream.batch(0, 8)[2]["mlm"].any(axis=1).all()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": -1},
        {"seed": 1.5},
        {"batch_size": 0},
        {"steps": 0},
        {"start_step": -1},
    ],
)
def test_arguments_out_of_range(shards, change):
    arguments = {"batch_size": 2, "seed": 0, "steps": 1, **change}
    (name,) = change
    with pytest.raises(AlbertError, match=name):
        pretraining_dataset(shards, ExampleConfig(), **arguments)


def test_no_tensorflow(shards, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorflow", None)
    with pytest.raises(AlbertError, match=r"keras-albert\[tensorflow\]"):
        validation_dataset(shards, ExampleConfig(), batch_size=2)
