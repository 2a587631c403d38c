"""Own labelled texts, from files to batches."""

import json

import numpy as np
import pytest

from keras_albert.config import AlbertError, TableColumns
from keras_albert.data.tables import (
    BUCKETS,
    classification_dataset,
    label_index,
    read_table,
)
from keras_albert.text.tokenizer import Tokenizer

pytestmark = pytest.mark.any_backend

COLUMNS = TableColumns()
PAIRS = TableColumns(text="a", pair="b", label="y")


def write(folder, name, content):
    path = folder / name
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    return path


def test_tsv_has_no_quotes(tmp_path):
    path = write(
        tmp_path,
        "a.tsv",
        '\ufefftext\tlabel\r\n"half a quote\tgood\r\n\r\nsecond\t bad \r\n',
    )
    table = read_table(path, COLUMNS)
    assert table.texts == ['"half a quote', "second"]
    assert table.labels == ["good", "bad"]
    assert table.pairs is None
    assert table.lines == [2, 4]
    assert table.rows[1] == {"text": "second", "label": " bad "}


def test_csv_has_quotes(tmp_path):
    path = write(
        tmp_path,
        "a.CSV",
        'id,a,b,y\n1,"one, two","he said ""no""",x\n2,"two\nlines",b,y\n',
    )
    table = read_table(path, PAIRS)
    assert table.texts == ["one, two", "two\nlines"]
    assert table.pairs == ['he said "no"', "b"]
    assert table.labels == ["x", "y"]
    assert table.lines == [2, 4]
    assert table.rows[0]["id"] == "1"


def test_jsonl(tmp_path):
    rows = [
        {"text": "ünï\tcode", "label": "a", "extra": [1]},
        {"text": "b", "label": 1},
        {"text": "c", "label": True},
        {"text": "d", "label": 0.5},
    ]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    table = read_table(path, COLUMNS)
    assert table.labels == ["a", "1", "true", "0.5"]
    assert table.rows == rows


def test_txt_is_for_prediction(tmp_path):
    path = write(tmp_path, "a.txt", "one\ttab\ntwo\n")
    table = read_table(path, TableColumns(text="t"), need_label=False)
    assert table.texts == ["one\ttab", "two"]
    assert table.labels is None and table.pairs is None
    assert table.rows == [{"t": "one\ttab"}, {"t": "two"}]
    with pytest.raises(AlbertError, match="no labels"):
        read_table(path, COLUMNS)
    with pytest.raises(AlbertError, match="no pairs"):
        read_table(path, PAIRS, need_label=False)


def test_labels_are_optional_for_prediction(tmp_path):
    path = write(tmp_path, "a.tsv", "text\nfirst\n")
    table = read_table(path, COLUMNS, need_label=False)
    assert (table.texts, table.labels) == (["first"], None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "", "no rows"),
        ("a.tsv", "text\tlabel\n", "no rows"),
        ("a.jsonl", "\n", "no rows"),
        (
            "a.tsv",
            "sentence\tlabel\nx\t1\n",
            r":2: no column `text`.*`sentence`",
        ),
        (
            "a.tsv",
            "text\tgold\nx\t1\n",
            r":2: no column `label`.*--columns.lab",
        ),
        ("a.tsv", "text\tlabel\nx\t1\nx\n", r":3: expected 2 fields.*: 1"),
        ("a.tsv", "text\tlabel\nx\ty\tz\n", r":2: expected 2.*: 3.*tabs"),
        ("a.csv", "text,label\nx,y,1\n", r":2: expected 2.*double quotes"),
        ("a.csv", 'text,label\n"x,1\ny,2\n', r":3: malformed CSV.*quotes"),
        ("a.tsv", "text\ttext\nx\ty\n", "column twice"),
        ("a.tsv", b"text\tlabel\nx\t1\n\xe9\t1\n", r"a\.tsv:3: not UTF-8"),
        ("a.csv", b"text,label\nx,1\n\xe9,1\n", r"a\.csv:3: not UTF-8"),
        ("a.jsonl", b"\xff", r"a\.jsonl:1: not UTF-8"),
        ("a.jsonl", '{"text": "x", "label": 1}\n[]', ":2: expected an object"),
        ("a.jsonl", "{", ":1: not JSON"),
        ("a.jsonl", '{"text": 5, "label": 1}', "`text` must be a text"),
        ("a.jsonl", '{"text": "x", "label": null}', "must be a text, a number"),
        ("a.jsonl", '{"label": 1}', ":1: no column `text`"),
        ("a.tsv", "text\tlabel\n \t1\n", ":2: the text in column `text` is em"),
        ("a.tsv", "text\tlabel\nx\t\n", ":2: the label in column `label` is e"),
        ("a.xlsx", "x", r"ends in \.tsv.*Received: \.xlsx"),
        ("table", "x", "Received: no extension"),
    ],
)
def test_mistakes_are_named(tmp_path, name, content, message):
    path = write(tmp_path, name, content)
    with pytest.raises(AlbertError, match=message) as error:
        read_table(path, COLUMNS)
    assert name in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(AlbertError, match=r"gone\.tsv: no such file"):
        read_table(tmp_path / "gone.tsv", COLUMNS)
    with pytest.raises(AlbertError, match="found a folder"):
        read_table(tmp_path, COLUMNS)


def test_empty_pair(tmp_path):
    path = write(tmp_path, "a.csv", "a,b,y\nx,,1\n")
    with pytest.raises(AlbertError, match=":2: the pair in column `b`"):
        read_table(path, PAIRS)


def test_label_index():
    ids = label_index(["b", "a", "b"], ["a", "b"], "x.tsv")
    assert ids.tolist() == [1, 0, 1] and ids.dtype == "int32"
    with pytest.raises(AlbertError, match=r"x\.tsv:7: .*'c'.*'a', 'b'"):
        label_index(["b", "c"], ["a", "b"], "x.tsv", lines=[2, 7])
    with pytest.raises(AlbertError, match=r"x\.tsv:row 2: "):
        label_index(["b", "c"], ["a", "b"], "x.tsv")


@pytest.fixture(scope="module")
def tokenizer(tiny_vocab):
    return Tokenizer(tiny_vocab)


@pytest.fixture
def table(tmp_path):
    rows = [f"the fox sold {n} hens\t{n % 3}" for n in range(53)]
    rows[17] = "the old barn in the village " * 11 + "\t2"
    return read_table(
        write(tmp_path, "a.tsv", "text\tlabel\n" + "\n".join(rows)), COLUMNS
    )


def collect(dataset):
    """Token rows without padding, labels: of rows with weight 1."""
    rows, labels = [], []
    for x, y, weight in dataset.as_numpy_iterator():
        real = weight == 1
        assert set(np.unique(weight)) <= {0, 1}
        labels += y[real].tolist()
        for ids, mask in zip(
            x["token_ids"][real], x["padding_mask"][real], strict=True
        ):
            rows.append(ids[: mask.sum()].tolist())
            assert not ids[mask.sum() :].any()
    return rows, labels


def test_in_order_every_row_once(table, tokenizer):
    ids = label_index(table.labels, ["0", "1", "2"], "x")
    dataset = classification_dataset(
        tokenizer, table, ids, sequence_length=100, batch_size=5
    )
    assert dataset.cardinality() == 11
    rows, labels = collect(dataset)
    assert labels == ids.tolist()
    assert rows == [
        tokenizer.pack(tokenizer.encode(text), None, 100)[0]
        for text in table.texts
    ]
    assert len(rows[17]) == 100  # cut
    shapes = [x["token_ids"].shape for x, _, _ in dataset.as_numpy_iterator()]
    assert shapes == [(5, 100) if k == 3 else (5, 32) for k in range(11)]


def test_the_last_batch_is_filled_with_weight_0(table, tokenizer):
    dataset = classification_dataset(
        tokenizer, table, np.arange(53), sequence_length=512, batch_size=10
    )
    *_, (x, y, weight) = dataset.as_numpy_iterator()
    assert y.tolist() == [50, 51, 52, *[52] * 7]
    assert weight.tolist() == [1] * 3 + [0] * 7
    assert x["padding_mask"][:, 0].all()


def test_shuffling_depends_on_seed_and_epoch(table, tokenizer):
    def epochs(seed):
        dataset = classification_dataset(
            tokenizer,
            table,
            np.arange(53),
            sequence_length=64,
            batch_size=8,
            seed=seed,
            epochs=3,
        )
        assert int(dataset.cardinality()) == 3 * 7
        order = collect(dataset)[1]
        assert collect(dataset)[1] == order, "the same when read again"
        return [order[start : start + 53] for start in (0, 53, 106)]

    first = epochs(4)
    assert epochs(4) == first
    assert all(sorted(order) == list(range(53)) for order in first)
    assert first[0] != first[1] != first[2] != list(range(53))
    assert epochs(5)[0] != first[0]


def test_pairs_have_two_segments(tmp_path, tokenizer):
    table = read_table(
        write(tmp_path, "a.csv", "a,b,y\nthe fox,two hens in 1923,1\n"), PAIRS
    )
    dataset = classification_dataset(
        tokenizer, table, np.array([1]), sequence_length=64, batch_size=1
    )
    ((x, y, _),) = dataset.as_numpy_iterator()
    expected = tokenizer(table.texts, table.pairs, pad_to=64, max_length=64)
    assert x["token_ids"].shape == (1, 32) and y.tolist() == [1]
    for name, values in expected.items():
        np.testing.assert_array_equal(x[name], values[:, :32])


def test_bad_numbers(table, tokenizer):
    for change in ({"batch_size": 0}, {"seed": -1}, {"sequence_length": 2}):
        arguments = {"sequence_length": 64, "batch_size": 2, **change}
        with pytest.raises(AlbertError):
            classification_dataset(
                tokenizer, table, np.zeros(53, "int32"), **arguments
            )


def test_few_lengths_to_compile_for():
    assert len(BUCKETS) <= 6 and sorted(BUCKETS) == list(BUCKETS)
