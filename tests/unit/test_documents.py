"""Text files to documents."""

import pytest

from keras_albert.config import AlbertError
from keras_albert.data.documents import read_documents

pytestmark = pytest.mark.any_backend


def write(folder, name, content: bytes):
    path = folder / name
    path.write_bytes(content)
    return path


def test_blank_lines_and_file_ends_separate_documents(tmp_path):
    first = write(tmp_path, "1.txt", b"\n\na \n  b\n \t\n\nc")
    second = write(tmp_path, "2.txt", b"d\r\n\r\ne\r\n")
    assert list(read_documents([first, second])) == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
    ]


def test_byte_order_mark_is_no_text(tmp_path):
    path = write(tmp_path, "bom.txt", b"\xef\xbb\xbfone\ntwo\n")
    assert list(read_documents([path])) == [["one", "two"]]


def test_only_newlines_end_lines(tmp_path):
    path = write(tmp_path, "a.txt", "a\x0bb\u2028c\x85d\n".encode())
    assert list(read_documents(path)) == [["a\x0bb\u2028c\x85d"]]


def test_documents_are_streamed(tmp_path):
    path = write(tmp_path, "a.txt", b"good\n\nbad \xff\n")
    documents = read_documents([path])
    assert next(documents) == ["good"]
    with pytest.raises(AlbertError, match=r"a\.txt:3: not UTF-8.*0xff.*iconv"):
        next(documents)


def test_mistakes_are_named_at_the_call(tmp_path):
    with pytest.raises(AlbertError, match=r"gone\.txt: no such file"):
        read_documents([tmp_path / "gone.txt"])
    with pytest.raises(AlbertError, match=r"found a folder.*\*\.txt"):
        read_documents([tmp_path])
    with pytest.raises(AlbertError, match="no text file given"):
        read_documents([])


def test_a_corpus_without_text_is_refused(tmp_path):
    empty = write(tmp_path, "empty.txt", b"")
    blank = write(tmp_path, "blank.txt", b"\n  \n")
    with pytest.raises(AlbertError, match=r"empty\.txt, .*blank\.txt: no text"):
        list(read_documents([empty, blank]))
    text = write(tmp_path, "text.txt", b"x")
    assert list(read_documents([empty, blank, text])) == [["x"]]
