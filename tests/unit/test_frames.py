"""Tables in memory: each kind gives the same columns."""

import re
from pathlib import Path

import numpy as np
import pytest

from keras_albert.data import saved_dataset
from keras_albert.data.frames import columns_of
from keras_albert.data.saved_dataset import checksum_of_table
from keras_albert.data.tables import Field, read_label, read_parts, read_text
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.data import with_text_column

pytestmark = pytest.mark.any_backend

COLUMNS = {"text": ["a fox", "ein Fuß", "three"], "label": [1, 0, None]}
ROWS = [
    dict(zip(COLUMNS, row, strict=True))
    for row in zip(*COLUMNS.values(), strict=True)
]


@pytest.mark.parametrize(
    ("library", "table"),
    [
        ("pandas", lambda pd: pd.DataFrame(COLUMNS, dtype=object)),
        ("polars", lambda pl: pl.DataFrame(COLUMNS)),
        ("pyarrow", lambda pa: pa.table(COLUMNS)),
        ("datasets", lambda datasets: datasets.Dataset.from_dict(COLUMNS)),
        ("builtins", lambda _: COLUMNS),
        ("builtins", lambda _: ROWS),
    ],
)
def test_each_kind_has_the_same_columns(library, table):
    assert columns_of(table(pytest.importorskip(library))) == COLUMNS


def test_what_is_missing_in_pandas():
    """A missing number makes a column of floats there."""
    pd = pytest.importorskip("pandas")
    assert columns_of(pd.DataFrame(COLUMNS))["label"] == [1.0, 0.0, None]
    values = [pd.NA, float("nan"), pd.NaT, "a"]
    assert columns_of({"label": values}) == {"label": [None, None, None, "a"]}


def test_cells():
    """Lists, as Parquet files give them to pandas; bytes and arrays."""
    pd = pytest.importorskip("pandas")
    cells = [np.array(["a", "b"]), [b"c", np.int64(1)]]
    expected = {"label": [["a", "b"], ["c", 1]]}
    assert columns_of(pd.DataFrame({"label": cells})) == expected
    # As tensorflow_datasets has them.
    rows = [{"text": "Fuß".encode(), "label": np.int64(3)}]
    assert columns_of(rows) == {"text": ["Fuß"], "label": [3]}
    answers = {"text": np.array(["hens"]), "answer_start": np.array([4])}
    assert columns_of([{"answers": answers}]) == {
        "answers": [{"text": ["hens"], "answer_start": [4]}]
    }
    arrays = {"text": np.array(["a", "b"]), "label": np.array([1, 2])}
    assert columns_of(arrays) == {"text": ["a", "b"], "label": [1, 2]}


def test_datasets_of_tensorflow():
    """Of dicts; neither tuples, as of `as_supervised`, nor batches."""
    tf = pytest.importorskip("tensorflow")
    columns = {"text": ["a", "b"], "label": [1, 2]}
    assert columns_of(tf.data.Dataset.from_tensor_slices(columns)) == columns
    data = tf.data.Dataset.from_tensor_slices(tuple(columns.values()))
    with pytest.raises(AlbertError, match=r"one of tuples.*data\.map\(lambda"):
        columns_of(data)
    data = tf.data.Dataset.from_tensor_slices(columns).batch(2)
    fields = {"text": Field("text", read_text)}
    with pytest.raises(AlbertError, match=r"\['a', 'b'\].*data\.unbatch\(\)"):
        next(read_parts(data, fields))


def test_a_column_that_is_named_as_an_attribute_of_datasets():
    pd = pytest.importorskip("pandas")
    columns = {"text": ["a"], "features": ["b"], "columns": [1]}
    assert columns_of(pd.DataFrame(columns)) == columns


@pytest.mark.parametrize("rows", [[], [{"text": None}]])
def test_a_table_without_usable_rows(rows):
    fields = {"text": Field("text", read_text)}
    data = rows or {"text": []}
    with pytest.raises(AlbertError, match=r"no rows\. Expected one or more"):
        next(read_parts(data, fields, skip_bad=True))


def test_a_column_that_is_named_twice():
    names = ["text", "label", "text"]
    rows = [["a", 1, "b"]]
    pd = pytest.importorskip("pandas")
    pa = pytest.importorskip("pyarrow")
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    for data in (
        pd.DataFrame(rows, columns=names),
        pa.Table.from_arrays(columns, names),
    ):
        with pytest.raises(AlbertError, match="twice: text, label, text"):
            columns_of(data)


def test_class_labels_of_hugging_face_are_names():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    data = datasets.Dataset.from_dict({"label": [1, 0, -1]}, features)
    assert columns_of(data) == {"label": ["pos", "neg", None]}
    words = datasets.Features(
        {"label": datasets.List(datasets.ClassLabel(names=["O", "B"]))}
    )
    listed = datasets.Dataset.from_dict({"label": [[1, 0], [0]]}, words)
    assert columns_of(listed) == {"label": [["B", "O"], ["O"]]}
    splits = datasets.DatasetDict({"train": data, "test": data})
    for each in (splits, {"train": data.to_pandas()}):
        with pytest.raises(AlbertError, match=re.escape("dataset['train']")):
            columns_of(each)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"a": [1], "b": [1, 2]}, "equally long. Received: 1 a, 2 b"),
        ([{"a": 1}, 3], "a row that is a int"),
        (3, "expected a file, or a table in memory.*Received: int"),
        ({"text": "abc"}, "`text` must be a list of values.*Received: 'abc'"),
        ({("a", 1): [2]}, "names that are texts. Received: \\('a', 1\\)"),
    ],
)
def test_what_is_no_table(data, words):
    with pytest.raises(AlbertError, match=words):
        columns_of(data)


@pytest.fixture
def saved(tmp_path):
    """A saved dataset of 2,500 rows, with labels by name, in two splits."""
    datasets = pytest.importorskip("datasets")
    rows = {
        "text": [f"t{i}" for i in range(2_500)],
        "label": [i % 3 - 1 for i in range(2_500)],
    }
    names = datasets.ClassLabel(names=["neg", "pos"])
    data = datasets.Dataset.from_dict(rows).cast_column("label", names)
    splits = datasets.DatasetDict({"train": data, "test": data.select([1])})
    splits.save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_folders_of_hugging_face(saved):
    fields = {
        "text": Field("text", read_text),
        "label": Field("label", read_label),
    }
    parts = [*read_parts(saved / "train", fields, True, 1_500)]
    lines = [line for part in parts for line in part.lines]
    assert lines == [i + 1 for i in range(2_500) if i % 3]
    assert parts[0].rows[:2] == [
        {"text": "t1", "label": "neg"},
        {"text": "t2", "label": "pos"},
    ]
    with pytest.raises(AlbertError, match=r"train:1: the label.*None"):
        next(read_parts(saved / "train", fields))
    with pytest.raises(AlbertError, match=r"splits test, train\. .*saved/test"):
        next(read_parts(saved, fields))
    assert (
        checksum_of_table(saved / "train")
        == checksum_of_table(saved / "train")
        != checksum_of_table(saved / "test")
    )
    run = FinetuneRun("m", saved / "train", saved / "out")
    assert with_text_column(run) is run
    next((saved / "train").glob("*.arrow")).write_bytes(b"x")
    with pytest.raises(AlbertError, match=r"train: damaged, .*again"):
        next(read_parts(saved / "train", fields))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("hf://datasets/a/b/c.csv", r"load_dataset\('a/b', split='train'\)"),
        ("hf://a/b", r"load_dataset\('a/b', .*to_json\('rows\.jsonl'\)"),
        ("https://a.b/c.csv", r"address https://a\.b/c\.csv.*download it"),
    ],
)
def test_addresses_are_no_tables(address, words):
    with pytest.raises(AlbertError, match=words):
        next(read_parts(Path(address), {"text": Field("text", read_text)}))


def test_the_last_row_of_a_folder(tmp_path, monkeypatch):
    """Rows are read a few at a time; the last part has a single row."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"]})
    data.save_to_disk(tmp_path / "saved")
    monkeypatch.setattr(saved_dataset, "TABLE_ROWS_AT_ONCE", 2)
    fields = {"text": Field("text", read_text)}
    (table,) = read_parts(tmp_path / "saved", fields)
    assert table.values["text"] == ["a", "b", "c"]


def test_columns_that_the_first_row_lacks():
    rows = [{"text": "a"}, {"text": "b", "label": "x"}]
    assert columns_of(rows) == {"text": ["a", "b"], "label": [None, "x"]}
