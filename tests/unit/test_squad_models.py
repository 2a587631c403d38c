"""Windows through both models, and answers from what they give."""

from pathlib import Path

import numpy as np
import pytest
from scipy import special
from small import TEXT_CONFIG, numpy, randomize, randomized

from keras_albert.data.batches import Features
from keras_albert.data.tables import Table
from keras_albert.finetuning.run import compile_for
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.question_answering import (
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
    _answerable,
)
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    ReadingConfig,
    WindowConfig,
)
from keras_albert.tasks.question_answering.decoding import (
    decode_beam,
    decode_logits,
)
from keras_albert.tasks.question_answering.squad import Answer, Question
from keras_albert.tasks.question_answering.task import NAMES
from keras_albert.tasks.question_answering.windows import make_windows
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.text.model_inputs import Row
from keras_albert.text.tokenizer import Tokenizer

LENGTH = 32
CONFIG = AnswerConfig(n_best=4, answer_length=7)


@pytest.fixture(scope="module")
def questions():
    long = "The fox chased two hens near Prague. My uncle sold the old barn."
    return [
        Question("1", "Who sold it?", long, (Answer("My uncle", 37),), False),
        Question("2", "Where?", "Near £9.", (), True),
    ]


@pytest.fixture(scope="module")
def windows(tiny_vocab, questions):
    config = WindowConfig(sequence_length=LENGTH, stride=9, query_length=5)
    windows = make_windows(Tokenizer(tiny_vocab), questions, config)
    assert [w.question for w in windows] == [0] * (len(windows) - 1) + [1]
    assert len(windows) > 3
    return windows


@pytest.fixture(scope="module")
def inputs(windows):
    rows = [Row(window.token_ids, window.context_start) for window in windows]
    return Features(rows).batch(np.arange(len(rows)), len(rows), LENGTH)[0]


def expected(questions, windows, spans):
    """The best answers, by trying all; spans: (window, start, end, score)."""
    texts = []
    for number, question in enumerate(questions):
        best = {}
        for w, start, end, score in spans:
            window = windows[w]
            first = start - window.context_start
            last = end - window.context_start
            if (
                window.question == number
                and 0 <= first <= last < len(window.starts)
                and last - first < CONFIG.answer_length
                and window.max_context[first]
            ):
                text = question.context[
                    window.starts[first] : window.ends[last]
                ].strip()
                best[text] = max(score, best.get(text, score))
        ranked = sorted(best, key=best.get, reverse=True)
        texts.append(ranked[: CONFIG.n_best])
    return texts


@pytest.mark.parametrize("names", [None, NAMES])
def test_the_loss_is_the_reference_s(tiny_vocab, questions, names):
    """Half of each cross-entropy, of the rows that count."""
    values = {
        "context": [question.context for question in questions],
        "question": [question.text for question in questions],
        "answers": [[("My uncle", 37)], []],
    }
    table = Table(Path("x"), values, [{}] * 2, [1, 2])
    reading = ReadingConfig(WindowConfig(LENGTH, 9, 5), CONFIG)
    features = ALL_TASKS["qa"].examples(
        Tokenizer(tiny_vocab), table, names, LENGTH, reading
    )
    count = len(features)
    x, y, weight = features.training_batch(np.arange(count), count + 1, LENGTH)
    model = randomize(
        ALL_TASKS["qa"].head(AlbertBackbone(TEXT_CONFIG), names, 0.1)
    )
    compile_for("qa", model, "sgd", names)
    loss = model.evaluate(x, y, sample_weight=weight, verbose=0)[0]
    outputs = {name: numpy(values) for name, values in model(x).items()}
    rows = np.arange(count)
    expected = 0.0
    for name in ("start", "end"):
        log_odds = special.log_softmax(outputs[name].astype("float64"), -1)
        expected -= log_odds[rows, y[name][:count]].mean() / 2
    if names:
        signs = 1 - 2 * y["answer_class"][:count]
        logits = outputs["answer_class"][:count].astype("float64")
        expected += np.log1p(np.exp(signs * logits)).mean() / 2
    assert loss == pytest.approx(expected, rel=1e-5)


def texts_of(predictions):
    return [[c.text for c in p.candidates] for p in predictions]


def test_what_the_model_masks(windows, inputs):
    answerable = numpy(_answerable(inputs))
    for window, row in zip(windows, answerable, strict=True):
        p_mask = np.ones(LENGTH, bool)
        p_mask[0] = False  # [CLS]
        p_mask[window.context_start : len(window.token_ids) - 1] = False
        assert np.array_equal(~row, p_mask)
        marks = (window.start, window.end)
        assert row[list(marks)].all()


def test_answers_of_logits(questions, windows, inputs):
    model = randomized(AlbertForQuestionAnswering(AlbertBackbone(TEXT_CONFIG)))
    outputs = {name: numpy(x) for name, x in model(inputs).items()}
    start, end = (
        [
            row[: len(window.token_ids)]
            for row, window in zip(outputs[name], windows, strict=True)
        ]
        for name in ("start", "end")
    )
    predictions = decode_logits(questions, windows, start, end, CONFIG)

    def best(row):
        return sorted(range(len(row)), key=lambda i: -row[i])[: CONFIG.n_best]

    spans = [
        (w, i, j, float(start[w][i]) + float(end[w][j]))
        for w in range(len(windows))
        for i in best(start[w])
        for j in best(end[w])
    ]
    assert texts_of(predictions) == expected(questions, windows, spans)
    assert any(prediction.candidates for prediction in predictions)
    for p, candidates in zip(predictions, texts_of(predictions), strict=True):
        assert p.text() == next(filter(None, candidates), "")


def test_answers_of_the_beam(questions, windows, inputs):
    model = randomized(
        AlbertForQuestionAnsweringV2(AlbertBackbone(TEXT_CONFIG))
    )
    outputs = {name: numpy(x) for name, x in model(inputs).items()}
    predictions = decode_beam(questions, windows, outputs, CONFIG)
    spans = [
        (
            w,
            outputs["start_top_index"][w, i],
            outputs["end_top_index"][w, i, j],
            float(outputs["start_top_log_probs"][w, i])
            + float(outputs["end_top_log_probs"][w, i, j]),
        )
        for w in range(len(windows))
        for i in range(model.beam)
        for j in range(model.beam)
    ]
    assert texts_of(predictions) == expected(questions, windows, spans)
    answer_class = outputs["answer_class"][:, 0]
    for number, prediction in enumerate(predictions):
        own = [
            logit
            for logit, window in zip(answer_class, windows, strict=True)
            if window.question == number
        ]
        if prediction.candidates:
            assert prediction.no_answer == pytest.approx(min(own))
    assert any(prediction.candidates for prediction in predictions)
