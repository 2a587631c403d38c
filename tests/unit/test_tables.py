"""Own labelled texts, from files to batches."""

import dataclasses
import decimal
import json
import re
from pathlib import Path

import pytest
from published import write

from keras_albert.data import tables
from keras_albert.data.config import TableColumns
from keras_albert.data.tables import (
    Field,
    Table,
    label_index,
    read_choice,
    read_choices,
    read_label,
    read_labels,
    read_number,
    read_parts,
    read_text,
    read_words,
)
from keras_albert.errors import AlbertError
from keras_albert.finetuning import data as finetuning_data
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.data import with_text_column

pytestmark = pytest.mark.any_backend


def read_table(path, fields, skip_bad=False):
    (table,) = read_parts(path, fields, skip_bad)
    return table


FIELDS = {"text": Field("text", read_text), "label": Field("label", read_label)}
TEXT = {"text": FIELDS["text"]}


def test_rows_that_are_measured_are_spread_evenly(monkeypatch):
    """A table may be sorted by its labels."""
    monkeypatch.setattr(finetuning_data, "MEASURED_ROWS", 3)
    for count, expected in ((7, [0, 3, 6]), (2, [0, 1])):
        numbers = [*range(count)]
        table = Table(Path("x"), {"text": numbers}, [{}] * count, numbers)
        assert finetuning_data.sample(table).values["text"] == expected


def test_tsv_has_no_quotes(tmp_path):
    lines = ["\ufefftext\tlabel", '"half a quote\tgood', "", "second\t bad "]
    table = read_table(write(tmp_path, "a.tsv", "\r\n".join(lines)), FIELDS)
    texts, labels = ['"half a quote', "second"], ["good", "bad"]
    assert table.values == {"text": texts, "label": labels}
    assert table.lines == [2, 4]
    assert table.rows[1] == {"text": "second", "label": " bad "}
    first = table.first(1)
    assert len(first) == 1 and first.lines == [2]
    assert first.values["label"] == ["good"]


def test_jsonl(tmp_path):
    rows = [
        {"text": "ünï\tcode", "label": "a", "extra": [1]},
        {"text": "b", "label": 1},
        {"text": "c", "label": True},
        {"text": "d", "label": 0.5},
    ]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    table = read_table(path, FIELDS)
    assert table.values["label"] == ["a", "1", "true", "0.5"]
    assert table.rows == rows


def test_txt_is_for_prediction(tmp_path):
    path = write(tmp_path, "a.txt", "one\ttab\ntwo\n")
    table = read_table(path, {"text": Field("t", read_text)})
    assert table.values == {"text": ["one\ttab", "two"]}
    assert table.rows == [{"t": "one\ttab"}, {"t": "two"}]
    with pytest.raises(AlbertError, match="no label"):
        read_table(path, FIELDS)
    with pytest.raises(AlbertError, match="no pair"):
        read_table(path, TEXT | {"pair": Field("pair", read_text)})


def test_blank_lines_of_txt_keep_their_places(tmp_path):
    """They are empty texts, or have no words; at the end they are nothing."""
    path = write(tmp_path, "a.txt", "\ufeffone\n\n \t\r\ntwo\n\n\n")
    table = read_table(path, {"text": Field("t", read_text)})
    assert table.values["text"] == ["one", "", "", "two"]
    assert table.lines == [1, 2, 3, 4]
    assert table.rows[1:3] == [{"t": ""}, {"t": ""}]
    table = read_table(path, {"text": Field("t", read_words)})
    assert table.values["text"] == [["one"], [], [], ["two"]]
    with pytest.raises(AlbertError, match="no rows"):
        read_table(write(tmp_path, "b.txt", "\n \n"), TEXT)


@pytest.mark.parametrize("delimiter", [";", "\t", ","])
def test_what_separates_the_columns_of_csv(tmp_path, delimiter):
    """As spreadsheets write them: a byte order mark, quotes, CRLF."""
    lines = ["text;label;id", '"one; ""two"", three\t";a;1', "four;b;2"]
    content = "\r\n".join(["\ufeff" + lines[0], *lines[1:], ""])
    path = write(tmp_path, "a.CSV", content.replace(";", delimiter))
    table = read_table(path, FIELDS)
    text = 'one; "two", three\t'.replace(";", delimiter)
    assert table.values == {"text": [text, "four"], "label": ["a", "b"]}
    assert table.rows[1] == {"text": "four", "label": "b", "id": "2"}


def test_the_delimiter_is_the_one_with_the_wanted_columns(tmp_path):
    path = write(tmp_path, "a.csv", "text;a;b;c,label\nx;y;z;w,1\n")
    table = read_table(path, {"label": FIELDS["label"]})
    assert table.rows == [{"text;a;b;c": "x;y;z;w", "label": "1"}]
    path = write(tmp_path, "b.csv", '"text"\n"one, two; three"\n')
    assert read_table(path, TEXT).values["text"] == ["one, two; three"]
    path = write(tmp_path, "c.csv", "body;kind\nx;1\n")
    with pytest.raises(AlbertError, match="columns are `body`, `kind`"):
        read_table(path, FIELDS)
    path = write(tmp_path, "d.csv", "text;label\nx;y;1\n")
    with pytest.raises(AlbertError, match="text with semicolons in double"):
        read_table(path, FIELDS)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_lines_that_end_in_a_carriage_return(tmp_path, name):
    """As "CSV (Macintosh)" of Excel, with a line break in a cell."""
    content = b'label,id,text\ra,1,caf\xc3\xa9\rb,2,"two\nlines"\r\rc,3,\xe9\r'
    if name == "a.tsv":
        content = content.replace(b",", b"\t").replace(b"two\n", b"two ")
    table = read_table(write(tmp_path, name, content), FIELDS, skip_bad=True)
    texts = (
        ["café", '"two lines"'] if name == "a.tsv" else ["café", "two\nlines"]
    )
    assert table.values == {"text": texts, "label": ["a", "b"]}
    last = 5 if name == "a.tsv" else 6
    assert table.lines == [2, last - 2]
    (bad,) = table.skipped
    assert f":{last}: not UTF-8" in bad


@pytest.mark.parametrize(
    "content",
    [
        "sep=;\r\ntext;label\r\na,b;c\r\n",
        '\ufeff"sep=|"\n\ntext|label\na,b|c\n',
        "sep=\t\ntext\tlabel\na,b\tc\n",
        "\n;;\n \ntext;label\na,b;c\n",
        '\n\n"text",label\n"a,b",c\n',
    ],
)
def test_what_stands_before_the_header_of_csv(tmp_path, content):
    """Excel declares the delimiter there; others leave lines blank."""
    table = read_table(write(tmp_path, "a.csv", content), FIELDS)
    assert table.values == {"text": ["a,b"], "label": ["c"]}
    assert table.lines == [content.count("\n")]


def test_a_declared_delimiter_in_messages(tmp_path):
    path = write(tmp_path, "a.csv", "sep=|\ntext|label\na|b|c\n")
    with pytest.raises(AlbertError, match=r":3: .*text with '\|' in double"):
        read_table(path, FIELDS)
    path = write(tmp_path, "b.csv", 'te"x\rt"b,label\na,b\n')
    with pytest.raises(AlbertError, match=r"b\.csv:1: malformed CSV"):
        read_table(path, FIELDS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "", "no rows"),
        ("a.tsv", "text\tlabel\n", "no rows"),
        ("a.jsonl", "\n", "no rows"),
        ("a.tsv", "body\tlabel\nx\t1\n", ":2: no column `text`.*`body`"),
        ("a.tsv", "text\tgold\nx\t1\n", ":2: no column `label`.*first line"),
        ("a.tsv", "text\tlabel\nx\t1\nx\n", r":3: expected 2 fields.*: 1"),
        ("a.tsv", "text\tlabel\nx\ty\tz\n", r":2: expected 2.*: 3.*tabs"),
        ("a.csv", "text,label\nx,y,1\n", r":2: expected 2.*double quotes"),
        ("a.csv", 'text,label\n"x,1\ny,2\n', r":2: malformed CSV.*quotes"),
        ("a.tsv", "text\ttext\nx\ty\n", "column twice"),
        ("a.tsv", "text,label\nx,1\n", "by tabs, .*a header with ','.*Rename"),
        ("a.csv", "text|label\nx|1\n", r"commas, semi.*a header with '\|'"),
        ("a.tsv", b"text\tlabel\nx\t1\n\xe9\t1\n", r"a\.tsv:3: not UTF-8"),
        ("a.jsonl", b"\xff", r"a\.jsonl:1: not UTF-8"),
        (
            "a.jsonl",
            '{"text": "x", "label": 1}\n[]',
            ":2: expected a JSON object",
        ),
        ("a.jsonl", "{", ":1: not JSON"),
        ("a.jsonl", '{"text": 5, "label": 1}', "`text` must be a text"),
        ("a.jsonl", '{"text": "x", "label": null}', "must be a text, a number"),
        ("a.jsonl", '{"label": 1}', ":1: no column `text`"),
        ("a.tsv", "text\tlabel\n \t1\n", ":2: the text in column `text` is em"),
        ("a.tsv", "text\tlabel\nx\t\n", ":2: the label in column `label` is e"),
        ("a.xlsx", "x", r"ends in \.tsv.*Received: \.xlsx"),
        ("a.csv.gz", "x", r"a\.csv\.gz: compressed.*Decompress"),
        ("table", "x", "Received: no extension"),
    ],
)
def test_mistakes_are_named(tmp_path, name, content, message):
    path = write(tmp_path, name, content)
    with pytest.raises(AlbertError, match=message) as error:
        read_table(path, FIELDS)
    assert path.name in str(error.value)


def test_paths_without_a_file(tmp_path):
    with pytest.raises(AlbertError, match=r"gone\.tsv: no such file"):
        read_table(tmp_path / "gone.tsv", FIELDS)
    with pytest.raises(AlbertError, match="found a folder"):
        read_table(tmp_path, FIELDS)


def test_label_index():
    ids = label_index(["b", "a", "b"], ["a", "b"], "x.tsv", lines=[2, 3, 7])
    assert ids.tolist() == [1, 0, 1] and ids.dtype == "int32"
    with pytest.raises(AlbertError, match=r"x\.tsv:7: .*'c'.*'a', 'b'"):
        label_index(["b", "c"], ["a", "b"], "x.tsv", lines=[2, 7])


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (read_number, "2.50", 2.5),
        (read_number, decimal.Decimal("2.50"), 2.5),
        (read_label, 1.0, "1"),
        (read_label, 1.5, "1.5"),
        (read_labels, ["b", 1], ["b", "1"]),
        (read_labels, "b| a|", ["b", "a"]),
        (read_words, "a  b", ["a", "b"]),
        (read_words, ["New York", "is"], ["New York", "is"]),
        (read_choices, "a|b c", ["a", "b c"]),
        (read_choice, " b ", "b"),
        (read_choice, True, "true"),
    ],
)
def test_values(read, value, expected):
    assert read(value) == expected


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (read_number, "x", "must be a number. Received: 'x'"),
        (read_number, "-3,50", r"'-3,50'\. Write .* with a point, -3\.50"),
        (read_number, "1,234,567", r"Received: '1,234,567'\.$"),
        (read_number, True, "must be a number"),
        (read_number, "1_5", "must be a number. Received: '1_5'"),
        (read_number, -2e18, r"-2e\+18. It is beyond 1e"),
        (read_number, 10**400, "Received: 'an integer of more than 300"),
        (read_labels, 3, "must be a list of labels"),
        (read_label, float("nan"), "is missing. Received: nan"),
        (read_words, [], "must be a list of words"),
        (read_words, ["a", ""], "has an empty word or label, at position 2"),
        (read_choices, "a", "two or more"),
    ],
)
def test_bad_values(read, value, message):
    with pytest.raises(AlbertError, match=message):
        read(value)


def test_bad_rows_are_left_out_where_asked(tmp_path):
    """Line 3 is empty, 4 has a field too many, 6 is not UTF-8."""
    content = b"text\tlabel\na\t1\n \t2\nx\ty\tz\nb\t2\n\xe9\t1\n"
    path = write(tmp_path, "a.tsv", content)
    with pytest.raises(AlbertError, match=r"a\.tsv:3: .*--skip-bad"):
        read_table(path, FIELDS)
    table = read_table(path, FIELDS, skip_bad=True)
    assert table.values == {"text": ["a", "b"], "label": ["1", "2"]}
    assert table.lines == [2, 5]
    assert [fault.split(":")[1] for fault in table.skipped] == ["3", "4", "6"]
    # Without the column no row can be read; a JSON object may lack it alone.
    with pytest.raises(AlbertError, match="no column `gold`"):
        read_table(path, {"text": Field("gold", read_text)}, skip_bad=True)
    path = write(tmp_path, "c.jsonl", '{"text": "a"}\n{"body": "b"}\n')
    with pytest.raises(AlbertError, match=r":2: no column `text`.*--skip-bad"):
        read_table(path, TEXT)
    table = read_table(path, TEXT, skip_bad=True)
    assert table.values["text"] == ["a"] and len(table.skipped) == 1
    path = write(tmp_path, "b.jsonl", '{"text": 1}\n')
    with pytest.raises(AlbertError, match="1 bad ones were left out"):
        read_table(path, TEXT, skip_bad=True)


def test_bad_rows_of_other_files(tmp_path):
    """CSV: a bad byte alone, one within quotes, a stray quote at the end.

    The byte in line 6 stands behind the quote that begins the text.
    """
    content = (
        b'text,label\na,1\n\xe9,1\n"b\nb",2\n"c\xe9\nc\n",3\nd,4\n"e" f,5\n  \n'
        b"g,6\n"
    )
    path = write(tmp_path, "a.csv", content)
    table = read_table(path, FIELDS, skip_bad=True)
    assert table.values["text"] == ["a", "b\nb", "d", "g"]
    assert table.lines == [2, 5, 9, 12]
    byte, within, quote = table.skipped
    assert ":3: not UTF-8" in byte and ":8: not UTF-8" in within
    assert ":10: malformed CSV" in quote
    path = write(tmp_path, "a.txt", b"a\n\xe9\nb\n")
    with pytest.raises(AlbertError, match=r"a\.txt:2: not UTF-8.*--skip-bad"):
        read_table(path, TEXT)
    table = read_table(path, TEXT, skip_bad=True)
    assert table.lines == [1, 3] and len(table.skipped) == 1


@pytest.mark.parametrize("quotes", [(3, 40), (60,), (1, 2, 3)])
def test_a_quote_without_its_other(tmp_path, quotes):
    """Of sixty rows some begin with one: no other is bad."""
    begins = ['"t' if i in quotes else "t" for i in range(1, 61)]
    rows = [f"{start}{i},{i}" for i, start in enumerate(begins, 1)]
    path = write(tmp_path, "a.csv", "\n".join(["text,label", *rows, ""]))
    table = read_table(path, FIELDS, skip_bad=True)
    good = [i for i in range(1, 61) if i not in quotes]
    assert table.values["text"] == [f"t{i}" for i in good]
    assert table.lines == [i + 1 for i in good]
    places = [int(fault.split(":")[1]) for fault in table.skipped]
    assert places == [i + 1 for i in quotes]
    place = f"{path}:{quotes[0] + 1}: malformed CSV"
    with pytest.raises(AlbertError, match=re.escape(place)):
        read_table(path, FIELDS)


def test_a_quote_that_another_ends(tmp_path):
    """Two rows became one of three fields: each is read, and bad, alone."""
    content = 'text,label\n"a,1\nb","x",2\nc,3\n"d\nd",4\n'
    table = read_table(write(tmp_path, "a.csv", content), FIELDS, skip_bad=True)
    assert table.values["text"] == ["c", "d\nd"]
    first, second = table.skipped
    assert ":2: malformed CSV (3 fields in 2 lines)" in first
    assert ":3: expected 2 fields" in second


def test_parts_of_long_texts_have_fewer_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHARACTERS_AT_ONCE", 10)
    path = tmp_path / "long.txt"
    path.write_text("\n".join(["x" * 9, "y" * 9, "z", "z", "w" * 30]))
    fields = {"text": Field("text", read_text)}
    parts = read_parts(path, fields, rows_per_part=3)
    assert [len(part) for part in parts] == [2, 3]


def test_columns_of_older_folders():
    """They have the name of one column of negatives, or none."""
    for stored, names in ((None, ()), ("no", ("no",)), (["a"], ("a",))):
        assert TableColumns(negative=stored).negative == names


@pytest.mark.parametrize("rows_per_part", [1, 3, 7, None])
def test_parts_are_the_whole(tmp_path, rows_per_part):
    """Of seven rows the third and fourth are bad."""
    content = "text\tlabel\n" + "".join(
        f"{'' if i in (3, 4) else 't'}\t{i}\n" for i in range(1, 8)
    )
    path = write(tmp_path, "a.tsv", content)
    parts = list(read_parts(path, FIELDS, True, rows_per_part))
    whole = read_table(path, FIELDS, skip_bad=True)
    for part in parts[:-1]:
        assert len(part) + len(part.skipped) == rows_per_part
    for name in ("rows", "lines", "skipped"):
        joined = [x for part in parts for x in getattr(part, name)]
        assert joined == getattr(whole, name)
    labels = [x for part in parts for x in part.values["label"]]
    assert labels == whole.values["label"] == ["1", "2", "5", "6", "7"]


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    rows = [{"text": f"t{i}", "label": i % 3} for i in range(2_500)]
    path = tmp_path / "a.parquet"
    write_table(pa.Table.from_pylist(rows), path)
    table = read_table(path, FIELDS)
    assert table.values["text"] == [row["text"] for row in rows]
    assert table.values["label"][:4] == ["0", "1", "2", "0"]
    assert table.rows == rows and table.lines[-1] == 2_500
    texts = pa.array([b"a", b"caf\xe9", b"c"]).cast(pa.string(), safe=False)
    write_table(pa.table({"text": texts}), path)
    with pytest.raises(AlbertError, match=r"a\.parquet:2: not UTF-8"):
        read_table(path, TEXT)
    found = read_table(path, TEXT, skip_bad=True)
    assert found.values["text"] == ["a", "c"] and len(found.skipped) == 1
    distant = {"text": ["a", "b"], "at": pa.array([10**12, 0], "timestamp[s]")}
    with pytest.raises(AlbertError, match="a value of the table cannot"):
        read_table(pa.table(distant), TEXT)
    write_table(pa.table(distant), path)
    twice = pa.table([["a"], ["b"], ["c"]], names=["text", "label", "label"])
    with pytest.raises(AlbertError, match="the table names a column twice"):
        read_table(twice, FIELDS)
    write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(AlbertError, match=r"twice\.parquet: the file names a"):
        read_table(tmp_path / "twice.parquet", FIELDS)
    with pytest.raises(AlbertError, match=r"a\.parquet:1: a value cannot be"):
        read_table(path, TEXT)
    assert read_table(path, TEXT, skip_bad=True).values["text"] == ["b"]
    path.write_bytes(b"PAR1")
    with pytest.raises(AlbertError, match="not a Parquet file"):
        read_table(path, FIELDS)


@pytest.mark.parametrize(
    "header, row, expected",
    [
        ("review,label", "Good.,1", "review"),
        ("id,date,review,label", "7,2026-11-24,Good.,1", "review"),
        ("text,review,label", "Good.,Bad.,1", "text"),
        ("title,review,label", "Good,Good.,1", "text"),  # two could be meant
        ("review,gold", "Good.,1", "text"),  # there is no label, either
    ],
)
def test_the_only_column_of_texts_is_read(
    header, row, expected, tmp_path, capsys
):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n{row}\n")
    run = FinetuneRun(model="m", train=path, output=tmp_path / "out")
    assert with_text_column(run).columns.text == expected
    assert ("read from `review`" in capsys.readouterr().out) == (
        expected == "review"
    )
    pairs = dataclasses.replace(run, columns=TableColumns(pair="title"))
    assert with_text_column(pairs) is pairs


def test_a_line_of_tabs_is_a_row(tmp_path):
    """Its empty fields are an error, or left out and counted."""
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\na\tx\n\t\nb\ty\n")
    fields = {
        "text": Field("text", read_text),
        "label": Field("label", read_label),
    }
    with pytest.raises(AlbertError, match=r"t\.tsv:3: the text .* is empty"):
        list(read_parts(path, fields))
    (table,) = read_parts(path, fields, skip_bad=True)
    assert table.lines == [2, 4] and len(table.skipped) == 1


def test_groups_belong_to_their_rows(tmp_path):
    rows = [{"id": i} for i in range(3)]
    values = {"text": ["a", "b", "c"]}
    whole = Table(tmp_path, values, rows, [1, 2, 3], [], ["x", "y", "z"])
    part = whole.take([2, 0])
    assert part.groups == ["z", "x"] and part.rows == [{"id": 2}, {"id": 0}]


def test_what_helps_if_a_column_is_missing(tmp_path):
    """To leave rows out helps only if others have the column."""
    path, fields = tmp_path / "t.jsonl", {"text": Field("text", read_text)}
    path.write_text('{"body": "a"}\n{"text": "b"}\n')
    with (
        pytest.raises(AlbertError) as error,
        tables.naming_columns("--columns.{}"),
    ):
        list(read_parts(path, fields))
    message = str(error.value)
    assert "--skip-bad" not in message
    assert message.endswith(" Or name another column with --columns.text.")
    negative = {"negative 2": Field("neg", read_text)}
    with (
        pytest.raises(AlbertError, match=r"with --columns\.negative\.$"),
        tables.naming_columns("--columns.{}"),
    ):
        list(read_parts(path, negative))
    (table,) = read_parts(path, fields, skip_bad=True)
    assert table.values["text"] == ["b"]
    path.write_text('{"text": "b"}\n{"body": "a"}\n')
    for rows in (None, 1):  # also of an earlier part
        with pytest.raises(AlbertError, match=r"jsonl:2.*--skip-bad\."):
            list(read_parts(path, fields, rows_per_part=rows))
