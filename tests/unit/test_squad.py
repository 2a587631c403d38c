"""SQuAD files, good and bad."""

import json

import pytest

from keras_albert.data.bad_rows import BadRows
from keras_albert.errors import AlbertError
from keras_albert.tasks.question_answering.squad import (
    Answer,
    Question,
    read_squad,
)

pytestmark = pytest.mark.any_backend

CONTEXT = "Ünder the old oak, the fox. The old fox!"
OAK = {"text": "old oak", "answer_start": 10}


def qa(**changes):
    item = {"id": "1", "question": "Where?", "answers": [OAK]} | changes
    return {key: value for key, value in item.items() if value is not None}


def answer(text, start):
    return qa(answers=[{"text": text, "answer_start": start}])


def write(folder, *items, others=(), more=()):
    paragraphs = [*others, {"context": CONTEXT, "qas": items}]
    data = [{"title": "x", "paragraphs": paragraphs}, *more]
    path = folder / "squad.json"
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return path


def test_questions_of_both_versions(tmp_path):
    fox = {"text": "fox", "answer_start": 23, "extra": 1}
    path = write(
        tmp_path,
        qa(answers=[OAK, fox]),
        qa(id="2", is_impossible=False),
        qa(id="3", answers=[], is_impossible=True, plausible_answers=[fox]),
    )
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    oak = Answer("old oak", 10)
    assert read_squad(path) == [
        Question("1", "Where?", CONTEXT, (oak, Answer("fox", 23)), False),
        Question("2", "Where?", CONTEXT, (oak,), False),
        Question("3", "Where?", CONTEXT, (), True),
    ]


def test_to_predict_on(tmp_path):
    path = write(tmp_path, qa(answers=None), qa(id="2", answers="later"))
    questions = read_squad(path, need_answers=False)
    assert [question.answers for question in questions] == [(), ()]
    with pytest.raises(AlbertError, match=r"question 1: no key `answers`"):
        read_squad(path)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (qa(id=None), r"data\[0\].paragraphs\[0\].qas\[0\]: no key `id`"),
        (qa(id=7), "question 7: `id` must be a string. Received: 7"),
        (qa(question=None), "question 1: no key `question`. Received: id, ans"),
        (qa(question=" \n"), "question 1: `question` is empty"),
        (qa(answers=OAK), "`answers` must be an array"),
        (qa(answers=[]), "0 answers, but `is_impossible` is false"),
        (qa(is_impossible=True), "1 answers, but `is_impossible` is true"),
        (qa(is_impossible=1), "`is_impossible` must be true or false"),
        (qa(answers=["oak"]), "expected an object. Received: 'oak'"),
        (qa(answers=[{"text": "oak"}]), "no key `answer_start`"),
        (qa(answers=[OAK | {"answer_start": True}]), "integer. Received: True"),
        ([1], "expected an object"),
        (answer("old", 27), "Found there: ' Th'. The nearest place is 32: cor"),
        (answer("old", -30), "Found there: 'Ünd'. The nearest place is 10: co"),
        (answer("old", 99), "of 40 characters. Found there: ''. The nearest p"),
        (answer("Old", 10), "Found there: 'old'. It is nowhere in the context"),
    ],
)
def test_bad_questions(tmp_path, item, message):
    path = write(tmp_path, item)
    with pytest.raises(AlbertError, match=message) as error:
        read_squad(path)
    assert str(path) in str(error.value)


def test_bad_ones_can_be_left_out(tmp_path):
    items = qa(), qa(), qa(id="2", question=""), qa(id="3")
    others = {"qas": []}, {"context": " ", "qas": [qa(id="4")]}
    path = write(tmp_path, *items, others=others, more=[{"title": "empty"}])
    bad = BadRows(skip=True)
    questions = read_squad(path, bad=bad)
    assert [question.id for question in questions] == ["1", "3"]
    expected = [
        "data[0].paragraphs[0]: no key `context`",
        "data[0].paragraphs[1]: the context is empty",
        "question 1: the id '1' is there twice",
        "question 2: `question` is empty",
        "data[1]: expected an object with a list `paragraphs`",
    ]
    for message, start in zip(bad.messages, expected, strict=True):
        assert message.startswith(f"{path}: {start}")
    with pytest.raises(AlbertError, match="no questions"):
        read_squad(write(tmp_path, qa(id="")), bad=BadRows(skip=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a JSON file"),
        (b"[" * 10**5, "not a JSON file"),
        (b'[{"context": "a"}]', "not a SQuAD file. Expected"),
        (b'{"version": 1, "rows": []}', "Received: version, rows"),
        (b'{"data": {}}', "not a SQuAD file"),
        (b'{"data": []}', "no questions"),
        ('{"data": "é"}'.encode("latin1"), "not UTF-8 text"),
        ('{"data": []}'.encode("utf-16"), "UTF-16 text. Convert"),
        (None, "no such file"),
    ],
)
def test_files_of_another_kind(tmp_path, content, message):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AlbertError, match=message) as error:
        read_squad(path, bad=BadRows(skip=True))
    assert str(path) in str(error.value)
