"""Batches of examples of any length."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, strategies as st

from keras_albert.data.batches import (
    Features,
    choose_lengths,
    epoch_plan,
    sorted_plan,
    training_dataset,
)
from keras_albert.errors import AlbertError
from keras_albert.text import model_inputs
from keras_albert.text.model_inputs import Row, text_rows

pytestmark = pytest.mark.any_backend

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40).map(np.array)


def features_of(lengths, **kwargs):
    """Row i is i + 1, `lengths[i]` times; its first half is segment 0."""
    rows = [
        Row(np.full(length, i + 1, "int32"), length // 2)
        for i, length in enumerate(lengths)
    ]
    return Features(rows, **kwargs)


@given(LENGTHS, st.integers(1, 4), st.sampled_from([50, 51, 64]))
def test_no_other_lengths_leave_less(lengths, most, longest):
    def cost(static):
        return np.sort(static)[np.searchsorted(np.sort(static), lengths)].sum()

    chosen = choose_lengths(lengths, longest, most)
    assert len(chosen) <= most
    assert chosen.tolist() == sorted({*chosen.tolist()})
    assert lengths.max() <= chosen[-1] <= longest
    sizes = {min(-(-n // 8) * 8, longest) for n in lengths.tolist()}
    for other in itertools.combinations(sorted(sizes), min(most, len(sizes))):
        if other[-1] >= lengths.max():
            assert cost(chosen) <= cost(np.array(other))


@given(LENGTHS, st.integers(1, 9), st.integers(1, 4), st.integers(0, 9))
@example(np.full(7, 5), 3, 1, 0)  # one is left over
@example(np.array([3, 50, 50, 50, 50]), 4, 4, 1)
@example(np.full(3, 5), 2, 1, 0)
def test_an_epoch_has_each_example_once(lengths, batch_size, most, epoch):
    static = choose_lengths(lengths, 64, most)
    plan = epoch_plan(lengths, static, batch_size, 7, epoch)
    assert len(plan) == -(-len(lengths) // batch_size)
    sizes = [len(chosen) for chosen, _ in plan]
    full, rest = [batch_size] * (len(plan) - 1), len(lengths) % batch_size
    if rest == 1 and full and batch_size > 2:  # a single example is not alone
        full[-1], rest = batch_size - 1, 2
    assert sizes == [*full, rest or batch_size]
    together = np.concatenate([chosen for chosen, _ in plan])
    assert np.sort(together).tolist() == list(range(len(lengths)))
    for chosen, length in plan:
        assert length in static
        smaller = static[static < length]
        assert lengths[chosen].max() <= length
        assert not smaller.size or lengths[chosen].max() > smaller[-1]
    again = epoch_plan(lengths, static, batch_size, 7, epoch)
    for one, other in zip(plan, again, strict=True):
        assert one[0].tolist() == other[0].tolist()


def test_epochs_and_seeds_differ():
    lengths, static = np.full(64, 5), np.array([8])
    orders = set()
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        plan = epoch_plan(lengths, static, 4, seed, epoch)
        orders.add(tuple(np.concatenate([c for c, _ in plan]).tolist()))
    assert len(orders) == 3


@given(LENGTHS, st.integers(1, 9))
def test_sorted_batches_can_be_put_back(lengths, batch_size):
    plan = sorted_plan(lengths, choose_lengths(lengths, 64), batch_size)
    order = np.concatenate([chosen for chosen, _ in plan])
    assert np.sort(order).tolist() == list(range(len(lengths)))
    assert (np.diff(lengths[order]) >= 0).all(), "in the order of length"


def test_a_batch_by_hand():
    features = features_of([3, 2], target=np.array([7, 9], "int32"))
    x, y, weight = features.batch(np.array([1]), 2, 4)
    assert x["token_ids"].tolist() == [[2, 2, 0, 0]] * 2
    assert x["segment_ids"].tolist() == [[0, 1, 0, 0]] * 2
    assert x["padding_mask"].tolist() == [[1, 1, 0, 0]] * 2
    assert y.tolist() == [9, 9]
    assert weight.tolist() == [1, 0]
    several = features_of([3], target={"start": np.array([1])})
    _, y, _ = several.batch(np.array([0]), 2, 4)
    assert {k: v.tolist() for k, v in y.items()} == {"start": [1, 1]}


def test_a_batch_with_a_label_for_each_token():
    features = features_of(
        [3, 2], token_target=[np.array([-1, 4, -1]), np.array([0, -1])]
    )
    _, y, weight = features.batch(np.array([0, 1]), 3, 4)
    assert y.tolist() == [[0, 4, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert weight.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_a_batch_of_choices():
    features = features_of([3, 2, 1, 4], choices=2)
    assert len(features) == 2
    assert features.lengths.tolist() == [3, 4]
    x, _, _ = features.batch(np.array([1, 0]), 2, 4)
    assert x["token_ids"].tolist() == [
        [[3, 0, 0, 0], [4, 4, 4, 4]],
        [[1, 1, 1, 0], [2, 2, 0, 0]],
    ]


def test_a_dataset_begins_at_any_step():
    lengths = [3, 9, 4, 30, 8, 17, 5]
    features = features_of(lengths, target=np.arange(7, dtype="int32"))
    static = choose_lengths(features.lengths, 30, most=2)
    options = {"batch_size": 2, "seed": 3, "epochs": 3}
    dataset = training_dataset(features, static, **options)
    # Its thread would be waited for, see `without_tuning`.
    assert dataset.options().autotune.enabled is False
    whole = list(dataset)
    assert len(whole) == 12
    seen = np.concatenate([y[w > 0] for _, y, w in whole])
    assert np.sort(seen).tolist() == sorted([*range(7)] * 3)
    assert {x["token_ids"].shape[1] for x, _, _ in whole} == {*static.tolist()}
    for start in (1, 7, 11):
        rest = training_dataset(features, static, **options, start_step=start)
        for found, expected in zip(rest, whole[start:], strict=True):
            tf.nest.map_structure(
                np.testing.assert_array_equal, found, expected
            )


def test_rows_of_texts(tokenizer, tiny_lines, monkeypatch):
    """Those of the tokenizer, cut where they are too long."""
    monkeypatch.setattr(model_inputs, "LINES_AT_ONCE", 3)
    texts = [*tiny_lines[:7], " ".join(tiny_lines[:40])]
    pairs = tiny_lines[7:15]
    for second in (None, pairs):
        rows = text_rows(tokenizer, texts, second, 60)
        x, _, _ = Features(rows).batch(np.arange(8), 8, 60)
        for name, values in tokenizer(texts, second, 60, pad_to=60).items():
            np.testing.assert_array_equal(x[name], values)
    assert len(rows[7][0]) == 60
    assert text_rows(tokenizer, [], None, 60) == []
    with pytest.raises(AlbertError, match="8 texts, 7 pairs"):
        text_rows(tokenizer, texts, pairs[:7], 60)
    with pytest.raises(AlbertError, match="no examples"):
        Features([])


def test_windows_have_the_label_of_their_text():
    given = {"target": np.array([7, 8]), "source": [1, 3], "pooling": "mean"}
    windows = features_of([5, 6, 6, 4], **given).as_rows()
    assert windows.target.tolist() == [7, 8, 8, 8]
    assert windows.pooling is None


def test_an_example_is_cut_if_one_of_its_choices_is():
    rows = [Row(np.ones(4, "int32"), 4, is_cut) for is_cut in (False, True)]
    assert Features(rows, choices=2).cut == 1


def test_short_batches_are_not_all_first():
    lengths = np.array([5] * 64 + [50] * 64)
    plan = epoch_plan(lengths, choose_lengths(lengths, 64), 4, 0, 0)
    found = [length for _, length in plan]
    assert sorted(found) == [8] * 16 + [56] * 16 != found
    assert 8 in found[16:]
