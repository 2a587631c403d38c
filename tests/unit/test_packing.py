"""Which examples share a row, and how they get there; by hand."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import tensorflow as tf
from reference_examples import rows_of
from small import marked
from test_pretraining_data import write_shards

import keras_albert as ka
from keras_albert.pretraining import masking, segments
from keras_albert.pretraining.dataset import ExampleStream
from keras_albert.pretraining.packing import kinds_of_rows, pack_examples
from keras_albert.pretraining.segments import plan_epoch

pytestmark = pytest.mark.any_backend

CONFIG = ka.ExampleConfig(sequence_length=61, max_predictions=5)


@pytest.fixture(scope="module")
def shards(tiny_lines, tiny_vocab, tmp_path_factory):
    """Documents of one to nine sentences, most of them short."""
    lines = iter(tiny_lines)
    documents = [
        [line[: 7 + 3 * (n % 7)] for line in islice(lines, n % 9 + 1)]
        for n in range(61)
    ]
    folder = tmp_path_factory.mktemp("packing")
    result = write_shards(folder, tiny_vocab, documents, shard_bytes=5_000)
    assert len(result.shards) > 1
    return result


@pytest.mark.parametrize(
    ("lengths", "most", "expected"),
    [
        ([6, 4, 4, 6, 2, 4], 3, [(2, (6, 4)), (1, (4, 2))]),
        ([10, 9, 1, 1], 3, [(1, (10,)), (1, (9, 1)), (1, (1,))]),
        ([3, 3, 3, 3, 3, 3, 3], 3, [(2, (3, 3, 3)), (1, (3,))]),
        # 5 joins 4, where it leaves no room but one, and not 3
        ([4, 3, 7, 5, 6], 9, [(1, (7, 3)), (1, (6, 4)), (1, (5,))]),
    ],
)
def test_kinds_of_rows(lengths, most, expected):
    kinds = kinds_of_rows(np.bincount(lengths, minlength=11), 10, most)
    assert sorted(kinds) == sorted(expected)


def test_rows_are_shuffled():
    """Not by their kind, the longest examples first."""
    lengths = np.repeat([9, 6, 4], 40)
    firsts = []
    for key in (1, 2):
        packing = pack_examples(lengths, 10, 3, np.uint64(key))
        firsts.append(lengths[packing.members[packing.edges[:-1]]].tolist())
        assert sorted(packing.members.tolist()) == [*range(120)]
    assert firsts[0] != firsts[1]
    assert sorted(firsts[0]) == sorted(firsts[1]) == [6] * 40 + [9] * 40


def test_a_batch_by_hand():
    """[CLS] 10 [SEP] 11 [SEP] and [CLS] 12 [SEP] in a row, 13 in another.

    Of 5 tokens 2 are predicted, which are both words; of 3 one.
    """
    examples = ka.ExampleConfig(
        sequence_length=9, masked_lm_prob=0.4, pack=True, max_examples=2
    )
    rows = rows_of([([10], [11]), ([12], []), ([13], [])], 9, 0)._replace(
        labels=tf.constant([1, 0, 0]),
        weights=tf.constant([1.0, 1.0, 0.0]),  # the last one only fills up
        counts=tf.constant([2, 1]),
    )
    x, y, weight = (
        {name: tensor.numpy() for name, tensor in part.items()}
        for part in masking.build_batch(rows, np.ones(17, bool), examples)
    )
    positions = x.pop("masked_positions")
    assert positions.tolist() == [[1, 3, 6, 0], [1, 0, 0, 0]]
    assert y["mlm"].tolist() == [[10, 11, 12, 0], [13, 0, 0, 0]]
    assert weight["mlm"].tolist() == [[1, 1, 1, 0], [0, 0, 0, 0]]
    x["token_ids"][[0, 0, 0, 1], [1, 3, 6, 1]] = [10, 11, 12, 13]
    assert {name: x[name].tolist() for name in x} == {
        "token_ids": [[2, 10, 3, 11, 3, 2, 12, 3, 0], [2, 13, 3] + [0] * 6],
        "segment_ids": [[0, 0, 0, 1, 1, 0, 0, 0, 0], [0] * 9],
        "padding_mask": [[1] * 8 + [0], [1] * 3 + [0] * 6],
        "example_ids": [[1] * 5 + [2] * 3 + [0], [1] * 3 + [0] * 6],
        "position_ids": [[0, 1, 2, 3, 4, 0, 1, 2, 0], [0, 1, 2] + [0] * 6],
        "cls_positions": [[0, 5], [0, 0]],
    }
    assert y["sop"].tolist() == [[1, 0], [0, 0]]
    assert weight["sop"].tolist() == [[1, 0], [0, 0]]
    for part, kind in ((x, "int32"), (y, "int32"), (weight, "float32")):
        assert {array.dtype.name for array in part.values()} == {kind}


def examples_of(batch, task):
    """Each example as one bytes object, sorted; of packed rows or of plain."""
    found = []
    x, y, weight = batch
    plain = "example_ids" not in x
    ids = x["padding_mask"] if plain else x["example_ids"]
    for row in range(len(ids)):
        for number in range(1, ids[row].max() + 1):
            (places,) = np.nonzero(ids[row] == number)
            assert (np.diff(places) == 1).all()  # one behind the other
            first = places[0]
            used = weight["mlm"][row] > 0
            used &= np.isin(x["masked_positions"][row], places)
            parts = [
                x["token_ids"][row][places],
                x["segment_ids"][row][places],
                x["masked_positions"][row][used] - first,
                y["mlm"][row][used],
            ]
            if not plain:
                assert x["cls_positions"][row, number - 1] == first
                restarted = x["position_ids"][row][places]
                assert restarted.tolist() == list(range(len(places)))
            if task != "none":
                slot = () if plain else (number - 1,)
                parts += [y[task][row][slot], weight[task][row][slot]]
            found.append(b"|".join(np.asarray(p).tobytes() for p in parts))
    return sorted(found)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sentence_task": "nsp"},
        *marked(
            "proof",
            {"sentence_task": "none"},
            {"single_sentence": "random_document", "target_per": "example"},
        ),
        {"max_examples": 2, "masked_lm_prob": 0.6, "max_predictions": 30},
    ],
)
def test_an_epoch_has_the_unpacked_examples(shards, settings, monkeypatch):
    """All of them, once each, with the same masks and labels."""
    monkeypatch.setattr(segments, "LENGTHS_AT_ONCE", 50)
    config = replace(CONFIG, **settings)
    found = []
    for each in (replace(config, pack=True), config):
        rows = ExampleStream(shards, each, 3).rows_per_epoch
        (batch,) = ka.validation_dataset(
            shards, each, batch_size=rows, seed=3
        ).as_numpy_iterator()
        found.append((rows, examples_of(batch, config.sentence_task)))
    (rows, packed), (count, expected) = found
    assert rows < 0.9 * count == 0.9 * len(expected)
    assert packed == expected


def test_epochs_of_rows(shards):
    """Each has other rows and other masks; one that is shorter than the
    first begins again."""
    config = replace(CONFIG, pack=True, short_seq_prob=0.5)
    streams = [ExampleStream(shards, config, seed) for seed in range(9)]
    for seed, stream in enumerate(streams):
        first, second = (
            plan_epoch(stream.corpus, config, seed, epoch).num_rows
            for epoch in (0, 1)
        )
        if second < first:
            break
    assert second < first, "try more seeds"
    *_, keys, sizes = streams[seed].rows(np.arange(2 * first))
    rows = np.split(keys, np.cumsum(sizes)[:-1])
    whole = np.concatenate(rows[: first + second])
    assert len(np.unique(whole)) == len(whole)
    again, start = rows[first + second :], rows[first:]
    for row, expected in zip(again, start, strict=False):
        np.testing.assert_array_equal(row, expected)


def test_packed_batches_have_static_shapes(shards):
    config = replace(CONFIG, pack=True, max_examples=4)
    x, y, weight = ka.pretraining_dataset(
        shards, config, batch_size=3, seed=0
    ).element_spec
    # 61 x 0.15 + 4 x 0.55 = 11.35
    assert config.row_predictions == 11
    for name in ("token_ids", "example_ids", "position_ids"):
        assert x[name].shape == (3, 61)
    assert x["cls_positions"].shape == y["sop"].shape == (3, 4)
    assert weight["sop"].shape == (3, 4)
    assert x["masked_positions"].shape == y["mlm"].shape == (3, 11)
