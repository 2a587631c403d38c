"""Which rows are held out of a training table."""

import collections
import random
from pathlib import Path

import pytest

from keras_albert.data.held_out import _with_swapped, held_out_rows, hold_out
from keras_albert.data.tables import Table
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.data import Tables, held_out_line

pytestmark = pytest.mark.any_backend


def table(labels, texts=None, pairs=None):
    numbers = range(len(labels))
    texts = texts or [f"text {i}" for i in numbers]
    values = {"text": texts, "label": labels}
    if pairs:
        values["pair"] = pairs
    rows, lines = [{"id": i} for i in numbers], [i + 2 for i in numbers]
    return Table(Path("a.tsv"), values, rows, lines, ["a.tsv:9: a fault"])


def ids(part):
    return [row["id"] for row in part.rows]


def test_a_tenth_of_each_label():
    """Of 200, 35, 5 and 4: half a row counts as one, four have none."""
    labels = ["a"] * 200 + ["b"] * 35 + ["c"] * 5 + ["d"] * 4
    random.Random(0).shuffle(labels)
    train, held_out = hold_out(table(labels), ["text"], "label")
    counts = collections.Counter(held_out.values["label"])
    assert counts == {"a": 20, "b": 4, "c": 1}
    assert sorted(ids(train) + ids(held_out)) == list(range(len(labels)))
    for part in (train, held_out):
        assert ids(part) == sorted(ids(part)), "in the order of the file"
        assert part.lines == [i + 2 for i in ids(part)]
        assert part.values["label"] == [labels[i] for i in ids(part)]
    assert len(train.skipped) == 1 and not held_out.skipped


def test_the_rows_do_not_hang_from_their_order():
    """The same texts are held out of a table in another order."""
    texts = [f"text {i}" for i in range(100)]
    _, held_out = hold_out(table(["x"] * 100, texts), ["text"], None)
    shuffled = random.Random(1).sample(texts, len(texts))
    _, other = hold_out(table(["x"] * 100, shuffled), ["text"], None)
    assert len(held_out) == 10
    assert set(other.values["text"]) == set(held_out.values["text"])
    assert ids(held_out) != list(range(10)), "nor the first ones"


def test_rows_of_one_text_stay_together():
    texts = [f"context {i // 5}" for i in range(300)]
    pairs = [f"question {i}" for i in range(300)]
    whole = table(["x"] * 300, texts, pairs)
    train, held_out = hold_out(whole, ["text", "pair"], None)
    assert len(held_out) == 30
    assert not set(train.values["text"]) & set(held_out.values["text"])
    # Seven rows a text: the fifth would be one too many.
    whole = table(["x"] * 300, [f"context {i // 7}" for i in range(300)], pairs)
    train, held_out = hold_out(whole, ["text", "pair"], None)
    assert len(held_out) == 28
    assert not set(train.values["text"]) & set(held_out.values["text"])
    # One first text for all: rows are told by both.
    whole = table(["x"] * 300, ["one"] * 300, [f"{i // 2}" for i in range(300)])
    train, held_out = hold_out(whole, ["text", "pair"], None)
    assert len(held_out) == 30
    assert not set(train.values["pair"]) & set(held_out.values["pair"])


def test_variants_of_a_text_stay_together():
    """Pairs in both orders, and texts that only differ in case and space."""
    pairs = [(f"text {i}", f"other {i}") for i in range(100)]
    pairs += [(f" Other  {i}", f"TEXT {i}") for i in range(100)]
    whole = table(["x"] * 200, *map(list, zip(*pairs, strict=True)))
    _, held_out = hold_out(whole, ["text", "pair"], None)
    found = {*ids(held_out)}
    assert len(found) == 20
    assert found == {(i + 100) % 200 for i in found}


def test_most_of_the_texts_are_the_same():
    """Ten texts that are alone are too few: rows are then held out singly."""
    texts = ["one"] * 290 + [f"text {i}" for i in range(10)]
    pairs = [f"question {i}" for i in range(300)]
    whole = table(["x"] * 300, texts, pairs)
    _, held_out = hold_out(whole, ["text", "pair"], None)
    assert len(held_out) == 30


def test_a_group_that_is_too_large_is_left():
    """Of 100 rows 60 share a text: ten of the others are held out."""
    keys = ["large"] * 60 + [str(i) for i in range(40)]
    chosen = held_out_rows(keys, [None] * 100)
    assert len(chosen) == 10 and min(chosen) >= 60


@pytest.mark.parametrize(
    "labels",
    [["a", "b"] * 24 + ["a"], [str(i // 4) for i in range(200)]],
    ids=["49 rows", "4 of each label"],
)
def test_too_few_rows(labels):
    assert hold_out(table(labels), ["text"], "label") is None


def test_words_are_texts():
    """Fields may hold lists, as those of the task tokens do."""
    texts = [["a", str(i)] for i in range(50)]
    _, held_out = hold_out(table(["x"] * 50, texts), ["text"], None)
    assert len(held_out) == 5


def test_a_chain_of_swapped_pairs_is_one_group():
    """Each pair is also there the other way round, with the next key."""
    first, second, keys = [], [], []
    for number in range(50):
        first += [f"a{number}", f"b{number}"]
        second += [f"b{number}", f"a{number}"]
        keys += [f"{number:02}", f"{number + 1:02}"]
    for order in (range(100), reversed(range(100))):
        rows = [*order]
        columns = (
            [each[row] for row in rows] for each in (keys, first, second)
        )
        assert set(_with_swapped(*columns)) == {"00"}


def test_a_text_with_two_partners_joins_both():
    """In both orders: of three keys, the last is first joined to one."""
    first, second = ["a", "c", "b", "c"], ["c", "a", "c", "b"]
    keys = _with_swapped(["a", "c", "b", "c"], first, second)
    assert keys == ["a"] * 4


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("classification", "no label with 5 different texts"),
        ("regression", "too few different texts"),  # it has no labels
    ],
)
def test_why_nothing_is_held_out(task, why):
    run = FinetuneRun("model", Path("a.tsv"), Path("out"), task=task)
    said = held_out_line(run, Tables(table([1.0] * 60), None, None))
    assert said.startswith(f"nothing is held out: a.tsv has {why}. Give")
