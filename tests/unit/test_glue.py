"""GLUE: tables of its files, targets, submissions, the paper's recipes."""

import collections
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from published import glue_file, write

from keras_albert.data.glue import GLUE, glue_task, read_glue, write_submission
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError
from keras_albert.finetuning.recipes import RECIPES

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    ("task", "split"),
    [(task, split) for task, value in GLUE.items() for split in value.splits],
)
def test_every_layout(tmp_path, task, split):
    glue_file(tmp_path, task, split)
    table = read_glue(tmp_path, task, split, any_size=True)
    settings = GLUE[task]
    columns = settings.columns
    assert table.skipped == []
    for name in ("text", "pair"):
        column = getattr(columns, name)
        texts = [f"{column} {i}" for i in range(6)] if column else None
        assert table.values.get(name) == texts
    headless = settings.splits[split].header is not None
    assert table.lines == list(range(2 - headless, 8 - headless))
    if settings.submission_of(split):
        assert "label" not in table.values
        indices = [row[settings.index] for row in table.rows]
        assert indices == [str(100 + i) for i in range(6)]
        return
    labels = settings.labels or (0.0, 3.75, 5.0)
    assert table.values["label"] == [labels[i % len(labels)] for i in range(6)]


# What the reference's classifier_utils.py reads: the columns, and the labels in
# the order of their numbers.
BINARY, ENTAILS = "0 1", "entailment not_entailment"
LAYOUTS = {
    "CoLA": ("sentence", None, "label", BINARY),
    "SST-2": ("sentence", None, "label", BINARY),
    "MRPC": ("#1 String", "#2 String", "Quality", BINARY),
    "STS-B": ("sentence1", "sentence2", "score", None),
    "QQP": ("question1", "question2", "is_duplicate", BINARY),
    "MNLI": (
        *("sentence1", "sentence2", "gold_label"),
        "contradiction entailment neutral",
    ),
    "QNLI": ("question", "sentence", "label", ENTAILS),
    "RTE": ("sentence1", "sentence2", "label", ENTAILS),
    "WNLI": ("sentence1", "sentence2", "label", BINARY),
}


@pytest.mark.parametrize(("task", "layout"), LAYOUTS.items())
def test_columns_and_labels_of_the_reference(task, layout):
    columns, labels = GLUE[task].columns, GLUE[task].labels
    found = (columns.text, columns.pair, columns.label)
    assert (*found, labels and " ".join(labels)) == layout


# Of GLUE's train and dev files, from the dataset card of nyu-mll/glue. QQP has
# had two editions.
ROWS = {
    "CoLA": {"train": (8_551,), "dev": (1_043,)},
    "SST-2": {"train": (67_349,), "dev": (872,)},
    "MRPC": {"train": (3_668,), "dev": (408,)},
    "STS-B": {"train": (5_749,), "dev": (1_500,)},
    "QQP": {"train": (363_849, 363_846), "dev": (40_430,)},
    "MNLI": {
        "train": (392_702,),
        "dev_matched": (9_815,),
        "dev_mismatched": (9_832,),
    },
    "QNLI": {"train": (104_743,), "dev": (5_463,)},
    "RTE": {"train": (2_490,), "dev": (277,)},
    "WNLI": {"train": (635,), "dev": (71,)},
    "AX": {},
}


def test_the_table_of_tasks():
    for name, task in GLUE.items():
        labelled = task.splits.keys() - {*task.test_splits}
        assert {x: task.splits[x].sizes for x in labelled} == ROWS[name]
    assert len(GLUE) == 10
    tests = [(task, s) for task in GLUE.values() for s in task.test_splits]
    names = "AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI"
    submissions = {task.submission_of(split) for task, split in tests}
    assert submissions == {f"{name}.tsv" for name in names.split()}
    rows = sum(task.splits[split].sizes[0] for task, split in tests)
    assert rows == 426_320 - 11, "lines of a whole submission, less headers"
    with pytest.raises(AlbertError, match="must be one of 'CoLA', 'SST-2'"):
        glue_task("cola")


def read_cola(folder, content, split="dev", **options):
    write(folder, GLUE["CoLA"].splits[split].path, content)
    return read_glue(folder, "CoLA", split, any_size=True, **options)


def test_what_looks_like_a_line_or_a_quote_is_text(tmp_path):
    r"""`str.splitlines` would cut at \x0b, \x85, \u2028; `csv` at a quote."""
    text = "a \"b\x0b\x0c\x1c\x1d\x1e\x85 \u2028\u2029c\rd'' \""
    content = f"\ufeffs\t1\t\t{text}\r\n\ns\t0\t*\t \x85x \n"
    table = read_cola(tmp_path, content)
    assert table.values["text"] == [text, " \x85x "]
    assert table.values["label"] == ["1", "0"]
    assert table.lines == [1, 3]


@given(
    texts=st.lists(
        st.text(
            st.characters(exclude_categories=["Cs"], exclude_characters="\t\n"),
            min_size=1,
        ).filter(lambda text: text.strip() and not text.endswith("\r")),
        min_size=1,
    ),
    mark=st.booleans(),
    end=st.booleans(),
)
def test_no_row_is_lost(tmp_path_factory, texts, mark, end):
    folder = tmp_path_factory.mktemp("glue", numbered=True)
    lines = "\n".join(f"s\t{i % 2}\t\t{text}" for i, text in enumerate(texts))
    content = "\ufeff" * mark + lines + "\n" * end
    table = read_cola(folder, content)
    assert table.values["text"] == texts and table.skipped == []


GOOD = "s\t1\t\tfine"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"s\t1\tshort", r"expected 4 fields \(source, label.*Received: 3"),
        (b"s\t1\t\t\xff", "not UTF-8 text"),
        (b"s\t1\t\t ", "the text in column `sentence` is empty"),
        (b"s\t2\t\tx", "unknown label '2'. Expected one of '0', '1'"),
    ],
)
def test_bad_rows(tmp_path, bad, message):
    content = b"\n".join([GOOD.encode(), bad, GOOD.encode()])
    with pytest.raises(AlbertError, match=rf"dev\.tsv:2: {message}") as error:
        read_cola(tmp_path, content)
    assert "--skip-bad" in str(error.value)
    table = read_cola(tmp_path, content, skip_bad=True)
    assert table.lines == [1, 3]
    (fault,) = table.skipped
    assert "dev.tsv:2: " in fault and "--skip-bad" not in fault


@pytest.mark.parametrize("label", ["5.01", "-0.1", "nan", "similar"])
def test_a_similarity_is_a_number_from_0_to_5(tmp_path, label):
    glue_file(tmp_path, "STS-B", "dev")
    path = tmp_path / "STS-B" / "dev.tsv"
    path.write_text(path.read_text().replace("3.75", label, 1))
    with pytest.raises(AlbertError, match=r":3: unknown label.*from 0 to 5"):
        read_glue(tmp_path, "STS-B", "dev", any_size=True)


def test_a_test_split_keeps_every_row(tmp_path):
    content = "index\tsentence\n0\tx\n1\n"
    with pytest.raises(AlbertError, match=r":3: expected 2.*Get the file"):
        read_cola(tmp_path, content, "test", skip_bad=True)


@pytest.mark.parametrize(
    ("split", "content", "message"),
    [
        ("dev", None, r"RTE/dev\.tsv: no such file.*GLUE"),
        ("validation", None, "`split` must be one of 'train'"),
        ("dev", "index\tsentence1\tsentence2\n0\ta\tb\n", "column `label`. T"),
        ("test", "sentence1\tsentence2\na\tb\n", "no column `index`"),
        ("train", b"\xff\xfei\0", r"train\.tsv:1: UTF-16"),
        ("dev", "index\tsentence1\tsentence2\tlabel\n", "no rows"),
    ],
)
def test_files_that_are_something_else(tmp_path, split, content, message):
    if content:
        write(tmp_path, f"RTE/{split}.tsv", content)
    with pytest.raises(AlbertError, match=message):
        read_glue(tmp_path, "RTE", split, skip_bad=True, any_size=True)


@pytest.mark.parametrize(
    ("good", "empty", "broken", "fits"),
    [
        (3, 0, 0, False),
        (8, 0, 0, False),
        (4, 0, 2, True),  # the broken ones are halves of a fifth row
        (3, 1, 5, True),  # an empty text is a row of the published file
        (2, 0, 2, True),
        (5, 0, 1, False),
    ],
)
def test_sizes(tmp_path, monkeypatch, good, empty, broken, fits):
    """Of a file that is said to have 4 or 7 rows."""
    file = dataclasses.replace(GLUE["WNLI"].splits["dev"], sizes=(4, 7))
    monkeypatch.setitem(GLUE["WNLI"].splits, "dev", file)
    lines = ["index\tsentence1\tsentence2\tlabel"]
    lines += ["0\ta\tb\t1"] * good + ["0\ta\t\t1"] * empty + ["0\ta"] * broken
    write(tmp_path, "WNLI/dev.tsv", "\n".join(lines))
    if not fits:
        with pytest.raises(AlbertError, match=r"4 or 7 rows.*Received: "):
            read_glue(tmp_path, "WNLI", "dev", skip_bad=True)
    table = read_glue(tmp_path, "WNLI", "dev", skip_bad=True, any_size=not fits)
    assert len(table.rows) == good
    assert len(table.skipped) == empty + broken


# Submissions.


def table_of(task, indices):
    rows = [{GLUE[task].index: str(index)} for index in indices]
    return Table(Path("x"), {"text": ["x"] * len(rows)}, rows, [])


def submitted(path):
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    return [tuple(line.split("\t")) for line in lines]


def test_submissions(tmp_path):
    """Of classes, and of similarities, which are cut to their range."""
    classes = np.array([2, 0, 1], "int32")
    split, table = "test_mismatched", table_of("MNLI", [7, 3, 5])
    path = write_submission(tmp_path / "new", "MNLI", split, table, classes)
    assert path == tmp_path / "new" / "MNLI-mm.tsv"
    assert submitted(path) == [
        ("index", "prediction"),
        ("7", "neutral"),
        ("3", "contradiction"),
        ("5", "entailment"),
    ]
    assert [file.name for file in path.parent.iterdir()] == ["MNLI-mm.tsv"]
    numbers, table = [-0.2, 5.7, np.float32(3)], table_of("STS-B", range(3))
    path = write_submission(tmp_path, "STS-B", "test", table, numbers)
    similarities = [similarity for _, similarity in submitted(path)[1:]]
    assert similarities == ["0.000", "5.000", "3.000"]


@pytest.mark.parametrize(
    ("task", "split", "predictions", "message"),
    [
        ("RTE", "dev", [0, 1], "`split` must be one of 'test'"),
        ("RTE", "test", [0], "one for each of the 2 rows of RTE. Received: 1"),
        ("RTE", "test", [0, 2], "class indices from 0 to 1. Received: 2"),
        ("RTE", "test", [0, 0.5], "class indices from 0 to 1. Received: 0.5"),
        ("RTE", "test", [0, -1], "class indices from 0 to 1. Received: -1"),
        ("STS-B", "test", [0, np.nan], "finite numbers. Received: nan"),
    ],
)
def test_wrong_submissions_are_refused(
    tmp_path, task, split, predictions, message
):
    with pytest.raises(AlbertError, match=message):
        write_submission(
            tmp_path, task, split, table_of(task, [0, 1]), predictions
        )
    twice = table_of("QQP", [4, 4])
    with pytest.raises(AlbertError, match="twice in its column `id`"):
        write_submission(tmp_path, "QQP", "test", twice, [0, 1])
    assert list(tmp_path.iterdir()) == []


# Real files.


@pytest.mark.parametrize(
    ("task", "split", "counts", "first", "last"),
    [
        ("CoLA", "train", (2528, 6023), "Our fr", "Christmas?"),
        ("CoLA", "dev", (322, 721), "The sa", "about himself."),
        ("SST-2", "train", (29780, 37569), "hide n", "the title . "),
        ("SST-2", "dev", (428, 444), "it 's ", "improved upon . ' "),
        ("MRPC", "train", (1194, 2474), "Amrozi", "'s close ."),
        ("MRPC", "dev", (129, 279), "He sai", "alien ideology ' ."),
        ("RTE", "train", (1249, 1241), "No Wea", "her territory directly."),
        ("RTE", "dev", (146, 131), "Dana R", 'his political opinions."'),
    ],
)
def test_published_files(data_folder, task, split, counts, first, last):
    table = read_glue(data_folder / "glue", task, split)
    assert table.skipped == []
    found = collections.Counter(table.values["label"])
    assert found == dict(zip(GLUE[task].labels, counts, strict=True))
    assert table.values["text"][0].startswith(first)
    assert table.values["text"][-1].endswith(last)
    assert len(table) in GLUE[task].splits[split].sizes


@pytest.mark.parametrize("split", ["train", "dev"])
def test_published_similarities(data_folder, split):
    table = read_glue(data_folder / "glue", "STS-B", split)
    scores = table.values["label"]
    assert len(scores) == {"train": 5749, "dev": 1500}[split]
    assert (min(scores), max(scores)) == (0, 5)
    # The last column, as any reader of bytes finds it.
    path = data_folder / "glue" / "STS-B" / f"{split}.tsv"
    cells = path.read_bytes().rstrip(b"\n").replace(b"\n", b"\t").split(b"\t")
    assert len(cells) == 10 * (len(scores) + 1)
    assert scores == [float(cell) for cell in cells[19::10]]


def test_mrpc_keeps_its_mark_and_quotes(data_folder):
    """The dev file begins with a byte order mark; 16 lines have odd quotes."""
    path = data_folder / "glue" / "MRPC" / "dev.tsv"
    lines = path.read_bytes().split(b"\n")
    assert lines[0].startswith(b"\xef\xbb\xbfQuality")
    assert sum(line.count(b'"') % 2 for line in lines) == 16
    table = read_glue(data_folder / "glue", "MRPC", "dev")
    assert len(table.values["text"]) == 408
    assert list(table.rows[0]) == ["#1 String", "#2 String", "Quality"]
    texts = table.values["text"] + table.values["pair"]
    quotes = sum(text.count('"') for text in texts)
    assert quotes == path.read_bytes().count(b'"')


# The paper's recipes.


def test_recipes_are_the_papers():
    """Table 14, and how many epochs its steps are."""
    rows = {
        "CoLA": (1e-5, 16, 0, 5_336, 320),
        "STS-B": (2e-5, 16, 0, 3_598, 214),
        "SST-2": (1e-5, 32, 0, 20_935, 1_256),
        "MNLI": (3e-5, 128, 0, 10_000, 1_000),
        "QNLI": (1e-5, 32, 0, 33_112, 1_986),
        "QQP": (5e-5, 128, 0.1, 14_000, 1_000),
        "RTE": (3e-5, 32, 0.1, 800, 200),
        "MRPC": (2e-5, 32, 0, 800, 200),
        "WNLI": (2e-5, 16, 0.1, 2_000, 250),
        "SQuAD-1.1": (5e-5, 48, 0, 3_649, 365),
        "SQuAD-2.0": (3e-5, 48, 0, 8_144, 814),
        "RACE": (2e-5, 32, 0.1, 12_000, 1_000),
        "RACE-v2": (1e-5, 32, 0, 12_000, 1_000),  # the original's README
    }
    found = {
        name: dataclasses.astuple(each)[:5] for name, each in RECIPES.items()
    }
    assert found == rows
    started = {name: each.start for name, each in RECIPES.items() if each.start}
    assert started == dict.fromkeys(["RTE", "STS-B", "MRPC"], "MNLI")
    shorter = {k for k, v in RECIPES.items() if v.sequence_length != 512}
    assert shorter == {"SQuAD-1.1"}
    assert RECIPES["SQuAD-1.1"].sequence_length == 384
    assert {each.classifier_dropout for each in RECIPES.values()} == {0.1}
    epochs = {"CoLA": 10.0, "STS-B": 10.0, "SST-2": 9.9, "MNLI": 3.3}
    epochs |= {"QNLI": 10.1, "QQP": 4.9, "RTE": 10.3, "MRPC": 7, "WNLI": 50.4}
    for name, number in epochs.items():
        rows = GLUE[name].splits["train"].sizes[0]
        examples = RECIPES[name].steps * RECIPES[name].batch_size
        assert round(examples / rows, 1) == number, name
