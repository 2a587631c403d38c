"""RACE: passages and questions from its files, and what the model reads."""

import collections
import dataclasses
import json
import sys
import unicodedata

import numpy as np
import pytest
from published import passage, race_files
from small import TEXT_CONFIG

from keras_albert.data import race
from keras_albert.data.race import read_race
from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.classification import AlbertForMultipleChoice
from keras_albert.text.normalization import normalize
from keras_albert.text.special_tokens import CLS_ID, SEP_ID
from keras_albert.text.tokenizer import Tokenizer

pytestmark = pytest.mark.any_backend


def ids(table):
    return [row["id"] for row in table.rows]


def test_published_sizes():
    """Lai et al. (2017), Table 2: middle and high schools."""
    assert race.RACE_SIZES == {
        "train": 25_421 + 62_445,
        "dev": 1_436 + 3_451,
        "test": 1_436 + 3_498,
    }


def test_the_original_layout(tmp_path):
    marked = b"\xef\xbb\xbf" + json.dumps(passage("b")).encode()
    middle = [passage("a", 3), marked]
    race_files(tmp_path, middle=middle, high=[passage("c", 1)])
    (tmp_path / "dev" / "high" / "notes.md").write_text("no passage")
    found = read_race(tmp_path, "dev")
    assert found.skipped == []
    names = "a.txt-1 a.txt-2 a.txt-3 b.txt-1 b.txt-2 c.txt-1"
    assert ids(found) == names.split()
    assert found.groups == ["middle"] * 5 + ["high"]
    texts = [f"The article of {name}." for name in "aaabbc"]
    assert found.values["text"] == texts
    assert found.values["question"][3] == "b: which is 0?"
    assert found.values["choices"][4] == ["1w", "1x", "1y", "1z"]
    assert found.values["label"] == [3, 2, 1, 3, 2, 3]


def test_all_passages_in_one_file(tmp_path):
    passages = [passage("a"), passage("b", 1)]
    race_files(tmp_path, middle=passages, high=[passage("c")])
    separate = read_race(tmp_path, "dev")
    lines = "\n\n".join(json.dumps(each) for each in passages) + "\n"
    (tmp_path / "dev" / "middle" / "all.txt").write_text(lines)
    together = read_race(tmp_path, "dev")
    assert ids(together) == ids(separate), "not twice"
    assert together.values == separate.values


def test_blanks_of_other_widths():
    """All that NFKD makes "_": the reference looks for it after NFKD."""
    blanks = {
        chr(code)
        for code in range(sys.maxunicode + 1)
        if "_" in unicodedata.normalize("NFKD", chr(code))
    }
    assert blanks == {"_", *map(chr, race._BLANKS)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "not JSON"),
        (b"[]", "expected a JSON object.*Received: \\[\\]"),
        (b"{}", "Missing: article, questions, options, answers"),
        (b'{"article": "caf\xe9"}', "not UTF-8"),
        (b"\xff\xfe{", "UTF-16"),
        ({"article": " \n"}, "the article is empty"),
        ({"article": ["x"]}, "the article must be a text"),
        ({"questions": "which?"}, "answers must be lists. Received: str"),
        ({"questions": ["one?"]}, "as many of each: 1 questions, 2 options"),
    ],
)
def test_bad_passages(tmp_path, content, message):
    if isinstance(content, dict):
        content = passage("b", **content)
    race_files(tmp_path, middle=[passage("a"), content], high=[passage("c", 1)])
    message = r"middle.1\.txt:1: .*" + message
    with pytest.raises(AlbertError, match=message) as error:
        read_race(tmp_path, "dev")
    assert "--skip-bad" in str(error.value)
    found = read_race(tmp_path, "dev", skip_bad=True)
    assert ids(found) == ["a.txt-1", "a.txt-2", "c.txt-1"]
    (fault,) = found.skipped
    assert "--skip-bad" not in fault


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"questions": ["fine?", ""]}, "the question is empty"),
        ({"options": [list("wxyz"), list("wxy")]}, "a list of 4 options"),
        ({"options": [list("wxyz"), list("wx z")]}, "the option C is empty"),
        ({"options": [list("wxyz"), [*"wxy", 5]]}, "the option D must be a"),
        ({"answers": ["A", "AB"]}, "one of A, B, C, D. Received: 'AB'"),
    ],
)
def test_bad_questions(tmp_path, changes, message):
    middle = [passage("a", **changes)]
    race_files(tmp_path, middle=middle, high=[passage("b", 1)])
    message = r"0\.txt:1: question 2: .*" + message
    with pytest.raises(AlbertError, match=message):
        read_race(tmp_path, "dev")
    found = read_race(tmp_path, "dev", skip_bad=True)
    assert ids(found) == ["a.txt-1", "b.txt-1"]
    assert len(found.skipped) == 1


def test_folders_that_are_something_else(tmp_path):
    with pytest.raises(AlbertError, match="`split` must be one of 'train'"):
        read_race(tmp_path, "validation")
    with pytest.raises(AlbertError, match=r"middle: no passages.*folder RACE"):
        read_race(tmp_path, "dev")
    race_files(tmp_path, middle=[b"\n"], high=[passage("a", 0)])
    with pytest.raises(AlbertError, match=r"dev: no questions\."):
        read_race(tmp_path, "dev")
    race_files(tmp_path, middle=[b"{"], high=[passage("a", 0)])
    with pytest.raises(AlbertError, match=r"but 1 bad ones: .*not JSON"):
        read_race(tmp_path, "dev", skip_bad=True)


# What becomes of a question and its options, against the reference's rule.


def reference_rows(tokenizer, found, length, longest_ending):
    """race_utils.py, `read_examples` and `convert_single_example`."""
    columns = (found.values[name] for name in ("text", "question", "choices"))
    for context, question, options in zip(*columns, strict=True):
        question = normalize(question)
        passage_ids = tokenizer.encode(context)
        for option in map(normalize, options):
            joined = f"{question} {option}"
            if "_" in question:
                joined = question.replace("_", option)
            ending = tokenizer.encode(joined, normalize=False)
            ending = ending[-longest_ending:]
            kept = passage_ids[: length - 3 - len(ending)]
            yield [CLS_ID, *kept, SEP_ID, *ending, SEP_ID]


def model_rows(tokenizer, found, length):
    config = TEXT_CONFIG.replace(
        vocab_size=tokenizer.vocab_size, max_position_embeddings=length
    )
    backbone = AlbertBackbone(config, tokenizer=tokenizer)
    names = {"context": "text", "question": "question", "choices": "choices"}
    texts = {name: found.values[field] for name, field in names.items()}
    x = AlbertForMultipleChoice(backbone).preprocess(texts)
    assert x["token_ids"].shape[:2] == (len(found), 4)
    ids, mask, segments = (
        x[name].reshape(-1, x[name].shape[-1])
        for name in ("token_ids", "padding_mask", "segment_ids")
    )
    for row, length, segment in zip(ids, mask.sum(-1), segments, strict=True):
        row = row[:length].tolist()
        first = row.index(SEP_ID) + 1
        assert np.flatnonzero(segment).tolist() == [*range(first, length)]
        yield row


def test_the_model_reads_what_the_reference_did(tmp_path, tokenizer):
    """Long and short passages, blanks of every kind, odd whitespace."""
    short, long = "The fox found nothing.", "A dog sold two hens. " * 20
    questions = ["Who _ ?", "Where\n is  it?", "_", "Who ＿ it ﹏?", "__!"]
    options = [[" Élodie ", "the\t old barn", "£9", "a_b"]] * len(questions)
    answers = ["A"] * len(questions)
    rest = {"questions": questions, "options": options, "answers": answers}
    middle = [passage("a", **rest, article=short)]
    high = [passage("b", **rest, article=long)]
    race_files(tmp_path, middle=middle, high=high)
    found = read_race(tmp_path, "dev")
    expected = list(reference_rows(tokenizer, found, 61, longest_ending=29))
    assert list(model_rows(tokenizer, found, 61)) == expected
    assert {len(row) for row in expected[-20:]} == {61}


def test_published_passages(data_folder):
    folder = data_folder / "race" / "RACE"
    found = read_race(folder, "dev")
    assert found.skipped == []
    # A sample: the published split has 1,436 and 3,451 questions.
    assert collections.Counter(found.groups) == {"middle": 605, "high": 1024}
    assert np.bincount(found.values["label"]).tolist() == [346, 441, 423, 419]
    assert len(set(ids(found))) == len(found)
    one = json.loads((folder / "dev" / "high" / "1048.txt").read_text("utf-8"))
    place = ids(found).index("high1048.txt-1")
    rows = slice(place, place + len(one["questions"]))
    questions = [" ".join(question.split()) for question in one["questions"]]
    assert found.values["question"][rows] == questions
    assert {*found.values["text"][rows]} == {one["article"]}
    labels = found.values["label"][rows]
    assert ["ABCD"[label] for label in labels] == one["answers"]


def test_published_passages_are_read_as_the_reference_did(data_folder):
    """Every twelfth question, at 512 tokens of which 128 for the ending."""
    tokenizer = Tokenizer(data_folder / "vocab" / "30k-clean.model")
    found = read_race(data_folder / "race" / "RACE", "dev")
    values = {name: column[::12] for name, column in found.values.items()}
    part = dataclasses.replace(found, values=values, rows=found.rows[::12])
    expected = list(reference_rows(tokenizer, part, 512, longest_ending=128))
    assert list(model_rows(tokenizer, part, 512)) == expected
    assert max(map(len, expected)) == 512, "some passages are cut"
