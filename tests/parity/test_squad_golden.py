"""SQuAD against what google-research/albert made, and the official scorer.

`golden/squad_features_v1.1_*` are its windows of 160 questions of the training
file (192 tokens, stride 64, question 32), `golden/squad_v1_logits.npz` seeded
random logits of them, `golden/squad_v1_{nbest,predictions}.json` what it made
of these.
"""

import json

import numpy as np
import pytest
from small import numpy

import keras_albert as ka
from keras_albert.data.batches import Features
from keras_albert.modeling.question_answering import _answerable
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    WindowConfig,
)
from keras_albert.tasks.question_answering.decoding import decode_logits
from keras_albert.tasks.question_answering.metrics import score_v1, score_v2
from keras_albert.tasks.question_answering.squad import read_squad
from keras_albert.tasks.question_answering.task import NAMES
from keras_albert.tasks.question_answering.windows import make_windows
from keras_albert.tasks.registry import ALL_TASKS, read_split
from keras_albert.text.model_inputs import Row

pytestmark = pytest.mark.any_backend

CONFIG = WindowConfig(sequence_length=192, stride=64, query_length=32)


def features(data_folder, part):
    file = data_folder / "golden" / f"squad_features_v1.1_{part}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def questions(data_folder):
    """The 160 questions, in the order of the golden files."""
    path = data_folder / "squad" / "train-v1.1.head.json"
    by_id = {question.id: question for question in read_squad(path)}
    found = features(data_folder, "train")
    ids = dict.fromkeys(feature["qas_id"] for feature in found)
    assert len(ids) == 160
    return [by_id[i] for i in ids]


@pytest.fixture(scope="module")
def windows(tokenizer, questions):
    return make_windows(tokenizer, questions, CONFIG)


@pytest.mark.parametrize("part", ["train", "predict"])
def test_windows_equal_reference(data_folder, questions, windows, part):
    golden = features(data_folder, part)
    assert len(golden) == len(windows) == 258
    rows = [Row(window.token_ids, window.context_start) for window in windows]
    x, _, _ = Features(rows).batch(
        np.arange(len(rows)), len(rows), CONFIG.sequence_length
    )
    masked = ~numpy(_answerable(x))
    numbers = {}
    for i, (feature, window) in enumerate(zip(golden, windows, strict=True)):
        length = len(window.token_ids)
        name = questions[window.question].id
        numbers[name] = numbers.get(name, -1) + 1
        assert feature["qas_id"] == name
        assert feature["doc_span_index"] == numbers[name]
        assert feature["input_ids"] == window.token_ids.tolist()
        assert feature["paragraph_len"] == len(window.token_ids)
        assert feature["segment_ids"] == x["segment_ids"][i, :length].tolist()
        assert feature["p_mask"] == masked[i, :length].tolist()
        assert feature["token_is_max_context"] == {
            str(window.context_start + token): bool(is_max)
            for token, is_max in enumerate(window.max_context)
        }
        if part == "train":
            marked = (feature["start_position"], feature["end_position"])
            assert marked == (window.start, window.end)
            assert feature["is_impossible"] == (window.start == 0)


@pytest.mark.parametrize("part", ["train", "predict"])
def test_characters_equal_reference(data_folder, windows, part):
    """All of 37,302 pieces but one.

    The context "Dreyfus ..." begins with a word mark that is a piece of its
    own. It stands for no character; the reference gives it the D, which is
    the second piece's. Answers that begin with it have the same text; one
    that has nothing else is empty here and "D" there.
    """
    assert sum(len(window.starts) for window in windows) == 37_302
    different = []
    for feature, window in zip(
        features(data_folder, part), windows, strict=True
    ):
        ours = zip(window.starts.tolist(), window.ends.tolist(), strict=True)
        theirs = zip(
            feature["tok_start_to_orig_index"],
            feature["tok_end_to_orig_index"],
            strict=True,
        )
        for token, ((start, end), (first, last)) in enumerate(
            zip(ours, theirs, strict=True)
        ):
            if (start, end - 1) != (first, last):
                place = (feature["qas_id"], feature["doc_span_index"], token)
                different.append((*place, (start, end), (first, last + 1)))
    assert different == [("56cd606a62d2951400fa6559", 0, 0, (0, 0), (0, 1))]


def test_answers_equal_reference(data_folder, questions, windows):
    golden = data_folder / "golden"
    with np.load(golden / "squad_v1_logits.npz") as logits:
        predictions = decode_logits(
            questions, windows, logits["start"], logits["end"], AnswerConfig()
        )
    n_best = json.loads((golden / "squad_v1_nbest.json").read_text())
    assert list(n_best) == [prediction.id for prediction in predictions]
    for prediction, question in zip(predictions, questions, strict=True):
        found = prediction.candidates
        expected = n_best[prediction.id]
        for name, key in (
            ("text", "text"),
            ("start_score", "start_log_prob"),
            ("end_score", "end_log_prob"),
        ):
            ours = [getattr(candidate, name) for candidate in found]
            assert ours == [entry[key] for entry in expected]
        # From Python 3.12 on, `sum` rounds less.
        assert [c.probability for c in found] == pytest.approx(
            [entry["probability"] for entry in expected], rel=1e-14
        )
        for candidate in found:
            span = slice(candidate.start, candidate.end)
            assert question.context[span] == candidate.text
    expected = json.loads((golden / "squad_v1_predictions.json").read_text())
    assert expected == {p.id: p.text() for p in predictions}


def test_every_question_has_windows_and_its_answer(data_folder, tokenizer):
    """None of 10,570 is dropped, and each answer is found again."""
    table = read_split("SQuAD-1.1", data_folder / "squad", "dev")
    assert len(table) == 10_570
    assert ALL_TASKS["qa"].labels.of_table(table) is None
    questions = read_squad(data_folder / "squad" / "dev-v1.1.json")
    windows = make_windows(tokenizer, questions, WindowConfig())
    assert {window.question for window in windows} == set(range(10_570))
    whole, longer = set(), 0
    for window in windows:
        if window.start:
            question = questions[window.question]
            start, end = (
                position - window.context_start
                for position in (window.start, window.end)
            )
            text = question.context[window.starts[start] : window.ends[end]]
            answer = question.answers[0].text
            assert answer in text
            longer += text.strip() != answer
            whole.add(window.question)
    assert len(whole) == 10_570
    # Answers that begin or end within a piece: "7" in "1978", "Japan" in
    # "Japanese", "7.8" in "7.8%".
    assert longer == 39


def test_official_scores(data_folder):
    squad = data_folder / "squad"
    questions = read_squad(squad / "dev-v1.1.json")
    file = squad / "predictions" / "v1.1_logistic_regression.json"
    texts = json.loads(file.read_text())
    report = score_v1(questions, texts)
    assert f"{report['exact_match']:.3f}" == "40.142"
    assert f"{report['f1']:.3f}" == "50.982"
    # The scorer of 2.0 gives the same where every question has an answer.
    second = score_v2(questions, texts)
    assert second["exact"] == pytest.approx(report["exact_match"])
    assert second["f1"] == pytest.approx(report["f1"])


def test_squad_2_file(data_folder, tokenizer):
    """Every answer is learned, and of 348 questions that there is none."""
    path = data_folder / "squad" / "train-v2.0.head.json"
    questions = read_squad(path)
    assert len(questions) == 4_719
    impossible = {i for i, q in enumerate(questions) if q.is_impossible}
    assert len(impossible) == 348
    task = ALL_TASKS["qa"]
    table = task.read(path, ka.TableColumns(), labelled=True)
    assert task.labels.of_table(table) == NAMES
    reading = ka.ReadingConfig(WindowConfig(), AnswerConfig())
    features = task.examples(tokenizer, table, NAMES, 384, reading)
    assert features.count == 4_719 and features.weight is None
    assert features.lengths.max() <= 384
    answered = {
        window.question
        for window, none in zip(
            features.source.windows,
            features.target["answer_class"][:, 0],
            strict=True,
        )
        if not none
    }
    assert answered == set(range(4_719)) - impossible
    # Right answers, and a model that knows: all scores are 100.
    texts = {q.id: q.answers[0].text if q.answers else "x" for q in questions}
    against = {q.id: float(q.is_impossible) for q in questions}
    report = score_v2(questions, texts, against, threshold=0.5)
    for name in ("exact", "f1", "HasAns_f1", "NoAns_f1", "best_f1"):
        assert report[name] == 100
    assert report["best_f1_thresh"] == 0
    assert score_v2(questions, texts)["NoAns_exact"] == 0
