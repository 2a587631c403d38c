"""Tokens a second, operations of an example, and the peak of the device."""

import dataclasses

import pytest
from small import CONFIG

import keras_albert as ka
from keras_albert.pretraining.flops import flops_per_example
from keras_albert.training import speed
from keras_albert.training.speed import SpeedMeter, Work

pytestmark = pytest.mark.any_backend

EXAMPLES = ka.ExampleConfig(sequence_length=11, masked_lm_prob=0.45)


def test_operations_by_hand():
    """Multiply-adds of one example, forward; times 2, times 3 with backward.

    Projection 11 x 11 x 26 = 3146. A layer: query, key, value and output
    11 x 4 x 26 x 26 = 29,744; scores and weighted sum 2 x 11 x 11 x 26 = 6292;
    feed-forward 11 x 2 x 26 x 37 = 21,164. Masked LM, 5 of 11 tokens: 5 x 11 x
    26 = 1430 and 5 x 11 x 97 = 5335. Pooler and order: 676 + 52.
    """
    layers = 5 * (29_744 + 6292 + 21_164)
    expected = 6 * (3146 + layers + 1430 + 5335 + 728)
    assert flops_per_example(CONFIG, EXAMPLES) == expected
    shared = CONFIG.replace(sharing="none", num_hidden_groups=2)
    assert flops_per_example(shared, EXAMPLES) == expected
    # Rank 2: four of 2 x (26 + 26), two of 2 x (26 + 37), a token.
    relaxed = CONFIG.replace(relaxed_rank=2)
    more = 6 * 5 * 11 * (4 * 104 + 2 * 126)
    assert flops_per_example(relaxed, EXAMPLES) == expected + more
    equal = CONFIG.replace(embedding_size=26)
    assert flops_per_example(equal, EXAMPLES) == 6 * (
        layers + 5 * 26 * (26 + 97) + 728
    )


def test_operations_of_a_packed_row_by_hand():
    """Up to 4 examples: 6 predictions, 11 x 0.45 + 4 x 0.5, and 4 orders."""
    packed = dataclasses.replace(EXAMPLES, pack=True, max_examples=4)
    layers = 5 * (29_744 + 6292 + 21_164)
    masked_lm = 6 * 11 * (26 + 97)
    expected = 6 * (3146 + layers + masked_lm + 4 * (676 + 52))
    assert flops_per_example(CONFIG, packed) == expected


def test_the_peak_is_that_of_the_fastest_product(monkeypatch):
    seconds = iter([9.0, 1.0, 0.5, 0.8, 0.7, 0.9, 0.6])  # the first compiles
    monkeypatch.setattr(speed, "_seconds", lambda matrix: next(seconds))
    size = speed.FIRST_SIZE
    assert speed.matrix_product_peak("float32") == 2 * size**3 / 0.5


def test_speed_is_of_training_alone():
    """Steps 5 and 6 have 300 tokens, all others 100."""
    now = [0.0]
    short, long = Work(100, 4e3, 1e4), Work(300, 2e4, 1e4)
    meter = SpeedMeter(
        lambda step: long if step in (5, 6) else short, clock=lambda: now[0]
    )
    meter.start()
    for step, seconds in enumerate((50.0, 2.0, 2.0), 1):  # the first compiles
        assert meter.reading()["tokens_per_second"] is None or step == 3
        now[0] += seconds
        meter.step(step)
    now[0] += 1000.0  # validation
    meter.start()
    now[0] += 5.0
    meter.step(4)
    # Three steps in nine seconds.
    reading = meter.reading()
    assert reading["tokens_per_second"] == pytest.approx(100 / 3)
    assert reading["model_flops_utilization"] == pytest.approx(4e3 / 3 / 1e4)
    for step, seconds in enumerate((70.0, 11.0), 5):  # 5 compiles again
        now[0] += seconds
        meter.step(step)
    reading = meter.reading()
    assert reading["tokens_per_second"] == pytest.approx(600 / 20)
    assert reading["model_flops_utilization"] == pytest.approx(3.2e4 / 20 / 1e4)
    now[0] += 5.0
    meter.step(7)  # was compiled before
    assert meter.reading()["tokens_per_second"] == pytest.approx(700 / 25)
    meter.reset()
    assert meter.reading()["tokens_per_second"] is None
    assert SpeedMeter(None).reading() == {}
