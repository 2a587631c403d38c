"""Cutting, pairing, truncating and batching, with answers known by hand."""

import sys
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from small import marked

from keras_albert.corpus.config import PrepareRun
from keras_albert.corpus.prepare import prepare
from keras_albert.corpus.shards import Shard, ShardSet
from keras_albert.corpus.token_index import Corpus
from keras_albert.errors import AlbertError
from keras_albert.pretraining import segments
from keras_albert.pretraining.config import ExampleConfig
from keras_albert.pretraining.dataset import (
    ExampleStream,
    phased_dataset,
    pretraining_dataset,
    validation_dataset,
)
from keras_albert.pretraining.segments import (
    example_keys,
    example_spans,
    plan_epoch,
    truncate,
)

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.any_backend

CLS, SEP = 2, 3
# Both kinds of batch, which both end in one that is not full.
CONFIG = ExampleConfig(sequence_length=97, max_predictions=7)
PACKED = replace(CONFIG, pack=True, max_examples=5)


def write_shards(folder, vocab, documents, **settings):
    text = folder / "text.txt"
    text.write_text("\n\n".join("\n".join(lines) for lines in documents))
    prepare(PrepareRun((text,), vocab, folder / "shards", **settings))
    return ShardSet.open(folder / "shards")


@pytest.fixture(scope="module")
def shards(tiny_lines, tiny_vocab, tmp_path_factory):
    lines = iter(tiny_lines)
    documents = [[*islice(lines, size % 23 + 1)] for size in range(47)]
    folder = tmp_path_factory.mktemp("pretraining")
    result = write_shards(folder, tiny_vocab, documents, shard_bytes=20_000)
    assert len(result.shards) > 1
    return result


def shard_of(lengths, documents, first_token=0):
    """A shard whose tokens are their own numbers."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Shard(
        np.arange(offsets[-1]) + first_token, offsets, np.array(documents)
    )


def corpus_of(*shards):
    return Corpus(SimpleNamespace(shards=shards))


# Documents: 3 4 2 6 | 10 1 || 5 | 2 2 2 tokens, || between shards.
SMALL = corpus_of(
    shard_of([3, 4, 2, 6, 10, 1], [0, 4, 6]),
    shard_of([5, 2, 2, 2], [0, 1, 4], first_token=26),
)


def test_corpus_numbers_run_through_all_shards():
    assert SMALL.num_documents == 4
    offsets = SMALL.token_offsets(np.array([[0, 5, 6], [7, 9, 10]]))
    assert offsets.tolist() == [[0, 25, 26], [31, 35, 37]]
    sentences = np.array([9, 0, 6, 5, 3])
    assert SMALL.document_numbers(sentences).tolist() == [3, 0, 2, 1, 0]
    bounds = SMALL.documents_of(sentences)
    assert bounds.tolist() == [[7, 0, 6, 4, 0], [10, 4, 7, 6, 4]]
    tokens = np.array([0, 1, 3, 25, 26, 27, 35, 37])
    assert SMALL.sentences_from(tokens).tolist() == [0, 1, 1, 5, 6, 7, 9, 10]


@pytest.mark.parametrize("task", ["sop", "none"])
def test_each_epoch_has_its_plan(shards, task):
    corpus = Corpus(shards)
    config = ExampleConfig(sequence_length=61, sentence_task=task)
    plan = plan_epoch(corpus, config, 3, 5)
    count = len(plan.order)
    assert plan.order.dtype == "uint32"
    assert (plan.order != np.arange(count)).any()
    again = plan_epoch(corpus, config, 3, 5)
    np.testing.assert_array_equal(plan.order, again.order)
    other = plan_epoch(corpus, config, 3, 6)
    assert len(other.order) != count or (other.order != plan.order).any()


# 4000 documents of 40 sentences of 1 token. Long target 10: 4 chunks.
LARGE = corpus_of(shard_of(np.ones(160_000, int), np.arange(0, 160_001, 40)))
OF_LARGE = ExampleConfig(
    sequence_length=13, short_seq_prob=0.1, target_per="document"
)


def planned(config):
    plan = plan_epoch(LARGE, config, 0, 0)
    sizes = np.diff(plan.edges)
    assert sizes.min() >= 1 and sizes.max() == 10
    return plan, sizes


def test_short_documents_follow_their_probability():
    plan, sizes = planned(OF_LARGE)
    documents = plan.edges[:-1] // 40
    shortened = len(set(documents[sizes != 10]))
    # A target of 2 to 10, each 1/9; 10 looks unshortened.
    expected = 4000 * 0.1 * 8 / 9
    assert abs(shortened - expected) < 4 * np.sqrt(expected)


def test_short_examples_follow_their_probability():
    plan, sizes = planned(replace(OF_LARGE, target_per="example"))
    firsts = plan.edges[:-1] % 40 == 0
    assert firsts.sum() == 4000
    counts = np.bincount(sizes[firsts], minlength=11)
    # A tenth of the chunks at the start of a document, 2 to 10 tokens each.
    expected = np.full(9, 4000 * 0.1 / 9)
    expected[-1] += 4000 * 0.9
    np.testing.assert_array_less(
        np.abs(counts[2:] - expected), 4.5 * np.sqrt(expected)
    )


def spans_of(corpus, config, count=None):
    plan = plan_epoch(corpus, config, 0, 0)
    indices = np.arange(count or len(plan.order))
    keys = example_keys(0, 0, indices)
    return plan, example_spans(corpus, plan, config, indices, keys)


def test_sentence_order_is_swapped_in_half_of_the_pairs():
    plan, spans = spans_of(LARGE, OF_LARGE)
    count = len(plan.order)
    assert abs(spans.labels.mean() - 0.5) < 4 * 0.5 / count**0.5
    swapped = spans.labels == 1
    assert ((spans.starts[:, 0] > spans.starts[:, 1]) == swapped).all()
    # Nothing but the text tells the label: neither where the chunk is split
    # nor how long the segments are.
    first, second = spans.lengths.T
    split = np.where(swapped, second, first)
    for known in (split, first, second):
        correlation = np.corrcoef(known, spans.labels)[0, 1]
        assert abs(correlation) < 5 / count**0.5
    # The first segment is 1 to 9 of 10 sentences, with equal chance.
    long = first + second == 10
    counts = np.bincount(split[long])[1:]
    assert len(counts) == 9
    expected = long.sum() / 9
    assert np.abs(counts - expected).max() < 4.5 * np.sqrt(expected)


def test_next_sentences_by_hand():
    """Chunks of SMALL: its documents, as no target is reached."""
    config = ExampleConfig(sentence_task="nsp", short_seq_prob=0)
    plan, spans = spans_of(SMALL, config, count=8000)
    assert plan.edges.tolist() == [0, 4, 6, 7, 10]
    chunk = plan.order[np.arange(8000) % 4]
    # The single sentence of document 2 has no second segment.
    single = chunk == 2
    assert not spans.labels[single].any() and not spans.lengths[single, 1].any()
    pairs = ~single
    assert abs(spans.labels[pairs].mean() - 0.5) < 0.03
    end_a = spans.starts[:, 0] + spans.lengths[:, 0]
    true = pairs & (spans.labels == 0)
    assert (spans.starts[true, 1] == end_a[true]).all()
    # The others begin where second segments elsewhere do, uniformly.
    home = {3: 0, 7: 0, 9: 0, 25: 1, 26: 2, 33: 3, 35: 3}
    begin_b, size_b = spans.starts[:, 1], spans.lengths[:, 1]
    document_ends = np.array([15, 26, 31, 37])
    for own in (0, 1, 3):
        mine = (chunk == own) & (spans.labels == 1)
        found = [home[start] for start in begin_b[mine].tolist()]
        counts = np.bincount(found, minlength=4)
        assert counts[own] == 0
        expected = mine.sum() / 3
        others = np.delete(counts, own)
        assert np.abs(others - expected).max() < 4.5 * np.sqrt(expected)
        # Whole sentences, no more than what they replace asks for.
        sentences = SMALL.token_offsets(np.arange(11))
        end_b = begin_b[mine] + size_b[mine]
        replaced = document_ends[own] - end_a[mine]
        last = sentences[np.searchsorted(sentences, end_b) - 1]
        assert np.isin(end_b, sentences).all()
        assert (last - begin_b[mine] < replaced).all()
        long = size_b[mine] >= replaced
        assert (long | (end_b == document_ends[found])).all()
        assert long.any() == (own != 0)  # whose last sentence is the longest


@pytest.mark.parametrize("task", ["sop", "nsp"])
def test_single_sentences_with_a_random_document(task):
    """The second segment fills the example up, with whole sentences."""
    config = ExampleConfig(
        sentence_task=task,
        single_sentence="random_document",
        sequence_length=15,
        short_seq_prob=0,
    )
    plan = plan_epoch(SMALL, config, 0, 0)
    indices = np.arange(50 * len(plan.order))
    keys = example_keys(0, 0, indices)
    # The lengths before truncation are what the segments were meant to be.
    chunks = plan.order[indices % len(plan.order)].astype("int64")
    starts, lengths, labels = segments._segments(
        SMALL, plan, config, chunks, keys
    )
    single = plan.edges[chunks] == 6
    assert single.sum() == 50 and labels[single].all()
    assert (starts[single, 0] == 26).all() and (lengths[single, 0] == 5).all()
    sentences = SMALL.token_offsets(np.arange(11))
    ends = starts[single, 1] + lengths[single, 1]
    assert np.isin(starts[single, 1], sentences).all()
    assert np.isin(ends, sentences).all() and (starts[single, 1] != 26).all()
    # Of 12 tokens besides [CLS] and [SEP]s, 7 are left for B: it ends with the
    # sentence that reaches them, or with its document.
    last = sentences[np.searchsorted(sentences, ends) - 1]
    assert (last - starts[single, 1] < 7).all()
    full = lengths[single, 1] >= 7
    assert full.any() and (full | np.isin(ends, [15, 26, 31, 37])).all()


def test_short_targets_of_single_sentences():
    """The one of its document, drawn anew in every epoch."""
    config = ExampleConfig(
        single_sentence="random_document",
        sequence_length=15,
        short_seq_prob=0.99,
    )
    lengths = set()
    for epoch in range(30):
        plan = plan_epoch(SMALL, config, 0, epoch)
        chunks = np.flatnonzero(plan.edges[:-1] == 6)
        keys = example_keys(0, epoch, chunks)
        starts, (found,), _ = segments._segments(
            SMALL, plan, config, chunks, keys
        )
        target = segments._targets(config, plan.key, *np.array([[2], [6]]))[0]
        sentences = SMALL.token_offsets(np.arange(11))
        end = starts[0, 1] + found[1]
        last = sentences[np.searchsorted(sentences, end) - 1]
        left = max(target - 5, 1)  # a sentence is read in any case
        assert last - starts[0, 1] < left
        assert found[1] >= left or end in (15, 26, 31, 37)
        lengths.add(target)
    assert min(lengths) < 6 and max(lengths) > 10


def test_where_texts_beside_single_sentences_begin():
    """As in the original: a document, and then a sentence of it, uniformly."""
    corpus = Corpus(SimpleNamespace(shards=[shard_of([5] * 8, [0, 1, 2, 8])]))
    config = ExampleConfig(
        single_sentence="random_document", sequence_length=80, short_seq_prob=0
    )
    plan, spans = spans_of(corpus, config, count=12_000)
    first = plan.edges[plan.order[np.arange(12_000) % 3]] == 0
    found = np.bincount(spans.starts[first, 1] // 5, minlength=8)
    # The other documents have one sentence, and six.
    expected = first.sum() * np.array([0, 1 / 2, *[1 / 12] * 6])
    assert (np.abs(found - expected) <= 4.5 * np.sqrt(expected)).all()


def test_truncation_by_hand():
    # Room for 5 of 7 + 4: from the longer until 3 + 2; ties cost B.
    count = 300
    starts, lengths = truncate(
        np.tile([10, 20], (count, 1)),
        np.tile([7, 4], (count, 1)),
        8,
        example_keys(0, 0, np.arange(count)),
    )
    assert (lengths == [3, 2]).all()
    cut = starts - [10, 20]  # tokens from the front: 0 to 4, and 0 to 2
    assert len(np.unique(cut, axis=0)) == 15
    for found, flips in zip(cut.T, (4, 2), strict=True):
        assert found.max() == flips
        assert abs(found.mean() - flips / 2) < 5 * (flips / 4 / count) ** 0.5


def assert_equal(batches, others):
    np.testing.assert_equal(list(batches), list(others))


def listed(dataset):
    return list(dataset.as_numpy_iterator())


def test_pretraining_dataset(shards):
    arguments = {"batch_size": 5, "seed": 1}
    dataset = pretraining_dataset(shards, CONFIG, **arguments, steps=11)
    x, y, weight = dataset.element_spec
    assert x["token_ids"].shape == x["segment_ids"].shape == (5, 97)
    assert x["padding_mask"].shape == (5, 97)
    assert x["masked_positions"].shape == y["mlm"].shape == (5, 7)
    assert y["sop"].shape == weight["sop"].shape == (5,)
    assert dataset.cardinality() == 11
    assert dataset.options().autotune.enabled is False
    batches = listed(dataset)
    assert len(batches) == 11
    last = {"start_step": 8, "steps": 3}
    later = pretraining_dataset(shards, CONFIG, **arguments, **last)
    assert_equal(listed(later), batches[8:])
    endless = pretraining_dataset(shards, CONFIG, **arguments)
    assert endless.cardinality() == -1
    assert_equal([next(endless.as_numpy_iterator())], batches[:1])


def joined(batches):
    """Several batches as one."""
    return tuple(
        {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        for parts in zip(*batches, strict=True)
    )


@pytest.mark.parametrize("config", [CONFIG, *marked("proof", PACKED)])
def test_neither_batch_size_nor_hosts_change_a_row(shards, config):
    """Rows 6 to 11: in steps of one; as the second step, of 2 hosts."""
    one_by_one = pretraining_dataset(
        shards, config, batch_size=1, seed=1, start_step=6, steps=6
    )
    second = {"batch_size": 6, "seed": 1, "start_step": 1, "steps": 1}
    parts = []
    for host in range(2):
        of_host = {**second, "host_index": host, "host_count": 2}
        parts += listed(pretraining_dataset(shards, config, **of_host))
    whole = joined(listed(one_by_one))
    assert_equal([joined(parts)], [whole])
    assert len(whole[0]["token_ids"]) == 6


def test_epochs_follow_without_a_gap(shards):
    """A batch over the end of an epoch; other masks in the next one."""
    config = replace(CONFIG, short_seq_prob=0)
    stream = ExampleStream(shards, config, 0)
    count = stream.rows_per_epoch
    whole = stream.rows(np.arange(2 * count))
    text, lengths, _, keys, _ = whole
    assert len(np.unique(keys)) == 2 * count
    for start in range(0, 2 * count - 7, 7):
        numbers = np.arange(start, start + 7)
        for part, rows in zip(stream.rows(numbers), whole, strict=True):
            np.testing.assert_array_equal(part, rows[numbers])
    assert (text[:count] != text[count:]).any()
    # without short documents every epoch has the same chunks
    sizes = lengths.sum(1)
    assert sorted(sizes[:count]) == sorted(sizes[count:])


@pytest.mark.parametrize("config", [CONFIG, PACKED])
def test_validation_has_every_row_once(shards, config):
    count = ExampleStream(shards, config, 0).rows_per_epoch
    assert count % 64, "choose another batch size"
    dataset = validation_dataset(shards, config, batch_size=64)
    batches = listed(dataset)
    assert len(batches) == dataset.cardinality() == -(-count // 64)
    assert dataset.options().autotune.enabled is False
    assert {x["token_ids"].shape for x, _, _ in batches} == {(64, 97)}
    predicting = sum((w["mlm"].sum(1) > 0).sum() for _, _, w in batches)
    assert predicting == count
    x, _, weight = batches[-1]
    assert not weight["sop"][count % 64 :].any()
    assert not weight["mlm"][count % 64 :].any()
    assert x["padding_mask"][count % 64 :, 0].all()  # no row is empty
    assert_equal(listed(dataset), batches)
    halves = []
    for host in range(2):
        of_host = {"batch_size": 64, "host_index": host, "host_count": 2}
        halves.append(listed(validation_dataset(shards, config, **of_host)))
    assert_equal(map(joined, zip(*halves, strict=True)), batches)


@pytest.mark.parametrize(
    ("config", "starts"), [(CONFIG, (2, 4)), *marked("proof", (PACKED, ()))]
)
def test_phases_follow_one_another(shards, config, starts):
    short = replace(config, sequence_length=61)
    phases = [(short, 4), (config, 3)]
    arguments = {"batch_size": 3, "seed": 5}
    dataset = phased_dataset(shards, phases, **arguments)
    assert dataset.cardinality() == 7
    assert dataset.options().autotune.enabled is False
    batches = listed(dataset)
    lengths = [x["token_ids"].shape[1] for x, _, _ in batches]
    assert lengths == [61] * 4 + [97] * 3
    alone = pretraining_dataset(shards, short, **arguments, steps=4)
    assert_equal(batches[:4], listed(alone))
    for start in starts:
        later = phased_dataset(shards, phases, **arguments, start_step=start)
        assert_equal(listed(later), batches[start:])
        # With another shape TensorFlow would compile the model differently.
        assert later.element_spec == dataset.element_spec
    with pytest.raises(AlbertError, match=r"phases.*start_step=7, 7 steps"):
        phased_dataset(shards, phases, **arguments, start_step=7)
    with pytest.raises(AlbertError, match="steps=0"):
        phased_dataset(shards, [(short, 0)], **arguments)
    with pytest.raises(AlbertError, match="`pack` must be the same"):
        other = replace(config, pack=not config.pack)
        phased_dataset(shards, [(short, 4), (other, 3)], **arguments)


def test_no_phase_repeats_the_masks_of_another(shards):
    phases = [(replace(CONFIG, short_seq_prob=0), 4)] * 3
    batches = listed(phased_dataset(shards, phases, batch_size=3, seed=5))
    ids = [x["token_ids"] for x, _, _ in batches]
    for first, second in ((0, 4), (4, 8), (0, 8)):
        pairs = zip(ids[first:][:4], ids[second:][:4], strict=True)
        assert not any(np.array_equal(*each) for each in pairs)


def test_single_sentences_do_not_count_for_the_order(tmp_path, tiny_vocab):
    documents = [["two hens"], ["nothing"], ["the old barn"]]
    shards = write_shards(tmp_path, tiny_vocab, documents)
    config = ExampleConfig(16, max_predictions=14, masked_lm_prob=0.8)
    ((x, _, weight),) = listed(validation_dataset(shards, config, batch_size=3))
    assert weight["sop"].tolist() == [0, 0, 0]
    assert not x["segment_ids"].any()
    assert ((x["token_ids"] == SEP).sum(1) == 1).all()
    message = "every one has a single sentence. 100% of .*--blank-lines 2"
    with pytest.raises(AlbertError, match=message):
        pretraining_dataset(shards, config, batch_size=3, seed=0)
    lines = ["the fox sold two hens and a barn " * 3] * 2
    (tmp_path / "long").mkdir()
    long = write_shards(tmp_path / "long", tiny_vocab, [lines] * 3)
    message = "too long for 16 tokens: raise --examples.sequence-length"
    with pytest.raises(AlbertError, match=message):
        pretraining_dataset(long, config, batch_size=3, seed=0)
    # Three examples an epoch: a batch of 8 spans three epochs.
    alone = replace(config, sentence_task="none")
    ((_, y, weight),) = listed(
        pretraining_dataset(shards, alone, batch_size=8, seed=0, steps=1)
    )
    assert weight["mlm"].any(axis=1).all() and list(y) == ["mlm"]


def test_a_single_document_has_no_other(tmp_path, tiny_vocab):
    shards = write_shards(tmp_path, tiny_vocab, [["two hens", "nothing"]])
    config = ExampleConfig(sentence_task="nsp")
    with pytest.raises(AlbertError, match="'nsp' pairs two documents"):
        validation_dataset(shards, config, batch_size=3)
    config = ExampleConfig(single_sentence="random_document")
    with pytest.raises(AlbertError, match='set single_sentence="skip_order"'):
        validation_dataset(shards, config, batch_size=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"batch_size": 0}, "batch_size"),
        ({"steps": 0}, "steps"),
        ({"start_step": -1}, "start_step"),
        ({"host_count": 0}, "host_count"),
        ({"host_count": 3}, "multiple of `host_count`.*host_count=3"),
        ({"host_count": 2, "host_index": 2}, "host_index=2"),
        ({"host_index": -1}, "host_index=-1"),
    ],
)
def test_arguments_out_of_range(shards, change, message):
    arguments = {"batch_size": 2, "seed": 0, "steps": 1, **change}
    with pytest.raises(AlbertError, match=message):
        pretraining_dataset(shards, ExampleConfig(), **arguments)


def test_no_tensorflow(shards, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(AlbertError, match=r"keras-albert\[tensorflow\]"):
        validation_dataset(shards, ExampleConfig(), batch_size=2)


def test_short_targets_are_all_from_two_to_what_fits():
    """Of 10 tokens at most, each size is as probable."""
    config = ExampleConfig(sequence_length=13, short_seq_prob=0.99)
    numbers = np.arange(9000)
    found = segments._targets(config, np.uint64(7), numbers, numbers)
    counts = np.bincount(found)
    assert len(counts) == 11 and not counts[:2].any()
    expected = np.array([990] * 8 + [990 + 90])
    assert (np.abs(counts[2:] - expected) < 5 * np.sqrt(expected)).all()
