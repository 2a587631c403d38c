"""The losses of both question answering heads."""

from pathlib import Path

import numpy as np
import pytest
from scipy import special
from small import TEXT_CONFIG, add_noise, numpy

import keras_albert as ka
from keras_albert.data.tables import Table
from keras_albert.finetuning.model import compile_with
from keras_albert.tasks.config import HeadOptions
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    WindowConfig,
)
from keras_albert.tasks.question_answering.task import NAMES
from keras_albert.tasks.registry import ALL_TASKS

LENGTH = 32
LONG = "The fox chased two hens near Prague. My uncle sold the old barn."
VALUES = {
    "context": [LONG, "Near £9."],
    "question": ["Who sold it?", "Where?"],
    "answers": [[("My uncle", 37)], []],
}


@pytest.mark.parametrize(
    "names", [NAMES, pytest.param(None, marks=pytest.mark.proof)]
)
def test_the_loss_is_the_reference_s(tiny_vocab, names):
    """Half of each cross-entropy, of the rows that count."""
    table = Table(Path("x"), VALUES, [{}] * 2, [1, 2])
    reading = ka.ReadingConfig(WindowConfig(LENGTH, 9, 5), AnswerConfig())
    features = ALL_TASKS["qa"].examples(
        ka.Tokenizer(tiny_vocab), table, names, LENGTH, reading
    )
    count = len(features)
    x, y, weight = features.training_batch(np.arange(count), count + 1, LENGTH)
    task = ALL_TASKS["qa"]
    backbone = ka.AlbertBackbone(TEXT_CONFIG)
    model = add_noise(task.head(backbone, names, HeadOptions()))
    compile_with(task.loss(names), model, "sgd")
    loss = model.evaluate(x, y, sample_weight=weight, verbose=0)[0]
    outputs = {name: numpy(values) for name, values in model(x).items()}
    rows = np.arange(count)
    expected = 0.0
    for name in ("start", "end"):
        log_probabilities = special.log_softmax(
            outputs[name].astype("float64"), -1
        )
        expected -= log_probabilities[rows, y[name][:count]].mean() / 2
    if names:
        signs = 1 - 2 * y["answer_class"][:count]
        logits = outputs["answer_class"][:count].astype("float64")
        expected += np.log1p(np.exp(signs * logits)).mean() / 2
    assert loss == pytest.approx(expected, rel=1e-5)


def reader(tiny_vocab):
    model = ka.AlbertForQuestionAnsweringV2(ka.AlbertBackbone(TEXT_CONFIG))
    windows = WindowConfig(LENGTH, 9, 5)
    return ka.Predictor(
        model,
        tokenizer=ka.Tokenizer(tiny_vocab),
        reading=ka.ReadingConfig(windows, AnswerConfig()),
    )


@pytest.mark.on_torch
def test_rows_that_are_shorter_than_the_beam(tiny_vocab):
    """Four tokens, alone in their batch; the other rows have a beam of five."""
    answers = reader(tiny_vocab).predict(
        ["", LONG], questions=["a", "Who sold it?"], batch_size=1
    )
    assert answers[0] == "" and len(answers) == 2


@pytest.mark.on_torch
def test_a_model_that_has_broken_down(tiny_vocab):
    """NaN would be taken for the first class, or the first token."""
    broken = reader(tiny_vocab)
    for weight in broken.model.weights:
        weight.assign(np.full(weight.shape, np.nan))
    with pytest.raises(ka.AlbertError, match="the model has broken down"):
        broken.predict([LONG], questions=["Who sold it?"])
