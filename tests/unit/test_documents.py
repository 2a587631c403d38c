"""Files of every format to documents, and what is wrong with a file."""

import errno
import gzip
import itertools
import json
import sys
from pathlib import Path

import pytest
from published import write

from keras_albert.corpus import documents as documents_module
from keras_albert.corpus.documents import (
    InputFile,
    parts_of,
    read_files,
    read_part,
    sentence_splitter,
    split_sentences,
    splitting_language,
)
from keras_albert.errors import AlbertError
from keras_albert.text.files import find_files, open_parquet

pytestmark = pytest.mark.any_backend


def documents_of(lines):
    """[["a", "b"], ["c"]] of "a", "b", "", "c", ""."""
    groups = itertools.groupby(lines, key=bool)
    return [list(group) for inside, group in groups if inside]


def read(paths, column="text"):
    return documents_of(read_files(paths, column))


ROWS = ["one\ntwo\n\n three ", "", "four", None, "caf\u00e9\r\nfive"]
DOCUMENTS = [["one", "two", "three"], ["four"], ["caf\u00e9", "five"]]
TEXT = "one\ntwo\nthree\n\nfour\n \ncaf\u00e9\nfive".encode()
PACKED = gzip.compress(TEXT, mtime=0)  # always the same name of a test
JSONL = b"".join(
    json.dumps({"text": row, "n": 3}).encode() + b"\n" for row in ROWS
)


@pytest.fixture
def parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    def write_parquet(name="a.parquet", rows=ROWS, column="text", **options):
        path = tmp_path / name
        table = pyarrow.table({"n": list(range(len(rows))), column: rows})
        write_table(table, path, **options)
        return path

    return write_parquet


def test_formats_hold_the_same_documents(tmp_path, parquet, monkeypatch):
    monkeypatch.setattr(documents_module, "DOCUMENTS_AT_ONCE", 2)
    contents = {"a.txt": TEXT, "b.jsonl": JSONL, "c.json": JSONL}
    for name, content in contents.items():
        assert read(write(tmp_path, name, content)) == DOCUMENTS
        packed = write(tmp_path, f"{name}.gz", gzip.compress(content, mtime=0))
        assert read(packed) == DOCUMENTS
        capitals = write(tmp_path, f"{name}.GZ", gzip.compress(content))
        assert read(capitals) == DOCUMENTS
    assert read(parquet()) == DOCUMENTS
    assert read(parquet().rename(tmp_path / "A.PARQUET")) == DOCUMENTS
    assert read(parquet(column="body"), "body") == DOCUMENTS


def test_half_of_a_surrogate_pair_is_left_out(tmp_path):
    """JavaScript makes one where it cuts an emoji; UTF-8 has none."""
    path = write(tmp_path, "a.jsonl", b'{"text": "one \\ud83d two"}')
    assert read(path) == [["one  two"]]


def test_parquet_is_read_by_row_groups(parquet):
    path = parquet(row_group_size=2)
    parts = parts_of(InputFile.of(path), 1, "text")
    assert [part.start for part in parts] == [0, 1, 2]
    assert [part.end for part in parts] == [1, 2, 3]
    found = [documents_of(read_part(part, "text")) for part in parts]
    assert found == [[document] for document in DOCUMENTS]
    assert all(part.size > 0 for part in parts)


def test_blank_lines_and_file_ends_separate_documents(tmp_path):
    first = write(tmp_path, "1.txt", b"\n\na \n  b\n \t\n\nc")
    second = write(tmp_path, "2.txt", b"d\r\n\r\ne\r\n")
    assert read([first, second]) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert list(read_files([first], "text")) == ["a", "b", "", "c", ""]
    # Other characters end no line, and a byte order mark is no text.
    third = write(tmp_path, "3.txt", "\ufeffa\x0bb\u2028c\x85d\n".encode())
    assert read(third) == [["a\x0bb\u2028c\x85d"]]
    rows = write(tmp_path, "4.jsonl", b'\xef\xbb\xbf{"text": "x"}')
    assert read(rows) == [["x"]]


def test_two_blank_lines_end_a_document(tmp_path):
    text = b"\n= title =\n\nbody\n \nmore\n\n\n= next =\n\n\n\nbody"
    path = write(tmp_path, "1.txt", text)
    (part,) = parts_of(InputFile.of(path), 1000, "text")
    documents = [["= title =", "body", "more"], ["= next ="], ["body"]]
    assert documents_of(read_part(part, "text", blank_lines=2)) == documents
    # A row of JSONL is a document, whatever its blank lines.
    path = write(tmp_path, "a.jsonl", b'{"text": "a"}\n{"text": "b\\n\\nc"}')
    (part,) = parts_of(InputFile.of(path), 1000, "text")
    found = documents_of(read_part(part, "text", blank_lines=2))
    assert found == [["a"], ["b", "c"]]


@pytest.mark.parametrize("content", [b"", b"\n \n\n"])
def test_files_without_text_have_no_document(tmp_path, content):
    path = write(tmp_path, "a.txt", content)
    packed = write(tmp_path, "a.txt.gz", gzip.compress(content, mtime=0))
    assert list(read_files([path, packed], "text")) == []


def test_documents_are_streamed(tmp_path):
    path = write(tmp_path, "a.txt", b"good\n\nbad \xff\n")
    lines = read_files([path], "text")
    assert next(lines) == "good"
    with pytest.raises(AlbertError, match=r"a\.txt:3: not UTF-8.*0xff.*iconv"):
        list(lines)


def test_patterns(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    names = ["b.txt", "a.txt", "deep/c.txt", "deep/er/d.txt", "[x].txt"]
    for name in names:
        write(tmp_path, name, b"x")

    def found(*patterns):
        paths = find_files([tmp_path / pattern for pattern in patterns])
        return [path.relative_to(tmp_path).as_posix() for path in paths]

    assert found("*.txt") == ["[x].txt", "a.txt", "b.txt"]
    assert sorted(found("**/*.txt")) == sorted(names)
    assert found("**") == found("**/*.txt")  # no folder among them
    assert found("b.txt", "?.txt") == ["b.txt", "a.txt"]  # each once
    assert found("[x].txt") == ["[x].txt"]  # a file of that very name
    with pytest.raises(AlbertError, match=r"\*\.md: no file matches"):
        found("a.txt", "*.md")


def test_mistakes_in_names(tmp_path):
    with pytest.raises(AlbertError, match=r"gone\.txt: no such file"):
        find_files([tmp_path / "gone.txt"])
    with pytest.raises(AlbertError, match=r"found a folder.*\*\.txt"):
        find_files([tmp_path])
    with pytest.raises(AlbertError, match="no text file given"):
        find_files([])


GOOD_ROW = b'{"text": "x"}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"a\n\xff\n", r"a\.txt:2: not UTF-8.*0xff"),
        ("a.txt", b"\xff\xfea\x00", r"a\.txt:1: UTF-16.*iconv"),
        ("a.txt", PACKED, r"a\.txt:1: compressed.*gunzip -c"),
        *(
            ("a.txt", start + b"\x00\xff", r"a\.txt:1: compressed.*Decompress")
            for start in (b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh91AY&SY")
        ),
        ("a.gz", gzip.compress(b"a\n\xff", mtime=0), r"a\.gz:2: not UTF-8"),
        ("a.gz", PACKED[:-9], r"a\.gz: a damaged gzip"),
        ("a.gz", TEXT, r"a\.gz: a damaged gzip"),
        ("a.gz", PACKED[:20] + b"xxxx" + PACKED[24:], r"a\.gz: a damaged gzip"),
        ("a.jsonl", GOOD_ROW + b"\n{\n", r"a\.jsonl:3: not JSON"),
        ("a.jsonl", GOOD_ROW + b"[1]", r"a\.jsonl:2: expected a JSON.*\[1\]"),
        ("a.jsonl", b'{"text": 7}', r"a\.jsonl:1: expected text in `text`"),
        ("a.jsonl", b'{"a": 1, "b": 2}', r"no column `text`.*: a, b.*--column"),
        ("a.jsonl", GOOD_ROW + b'{"text": "\xff"}', r"a\.jsonl:2: not UTF-8"),
        ("a.jsonl", b"[" * 9_999, r"a\.jsonl:1: not JSON"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    path = write(tmp_path, name, content)
    with pytest.raises(AlbertError, match=message):
        read(path)


def test_lines_are_counted_from_the_top_of_the_file(tmp_path):
    path = write(tmp_path, "a.txt", b"a\n\n" * 40 + b"\xff")
    *_, last = parts_of(InputFile.of(path), 50, "text")
    assert last.start > 50
    with pytest.raises(AlbertError, match=r"a\.txt:81: not UTF-8"):
        list(read_part(last, "text"))


def test_a_line_too_long_for_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(documents_module, "LONGEST_LINE", 10)
    assert read(write(tmp_path, "a.txt", b"123456789\n")) == [["123456789"]]
    line = b"1234567890\n"
    packed = gzip.compress(line, mtime=0)
    for name, content in (("b.txt", line), ("b.txt.gz", packed)):
        path = write(tmp_path, name, content)
        with pytest.raises(AlbertError, match=r"b\.txt.*more than 10 bytes"):
            read(path)


def test_bad_parquet(tmp_path, parquet):
    from pyarrow.parquet import read_metadata

    good = parquet().read_bytes()
    page = read_metadata(parquet()).row_group(0).column(1).data_page_offset
    hole = good[:page] + bytes(20) + good[page + 20 :]
    for content in (good[:-8], b"PAR1", b"", hole):
        path = write(tmp_path, "bad.parquet", content)
        with pytest.raises(AlbertError, match=r"bad\.parquet: damaged"):
            read(path)
    with pytest.raises(AlbertError, match=r"no column `body`.*: n, text"):
        read(parquet(), "body")
    with pytest.raises(AlbertError, match=r"expected text in `n`.*int64"):
        read(parquet(), "n")


def test_parquet_rows_are_counted_from_the_top(parquet):
    import pyarrow

    rows = pyarrow.array([b"a", b"b", b"\xff"]).view(pyarrow.string())
    path = parquet("bad.parquet", rows, row_group_size=2)
    with pytest.raises(AlbertError, match=r"bad\.parquet: row 3: not UTF-8"):
        read(path)


def test_a_file_that_goes_away(tmp_path):
    path = write(tmp_path, "a.txt", b"x")
    (part,) = parts_of(InputFile.of(path), 99, "text")
    path.unlink()
    message = r"a\.txt: cannot be read \(No such"
    with pytest.raises(AlbertError, match=message):
        list(read_part(part, "text"))
    with pytest.raises(AlbertError, match=message):
        InputFile.of(path)


def test_an_error_of_a_network_disk(tmp_path, monkeypatch):
    """It is no mistake of the user, and names the file."""
    path = write(tmp_path, "a.txt", b"x")
    (part,) = parts_of(InputFile.of(path), 9, "text")

    def stale(*_):
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.raises(OSError, match=r"handle: '.*a\.txt'"):
        list(read_part(part, "text", stale))
    with (
        pytest.raises(OSError, match=r"handle: 'a\.parquet'"),
        open_parquet("a.parquet", stale),
    ):
        pass
    monkeypatch.setattr(Path, "stat", stale)
    with pytest.raises(OSError, match=r"handle: '.*a\.txt'"):
        InputFile.of(path)


def test_sentences():
    pytest.importorskip("sentencex")
    lines = ["Dr. Smith left. He slept.", "", "One? Two!", "Three", ""]
    first = ["Dr. Smith left.", "He slept."]
    second = ["One?", "Two!", "Three"]
    assert list(split_sentences(lines, "en")) == [*first, "", *second, ""]
    german = ["Er kam am 3. Mai an. Sie blieb."]
    for code in ("de", "DE", "de-AT", "de_AT", "ger"):
        found = split_sentences(german, splitting_language(code))
        assert list(found) == ["Er kam am 3. Mai an.", "Sie blieb."]


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("CZ", "Did you mean `cs`?"),
        ("sp", "English is `en`."),
        ("English", "English is `en`."),
        ("", "Received: split_sentences=''"),
    ],
)
def test_codes_of_no_language(code, hint):
    """sentencex itself would take all of them for English."""
    pytest.importorskip("langcodes")
    with pytest.raises(AlbertError, match="must be a language code") as error:
        splitting_language(code)
    assert hint in str(error.value)


@pytest.mark.parametrize(
    ("library", "extra", "call"),
    [
        ("sentencex", "sentences", lambda path: sentence_splitter()),
        ("langcodes", "sentences", lambda path: splitting_language("en")),
        ("pyarrow", "parquet", lambda path: read(path)),
    ],
)
def test_what_is_not_installed_is_named(
    library, extra, call, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.parquet", None)
    with pytest.raises(AlbertError, match=rf"pip install.*\[{extra}\]"):
        call(write(tmp_path, "a.parquet", b""))
