"""Questions from files to answers: what is read, learned, said and scored."""

import json
import math

import numpy as np
import pytest
from commands import write_rows
from scipy.special import expit

from keras_albert.data.batches import training_dataset
from keras_albert.data.config import TableColumns
from keras_albert.data.tables import MissingColumn
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import FinetuneRun, PredictRun
from keras_albert.finetuning.predict import predict
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    ReadingConfig,
    WindowConfig,
    WindowOptions,
)
from keras_albert.tasks.question_answering.squad import SQUAD, questions_of
from keras_albert.tasks.question_answering.task import (
    NAMES,
    NO_CANDIDATE,
    predictions_of,
    submitted,
)
from keras_albert.tasks.registry import ALL_TASKS, read_split

pytestmark = pytest.mark.any_backend

CONTEXT = "The fox found two hens. My uncle sold the old barn."
HENS = {"text": "two hens", "answer_start": 14}
TASK = ALL_TASKS["qa"]
READING = ReadingConfig(
    WindowConfig(sequence_length=40, stride=8, query_length=10),
    AnswerConfig(n_best=5, answer_length=12),
)


def row(**changes):
    found = {"question": "What?", "context": CONTEXT, "answers": [HENS]}
    return {k: v for k, v in (found | changes).items() if v is not ...}


def write(folder, *rows):
    return write_rows(folder / "my.jsonl", rows)


def squad(folder, *items, name="squad.json"):
    items = [{"id": f"id{i}", **item} for i, item in enumerate(items)]
    paragraphs = [{"context": CONTEXT, "qas": items}]
    path = folder / name
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


def read(path, labelled=True, skip_bad=False, columns=TableColumns()):
    return TASK.read(path, columns, labelled, skip_bad)


# Files.


@pytest.mark.parametrize(
    "answers",
    [
        [HENS],
        ["two hens"],
        [{"text": "two hens"}],
        [{"text": "two hens", "answer_start": None}],
        {"text": ["two hens"], "answer_start": [14]},  # the Hub's SQuAD
        "two hens",
    ],
)
def test_answers_of_a_row(tmp_path, answers):
    table = read(write(tmp_path, row(answers=answers, id=7)))
    assert table.values["answers"] == [[("two hens", 14)]]
    assert table.rows[0]["id"] == 7
    (question,) = questions_of(table)
    assert question.context[14:22] == question.answers[0].text
    assert not question.is_impossible
    assert TASK.labels.of_table(table) is None


def test_questions_without_an_answer(tmp_path):
    for answers in ([], None, "", " "):
        impossible = row(answers=answers, is_impossible=True)
        table = read(write(tmp_path, row(), impossible))
        assert table.values["answers"] == [[("two hens", 14)], []]
        assert [q.is_impossible for q in questions_of(table)] == [False, True]
        assert TASK.labels.of_table(table) == NAMES


def test_a_flag_that_is_written_in_a_text_file(tmp_path):
    """As pandas writes SQuAD 2.0; a number is none."""
    for flag in ("False", "false", ""):
        read(write(tmp_path, row(is_impossible=flag)))
    read(write(tmp_path, row(answers=[], is_impossible=" TRUE ")))
    with pytest.raises(AlbertError, match=r"1 answers, but .* is true"):
        read(write(tmp_path, row(is_impossible="True")))
    with pytest.raises(AlbertError, match=r"must be true or false.*'1'"):
        read(write(tmp_path, row(is_impossible="1")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": ["cat"]}, "'cat' is nowhere in the"),
        (
            {"answers": [HENS | {"answer_start": 15}]},
            "'two hens' is not at character 15.*nearest place is 14",
        ),
        ({"answers": ["two", "o"]}, "'o' is more than once in the context"),
        ({"answers": 3}, "in column `answers` must be a list of texts.*: 3"),
        ({"answers": [7]}, "expected an object. Received: 7"),
        ({"answers": {"text": ["a"], "answer_start": []}}, "1 texts, but 0 pl"),
        ({"answers": [], "is_impossible": False}, "0 answers, but"),
        ({"context": " "}, "the context in column `context` is empty"),
        ({"question": ""}, "the question in column `question` is empty"),
    ],
)
def test_bad_rows(tmp_path, changes, message):
    path = write(tmp_path, row(), row(**changes))
    with pytest.raises(AlbertError, match=rf"my.jsonl:2: .*{message}") as error:
        read(path)
    assert "--skip-bad" in str(error.value)
    table = read(path, skip_bad=True)
    assert len(table) == 1 and table.lines == [1]
    assert len(table.skipped) == 1 and "my.jsonl:2: " in table.skipped[0]


def test_bad_questions_of_squad_can_be_left_out(tmp_path):
    bad = {"question": "Who?", "answers": [HENS | {"text": " "}]}
    path = squad(tmp_path, bad, {"question": "What?", "answers": [HENS]})
    message = "squad.json: question id0: an answer is empty"
    with pytest.raises(AlbertError, match=f"{message}.*--skip-bad"):
        read(path)
    table = read(path, skip_bad=True)
    assert table.rows == [{"id": "id1"}]
    assert len(table.skipped) == 1 and message in table.skipped[0]
    # To predict on, answers are not looked at.
    table = read(path, labelled=False)
    assert table.rows == [{"id": "id0"}, {"id": "id1"}]
    assert "answers" not in table.values


def test_columns(tmp_path):
    for name in ("context", "question", "answers"):
        path = write(tmp_path, row(**{name: ...}))
        with pytest.raises(MissingColumn, match=f"no column `{name}`") as error:
            read(path)
        assert error.value.field == name
    path = tmp_path / "my.tsv"
    path.write_text(f"q\ttext\ta\nWhat?\t{CONTEXT}\ttwo hens\n")
    columns = TableColumns(question="q", context="text", answers="a")
    assert read(path, columns=columns).values == {
        "context": [CONTEXT],
        "question": ["What?"],
        "answers": [[("two hens", 14)]],
    }


@pytest.mark.parametrize("task", list(SQUAD))
def test_published_files(tmp_path, task):
    """Counted; `test` is not published, and other files have another task."""
    items = {"question": "What?", "answers": [HENS]}
    file, size = SQUAD[task]["dev"]
    squad(tmp_path, items, items, name=file)
    with pytest.raises(AlbertError, match=rf"{size:,} questions.*: 2\. .*any"):
        read_split(task, tmp_path, "dev")
    table = read_split(task, tmp_path, "dev", any_size=True)
    assert len(table) == 2
    # The head is the task's, whatever a small file has.
    names = NAMES if task == "SQuAD-2.0" else None
    assert ALL_TASKS[task].labels.of_table(table) == names
    with pytest.raises(AlbertError, match=r"train-.*: no such file.*--task qa"):
        read_split(task, tmp_path, "train")
    with pytest.raises(AlbertError, match="test split is not published"):
        read_split(task, tmp_path, "test")


# Windows.


def test_windows_that_fit_short_models():
    """As published at 384 and above, a third of a shorter window."""
    assert WindowOptions().of(384) == WindowConfig(384, 128, 64)
    assert WindowOptions().of(512) == WindowConfig(512, 128, 64)
    assert WindowOptions().of(128) == WindowConfig(128, 42, 42)
    assert WindowOptions(9, 5).of(128) == WindowConfig(128, 9, 5)
    with pytest.raises(AlbertError, match="must be above `query_length`"):
        WindowOptions(query_length=64).of(60)


def table_of(tmp_path, *rows):
    return read(write(tmp_path, *rows))


def features_of(tokenizer, table, names, threshold=0.0):
    reading = ReadingConfig(READING.windows, READING.answers, threshold)
    return TASK.examples(tokenizer, table, names, 40, reading)


@pytest.fixture
def asked(tmp_path, tokenizer):
    """A question with an answer and one without, each in several windows."""
    return table_of(tmp_path, row(), row(answers=[]))


def test_targets(asked, tokenizer):
    features = features_of(tokenizer, asked, NAMES)
    windows = features.source.windows
    assert features.count == 2 < len(features) == len(windows)
    target = features.target
    assert target["start"].tolist() == [window.start for window in windows]
    assert target["end"].tolist() == [window.end for window in windows]
    none = [[window.start == 0] for window in windows]
    assert target["answer_class"].tolist() == none
    assert {w.question for w in windows if w.start} == {0}
    assert 0 < target["answer_class"].sum() < len(windows)
    (x, y, weight), *_ = training_dataset(
        features, np.array([40]), batch_size=len(windows), seed=1, epochs=1
    ).as_numpy_iterator()
    assert x["token_ids"].shape == (len(windows), 40)
    np.testing.assert_array_equal(x["start_positions"], y["start"])
    assert set(y) == {"start", "end", "answer_class"}
    assert weight.tolist() == [1] * len(windows)
    x, _, _ = features.batch(np.arange(2), 2, 40)
    assert "start_positions" not in x, "the beam finds it"
    features = features_of(tokenizer, asked, None)
    assert set(features.target) == {"start", "end"}
    x, _, _ = features.training_batch(np.arange(2), 2, 40)
    assert "start_positions" not in x


def test_an_answer_that_the_vocabulary_drops(tmp_path, tokenizer):
    """Not learned as "no answer", but predicted and scored."""
    context = "A dog. \ufeff"
    table = table_of(tmp_path, row(), row(context=context, answers=["\ufeff"]))
    features = features_of(tokenizer, table, NAMES)
    lost = [window.question == 1 for window in features.source.windows]
    assert features.weight.tolist() == [1.0 - each for each in lost]
    assert features.count == 2 and sum(lost) == 1


# Answers.


def place_of(text, window):
    """First and last token of the text in a window; 0 where it is not."""
    place = CONTEXT.index(text)
    firsts = np.flatnonzero(window.ends > place)
    lasts = np.flatnonzero(window.starts < place + len(text))
    if not len(firsts) or not len(lasts) or window.starts[0] > place:
        return 0, 0
    return firsts[0] + window.context_start, lasts[-1] + window.context_start


def beam(features, spans, against):
    """Outputs that are sure of a span in one window of each question.

    Args:
        spans: the text of each question's answer; None: nowhere.
        against: logit of "no answer" of all windows of a question.
    """
    outputs = []
    for window in features.source.windows:
        found = spans[window.question]
        start, end = place_of(found, window) if found else (0, 0)
        outputs.append(
            {
                "start_top_log_probs": np.array([-0.5]),
                "start_top_index": np.array([start]),
                "end_top_log_probs": np.array([[-0.25]]),
                "end_top_index": np.array([[end]]),
                "answer_class": np.array([against[window.question]]),
            }
        )
    return outputs


def test_answers_and_refusals(asked, tokenizer):
    features = features_of(tokenizer, asked, NAMES)
    refused = beam(features, ["two hens", "fox"], [-1.0, 0.5])
    assert TASK.decode(refused, features, NAMES) == [
        {"prediction": "two hens", "score": 1.0, "start": 14, "end": 22},
        {
            "prediction": "",
            "score": pytest.approx(expit(0.5), abs=1e-6),
            "start": None,
            "end": None,
        },
    ]
    answered = beam(features, ["two hens", "fox"], [-1.0, -2.0])
    second = TASK.decode(answered, features, NAMES)[1]
    assert second["prediction"] == "fox"
    assert CONTEXT[second["start"] : second["end"]] == "fox"
    # A higher threshold, as one that was tuned, lets the answer stand.
    features = features_of(tokenizer, asked, NAMES, threshold=0.6)
    assert TASK.decode(refused, features, NAMES)[1]["prediction"] == "fox"


def test_scores_with_the_best_threshold_then_with_it(tmp_path, tokenizer):
    """Three with an answer (right, right, wrong), and one without.

    Against an answer speak -2, 0.25, 3 and 1: refusing the last two is best.
    """
    others = row(answers=["old barn"]), row(answers=[])
    table = table_of(tmp_path, row(), row(), *others)
    features = features_of(tokenizer, table, NAMES, threshold=None)
    spans = ["two hens", "two hens", "fox", "fox"]
    outputs = beam(features, spans, [-2.0, 0.25, 3.0, 1.0])
    tuned = TASK.measure(outputs, features, NAMES)
    assert tuned.values == {
        "exact": 75.0,
        "f1": 75.0,
        "HasAns_exact": pytest.approx(200 / 3),
        "HasAns_f1": pytest.approx(200 / 3),
        "NoAns_exact": 100.0,
        "NoAns_f1": 100.0,
        "threshold": (0.25 + 1) / 2,
    }
    assert TASK.baseline(features) == 25.0
    stored = features_of(tokenizer, table, NAMES, tuned.values["threshold"])
    again = TASK.measure(outputs, stored, NAMES).values
    assert tuned.values.items() <= again.items()
    assert again["best_f1"] == 75.0
    zero = features_of(tokenizer, table, NAMES, threshold=0.0)
    assert TASK.measure(outputs, zero, NAMES).values["f1"] == 50.0


@pytest.mark.parametrize("scores", [[-1.7, -0.3], [0.2, 3.0]])
def test_the_threshold_that_refuses_all(tmp_path, tokenizer, scores):
    """Both are best refused, or both answered: it stays clear of the scores."""
    for refused in (True, False):
        answers = [] if refused else [HENS]
        table = table_of(tmp_path, *[row(answers=answers)] * 2)
        features = features_of(tokenizer, table, NAMES, threshold=None)
        outputs = beam(features, ["two hens", "two hens"], scores)
        tuned = TASK.measure(outputs, features, NAMES).values
        assert tuned["f1"] == 100.0
        threshold = tuned["threshold"]
        assert min(abs(np.array(scores) - threshold)) > 0.1
        assert (threshold < min(scores)) == refused
        stored = features_of(tokenizer, table, NAMES, threshold)
        assert TASK.measure(outputs, stored, NAMES).values["f1"] == 100.0


def test_a_model_that_refuses_all(asked, tokenizer):
    features = features_of(tokenizer, asked, NAMES, threshold=-9.0)
    outputs = beam(features, ["two hens", "fox"], [-1.0, -2.0])
    scores = TASK.measure(outputs, features, NAMES)
    assert scores.values["f1"] == 50.0 == TASK.baseline(features)
    assert "every question is answered with ''" in scores.remarks[0]
    assert "--learning-rate" in scores.remarks[0]


def logits(features, text):
    """Outputs of the other head; in the padding stand the highest logits."""
    outputs = []
    windows = features.source.windows
    for window, row_of_ids in zip(windows, features.rows, strict=True):
        start, end = np.zeros((2, 48))
        start[len(window.token_ids) :] = end[len(window.token_ids) :] = 99
        first, last = place_of(text, window)
        start[first] = end[last] = 9
        output = {"start": start, "end": end}
        outputs.append(TASK.unpadded(output, row_of_ids))
    return outputs


def test_the_other_head_always_answers(tmp_path, asked, tokenizer):
    table = table_of(tmp_path, row(), row(answers=["old barn"]))
    features = features_of(tokenizer, table, None, threshold=None)
    scores = TASK.measure(logits(features, "two hens"), features, None)
    assert scores.values == {"exact_match": 50.0, "f1": 50.0}
    assert "answered with 'two hens'" in scores.remarks[0]
    assert TASK.baseline(features) is None
    # Of questions without an answer it gets none right.
    features = features_of(tokenizer, asked, None, threshold=None)
    scores = TASK.measure(logits(features, "two hens"), features, None)
    assert scores.values["f1"] == scores.values["HasAns_f1"] / 2 == 50.0
    assert "threshold" not in scores.values


def test_what_the_scorers_take(asked, tokenizer):
    features = features_of(tokenizer, asked, NAMES)
    outputs = beam(features, ["two hens", None], [-1.0, 0.5])
    texts, candidates, against = submitted(outputs, features, NAMES, ["a", "b"])
    assert texts == {"a": "two hens", "b": ""}
    assert against == {"a": -1.0, "b": NO_CANDIDATE}
    assert candidates["b"] == []
    scores = {"start_log_prob": -0.5, "end_log_prob": -0.25}
    assert candidates["a"] == [
        {"text": "two hens", "probability": 1.0, **scores}
    ]
    json.dumps([texts, candidates, against], allow_nan=False)
    assert predictions_of(outputs, features)[1].no_answer == math.inf


# Settings.


def test_options_of_other_tasks(tmp_path):
    files = {"model": "m", "train": tmp_path, "output": tmp_path}
    for options in (
        {"windows": WindowOptions(stride=9)},
        {"answers": AnswerConfig(n_best=9)},
    ):
        FinetuneRun(**files, task="qa", **options)
        (name,) = options
        message = rf"`{name}\.\w+` is for qa, SQuAD.*task='classification'"
        with pytest.raises(AlbertError, match=message):
            FinetuneRun(**files, **options)
    run = PredictRun(tmp_path, tmp_path / "a.jsonl", n_best_output=tmp_path)
    message = "`n_best_output` and `null_odds_output` are"
    with pytest.raises(AlbertError, match=message):
        predict(run)
