"""What a pretraining run checks and reports, without running."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from keras_albert.config import VARIANTS, AlbertError, PretrainRun
from keras_albert.training import pretrain

pytestmark = pytest.mark.any_backend
RUN = PretrainRun(data=Path("shards"), output=Path("out"), warm_start="old")


def test_a_warm_start_with_another_vocabulary():
    """As many pieces, but others: each row would stand for another one."""
    shards = SimpleNamespace(vocab_size=30_000, fingerprint="ours")
    source = SimpleNamespace(tokenizer=SimpleNamespace(fingerprint="theirs"))
    with pytest.raises(AlbertError, match="old has another vocabulary than sh"):
        pretrain._check_fit(RUN, VARIANTS["base_v2"], shards, None, source)


def test_advice_is_for_models_of_released_size():
    """0.00176 x sqrt(32 / 4096) = 0.000156."""
    base = VARIANTS["base_v2"]
    small = PretrainRun(data=Path("s"), output=Path("o"), batch_size=32)
    assert "=0.000156" in pretrain.learning_rate_advice(small, base)
    assert pretrain.learning_rate_advice(RUN, base) is None, "the paper's batch"
    tiny = base.replace(hidden_size=192)
    assert pretrain.learning_rate_advice(small, tiny) is None


def test_the_best_constant_guess_is_the_more_frequent_label():
    """Three of four pairs are labelled 1; a fifth does not count."""

    class Batches:
        def as_numpy_iterator(self):
            y = {
                "mlm": np.array([[7, 7], [7, 9]]),
                "sop": np.array([1, 1, 0, 1, 0]),
            }
            weight = {
                "mlm": np.array([[1, 1], [1, 1]]),
                "sop": np.array([1, 1, 1, 1, 0]),
            }
            yield None, y, weight

    measured = {
        f"{task}_{what}": 0.5
        for task in ("mlm", "sop")
        for what in ("accuracy", "cross_entropy")
    }
    report = pretrain.held_out_report(measured, Batches())
    assert report["sop_baseline"] == 0.75 and report["sop_count"] == 4
    assert report["mlm_baseline"] == 0.75 and report["mlm_count"] == 4
    _, line = pretrain.report_lines({"held_out": report})
    assert "0.750" in line and "+-0.424" in line, "1.96 sqrt(3/16 / 4)"
