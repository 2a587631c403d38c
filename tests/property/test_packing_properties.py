"""What must hold for all lengths of examples."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import keras_albert as ka
from keras_albert.pretraining.masking import budgets
from keras_albert.pretraining.packing import pack_examples

pytestmark = pytest.mark.any_backend

ROW = 53
all_lengths = st.lists(st.integers(1, ROW), min_size=1, max_size=120)
seeds = st.integers(0, 2**64 - 1)


@given(all_lengths, st.integers(1, 9), seeds)
def test_rows(lengths, most, seed):
    lengths = np.array(lengths)
    packing = pack_examples(lengths, ROW, most, np.uint64(seed))
    count, rows = len(lengths), len(packing.edges) - 1
    # Every example once.
    assert sorted(packing.members.tolist()) == list(range(count))
    assert packing.edges[0] == 0 and packing.edges[-1] == count
    sizes = np.diff(packing.edges)
    assert sizes.min() >= 1 and sizes.max() <= most
    tokens = np.add.reduceat(lengths[packing.members], packing.edges[:-1])
    assert tokens.max() <= ROW
    assert packing.fill == lengths.sum() / (ROW * rows)
    # No two rows could be one: at most one is half empty for want of examples.
    assert ((tokens <= ROW / 2) & (sizes < most)).sum() <= 1 or most == 1
    # The same, in another order, from another seed.
    other = pack_examples(lengths, ROW, most, np.uint64(seed) ^ np.uint64(1))
    assert rows_of(packing) == rows_of(other)
    again = pack_examples(lengths, ROW, most, np.uint64(seed))
    assert (again.members == packing.members).all()
    assert (again.edges == packing.edges).all()


def rows_of(packing):
    rows = np.split(packing.members, packing.edges[1:-1])
    return sorted(row.tolist() for row in rows)


@given(
    st.lists(st.integers(3, ROW), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 30),
    st.floats(0.01, 0.99),
)
def test_a_row_has_room_for_all_predictions(lengths, most, limit, share):
    examples = ka.ExampleConfig(
        sequence_length=ROW,
        max_predictions=limit,
        masked_lm_prob=share,
        pack=True,
        max_examples=most,
    )
    lengths = np.array(lengths)
    packing = pack_examples(lengths, ROW, most, np.uint64(0))
    asked = budgets(lengths[packing.members], examples).numpy()
    in_rows = np.add.reduceat(asked, packing.edges[:-1])
    assert in_rows.max() <= examples.row_predictions
