"""What a run costs: the energy counters of processors, and the line."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from small import CONFIG

from keras_albert.data.batches import Features, choose_lengths, training_dataset
from keras_albert.finetuning.data import work_of_steps
from keras_albert.text.model_inputs import Row
from keras_albert.training import cost
from keras_albert.training.config import CHECKPOINTS_FOLDER
from keras_albert.training.cost import Cost, EnergyMeter, cost_of_run, total
from keras_albert.training.run_log import RunLog
from keras_albert.training.speed import Work

pytestmark = pytest.mark.any_backend


def counters(folder, **values):
    for name, value in values.items():
        package = folder / name.replace("_", ":").replace("rapl", "intel-rapl")
        if not package.exists():
            package.mkdir()
            kind = "core" if name.count("_") == 2 else "package-0"
            (package / "name").write_text(f"{kind}\n")
            (package / "max_energy_range_uj").write_text("9000000\n")
        # A thread may read it at any moment.
        (package / "new").write_text(f"{value}\n")
        (package / "new").replace(package / "energy_uj")


def test_energy_of_all_packages(tmp_path):
    """A part of a package, rapl_0_1, is in the package already."""
    counters(tmp_path, rapl_0=1_000_000, rapl_0_1=5, rapl_1=8_000_000)
    meter = EnergyMeter(tmp_path)
    assert meter.joules() == 0
    counters(tmp_path, rapl_0=3_500_000, rapl_0_1=7_000_000, rapl_1=1_000_000)
    assert meter.joules() == pytest.approx(2.5 + 2)  # the second has wrapped
    counters(tmp_path, rapl_0=0, rapl_1=8_000_000)
    assert meter.joules() == pytest.approx(4.5 + 5.5 + 7)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert meter.joules() is None
    assert EnergyMeter(tmp_path / "none").joules() is None


def test_counters_are_read_while_the_run_goes_on(tmp_path, monkeypatch):
    """Otherwise one that begins again at zero twice would lose 9 joules."""
    monkeypatch.setattr(cost, "SECONDS_BETWEEN_SAMPLES", 0.01)
    counters(tmp_path, rapl_0=0)
    meter = EnergyMeter(tmp_path)
    for value in (6_000_000, 3_000_000, 0):  # 6 joules each time
        counters(tmp_path, rapl_0=value)
        deadline = time.monotonic() + 10
        while meter._last["intel-rapl:0"][0] != value:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert meter.joules() == pytest.approx(18)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_energy_of_a_resumed_run_is_unknown(is_resumed, tmp_path, monkeypatch):
    """That of its first part was not stored."""
    if is_resumed:
        (tmp_path / CHECKPOINTS_FOLDER).mkdir()
    training = SimpleNamespace(
        folder=tmp_path, devices=SimpleNamespace(is_first=True)
    )

    def fit(training):
        RunLog(training.folder).append({"step": 4, "tokens_per_second": 10.0})
        return "kept"

    monkeypatch.setattr(cost, "fit_into_folder", fit)
    meter = SimpleNamespace(joules=lambda: 7.0)
    monkeypatch.setattr(cost, "EnergyMeter", lambda: meter)
    kept, found = cost.fit_with_cost(training, lambda step: Work(5, 1.0, 1.0))
    assert kept == "kept"
    assert found.joules == (None if is_resumed else 7)
    assert (found.tokens, found.minutes) == (20, pytest.approx(2 / 60))


def test_cost_of_steps_of_different_size():
    """By hand: the last 2 of 6 steps are twice as long.

    In the first interval no step was timed, and a row of an older version has
    no speed: these steps count as if they had been as fast as the others.
    """
    rows = [
        {"step": 2},
        {"step": 3, "tokens_per_second": None},
        {"step": 6, "tokens_per_second": 25.0},
    ]
    found = cost_of_run(
        rows,
        6,
        lambda step: Work(10, 7.0, 1.0) if step <= 4 else Work(20, 18.0, 1.0),
        None,
    )
    assert found == Cost(
        minutes=pytest.approx(80 / 25 / 60),
        tokens=4 * 10 + 2 * 20,
        flops=4 * 7 + 2 * 18,
        joules=None,
    )
    other = Cost(None, 5, 1.0, None)
    assert total([found, other]) == Cost(None, 85, 65.0, None)


def test_work_of_fine_tuning_is_that_of_its_batches():
    """Three lengths, two choices an example, two epochs."""
    lengths = [5] * 14 + [12] * 6 + [23] * 6
    rows = [Row(np.ones(length, "int32"), length) for length in lengths]
    examples = Features(rows, np.zeros(13, "int32"), choices=2)
    static = choose_lengths(examples.lengths, 23)
    assert static.tolist() == [8, 16, 23]
    work_of = work_of_steps(
        SimpleNamespace(batch_size=3, seed=7, precision="float32"),
        examples,
        CONFIG,
        static,
        replicas=1,
    )
    batches = training_dataset(examples, static, batch_size=3, seed=7, epochs=2)
    found = [x["token_ids"].shape for x, *_ in batches]
    tokens = [work_of(step).tokens for step in range(1, 11)]
    assert tokens == [np.prod(shape) for shape in found]
    flops = work_of(1).flops / np.prod(found[0])
    # By hand: 5 layers of 4 kernels H x H, 2 of H x F, S scores and sums of
    # width H; E x H before them; 2 operations, forward and twice backward.
    length = found[0][-1]
    layer = 4 * 26 * 26 + 2 * 26 * 37 + 2 * length * 26
    assert flops == 6 * (5 * layer + 11 * 26)


def test_line():
    assert Cost(12.34, 2_048_000, 6.25e12, None).line() == (
        "cost: 12.3 minutes, 2,048,000 tokens, 6.25e+12 FLOP, energy unknown"
    )
    assert Cost(None, 1, 2.0, 12_345.6).line() == (
        "cost: 1 tokens, 2 FLOP, 12.3 kJ in the processors"
    )


def test_an_untimed_interval_does_not_count_in_the_next_one():
    """By hand: 1 and 1/2 seconds for 20 tokens; the other 10 as fast."""
    rows = [
        {"step": step, "tokens_per_second": speed}
        for step, speed in ((1, None), (2, 10.0), (3, 20.0))
    ]
    found = cost_of_run(rows, 3, lambda step: Work(10, 7.0, 1.0), None)
    assert found.minutes == pytest.approx(1.5 * 30 / 20 / 60)


def test_the_whole_platform_is_no_package(tmp_path):
    """The counter psys has the packages' energy once more."""
    counters(tmp_path, rapl_0=0, rapl_1=0)
    (tmp_path / "intel-rapl:1" / "name").write_text("psys\n")
    meter = EnergyMeter(tmp_path)
    counters(tmp_path, rapl_0=2_000_000, rapl_1=5_000_000)
    assert meter.joules() == pytest.approx(2)
