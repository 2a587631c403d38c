"""What must hold for every pretraining example."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_albert.config import ExampleConfig, PrepareRun
from keras_albert.data.prepare import prepare
from keras_albert.data.pretraining import (
    END,
    FIRST,
    SPLIT,
    SWAPPED,
    ExampleStream,
    build_example,
    cut_documents,
    mask_tokens,
    plan_epoch,
    pretraining_dataset,
)
from keras_albert.data.shards import Shard, ShardSet

pytestmark = pytest.mark.any_backend

CLS, SEP = 2, 3
VOCAB_SIZE = 1000

configs = st.builds(
    ExampleConfig,
    sequence_length=st.integers(8, 80),
    max_predictions=st.integers(1, 20),
    masked_lm_prob=st.floats(0.01, 0.9),
    ngram=st.integers(1, 5),
    short_seq_prob=st.floats(0, 0.9),
)
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def shards(tiny_lines, tiny_vocab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("property")
    (folder / "text.txt").write_text(
        "\n\n".join(
            "\n".join(tiny_lines[k : k + 1 + k % 11]) for k in range(0, 590, 10)
        )
    )
    run = PrepareRun(
        input=(folder / "text.txt",),
        vocab=tiny_vocab,
        output=folder / "shards",
        shard_bytes=16_000,
    )
    prepare(run)
    return ShardSet.open(run.output)


def naive_truncation(a: int, b: int, room: int) -> tuple[int, int]:
    while a + b > room:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    return a, b


@given(
    st.integers(1, 60),
    st.integers(0, 60),
    st.integers(8, 60),
    st.booleans(),
    seeds,
)
def test_example(first_size, second_size, sequence_length, swapped, seed):
    first = np.arange(100, 100 + first_size)
    second = np.arange(500, 500 + second_size)
    swapped = swapped and second_size > 0
    tokens, segments = build_example(
        first, second, swapped, sequence_length, np.random.default_rng(seed)
    )
    assert len(tokens) == len(segments) <= sequence_length
    ends = np.flatnonzero(tokens == SEP).tolist()
    assert tokens[0] == CLS and ends[-1] == len(tokens) - 1
    assert (np.diff(segments) >= 0).all()
    if not second_size:
        assert len(ends) == 1 and not segments.any()
        a, b = tokens[1:-1], []
        assert len(a) == min(first_size, sequence_length - 2)
    else:
        assert len(ends) == 2
        assert np.flatnonzero(segments)[0] == ends[0] + 1
        a, b = tokens[1 : ends[0]], tokens[ends[0] + 1 : -1]
        sizes = (first_size, second_size)
        assert (len(a), len(b)) == naive_truncation(
            *(sizes[::-1] if swapped else sizes), sequence_length - 3
        )
    # B comes before A in the document exactly if swapped
    assert swapped == bool(len(b) and a[0] > b[0])
    for part in (a, b):
        if len(part):
            np.testing.assert_array_equal(part, part[0] + np.arange(len(part)))


@st.composite
def token_rows(draw):
    a = draw(st.lists(st.integers(5, VOCAB_SIZE - 1), min_size=1, max_size=60))
    b = draw(st.lists(st.integers(5, VOCAB_SIZE - 1), max_size=60))
    return np.array([CLS, *a, SEP, *b, *[SEP][: len(b)]])


@given(token_rows(), configs, seeds)
def test_masking(tokens, config, seed):
    word_starts = np.arange(VOCAB_SIZE) % 3 > 0
    masked, positions, labels = mask_tokens(
        tokens, word_starts, config, VOCAB_SIZE, np.random.default_rng(seed)
    )
    budget = min(
        config.max_predictions,
        max(1, round(len(tokens) * config.masked_lm_prob)),
    )
    assert len(positions) == len(labels) <= budget
    assert (np.diff(positions) > 0).all()
    assert not np.isin(tokens[positions], [CLS, SEP]).any()
    restored = masked.copy()
    restored[positions] = labels
    np.testing.assert_array_equal(restored, tokens)
    assert ((masked >= 0) & (masked < VOCAB_SIZE)).all()
    # Words are masked whole.
    chosen = np.isin(np.arange(len(tokens)), positions)
    for i in range(1, len(tokens)):
        special = {int(tokens[i]), int(tokens[i - 1])} & {CLS, SEP}
        if not special and not word_starts[tokens[i]]:
            assert chosen[i] == chosen[i - 1]


@given(
    st.lists(
        st.lists(st.integers(1, 30), min_size=1, max_size=12),
        min_size=1,
        max_size=8,
    ),
    st.data(),
)
def test_cutting_is_what_a_loop_would_do(documents, data):
    targets = data.draw(
        st.lists(
            st.integers(2, 60),
            min_size=len(documents),
            max_size=len(documents),
        )
    )
    expected = []
    for number, (lengths, target) in enumerate(
        zip(documents, targets, strict=True)
    ):
        first, total = 0, 0
        for i, length in enumerate(lengths):
            total += length
            if total >= target or i == len(lengths) - 1:
                expected.append([number, first, i + 1])
                first, total = i + 1, 0
    lengths = [length for document in documents for length in document]
    shard = Shard(
        tokens=np.zeros(sum(lengths)),
        sentences=np.append(0, np.cumsum(lengths)),
        documents=np.append(0, np.cumsum([len(d) for d in documents])),
    )
    found = cut_documents(shard, np.array(targets))
    assert found.tolist() == expected


@settings(max_examples=40, deadline=None)
@given(configs, seeds, st.integers(0, 3), st.integers(0, 40))
def test_batches(shards, config, seed, epoch, step):
    batch_size = 7
    stream = ExampleStream(shards, config, seed)
    numbers = range(
        epoch * stream.examples_per_epoch + step,
        epoch * stream.examples_per_epoch + step + batch_size,
    )
    x, y, weight = stream.examples_at(numbers, batch_size)
    again = ExampleStream(shards, config, seed).examples_at(numbers, batch_size)
    for a, b in zip((x, y, weight), again, strict=True):
        for name in a:
            assert a[name].tobytes() == b[name].tobytes()
    shape = (batch_size, config.sequence_length)
    assert x["token_ids"].shape == shape
    assert (x["padding_mask"].sum(1) >= 3).all()
    for row, number in enumerate(numbers):
        its_epoch, index = divmod(number, stream.examples_per_epoch)
        plan = plan_epoch(shards, config, seed, its_epoch)
        span = plan[index % len(plan)]
        assert y["sop"][row] == span[SWAPPED]
        assert weight["sop"][row] == (span[END] - span[FIRST] > 1)
        used = weight["mlm"][row] == 1
        length = x["padding_mask"][row].sum()
        tokens = x["token_ids"][row, :length].copy()
        positions = x["masked_positions"][row, used]
        assert (positions < length).all()
        tokens[positions] = y["mlm"][row, used]
        (ends,) = np.nonzero(tokens == SEP)
        first, second = shards.spans(*span[[0, FIRST, SPLIT, END]].tolist())
        sources = [first, second][:: -1 if span[SWAPPED] else 1]
        assert is_part(tokens[1 : ends[0]], sources[0])
        if len(ends) == 2:
            assert is_part(tokens[ends[0] + 1 : ends[1]], sources[1])
        for values in (x["masked_positions"], y["mlm"]):
            assert not values[row, ~used].any()
        for name in ("token_ids", "segment_ids"):
            assert not x[name][row, length:].any()


def is_part(part: np.ndarray, whole: np.ndarray) -> bool:
    """Whether `part` lies in `whole` without a gap."""
    size = len(part)
    return any(
        (whole[start : start + size] == part).all()
        for start in range(len(whole) - size + 1)
    )


@settings(max_examples=8, deadline=None)
@given(seeds, st.integers(0, 30))
def test_starting_later_is_skipping(shards, seed, start):
    config = ExampleConfig(sequence_length=40, max_predictions=6)
    arguments = {"batch_size": 3, "seed": seed}
    skipped = pretraining_dataset(shards, config, **arguments).skip(start)
    started = pretraining_dataset(shards, config, start_step=start, **arguments)
    for a, b in zip(
        skipped.take(2).as_numpy_iterator(),
        started.take(2).as_numpy_iterator(),
        strict=True,
    ):
        for one, other in zip(a, b, strict=True):
            for name in one:
                assert one[name].tobytes() == other[name].tobytes()
