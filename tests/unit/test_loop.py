"""Runs that are stopped, damaged or diverge, of a model of a moment."""

import concurrent.futures
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from small import (
    BATCH,
    CONFIG,
    LENGTH,
    QUICK,
    numpy,
    pretraining_batch,
    signalled,
    with_dropout,
)

import keras_albert as ka
from keras_albert.pretraining.model import compile_for_pretraining
from keras_albert.signals import StopRequest
from keras_albert.storage import DiskFull
from keras_albert.training import loop
from keras_albert.training.checkpointing import Checkpoints, has_finite_weights
from keras_albert.training.loop import (
    Timetable,
    Training,
    TrainingSteps,
    fit_into_folder,
)
from keras_albert.training.model_folder import ModelFolder
from keras_albert.training.run_log import RunLog
from keras_albert.training.speed import Work

pytestmark = pytest.mark.usefixtures("steps_alone")

STEPS = 20
# Kept after 3, 6, 8, 9, 12, 15, 16, 18 and 20; validated after 8, 16 and 20.
TIMETABLE = Timetable(
    steps=STEPS, validate_every=8, checkpoint_every=3, keep_checkpoints=2
)
TINY = with_dropout(0.1, num_hidden_layers=1)
ORIGIN = {"data": "numbers"}


def slow_on_tensorflow(test):
    """Marks a test that traces four models: 20 s on TensorFlow.

    e2e/test_resume.py has runs of TensorFlow that are stopped.
    """
    traces = keras.backend.backend() == "tensorflow"
    return pytest.mark.proof(test) if traces else test


def quick_on_torch(test):
    """Marks a test that compiles on JAX, and traces on TensorFlow."""
    is_quick = keras.backend.backend() == "torch"
    return test if is_quick else pytest.mark.proof(test)


def batches(steps, seed=0):
    """`steps` batches, all of whose predictions count."""
    x, y, weight = tf.nest.map_structure(
        lambda each: np.stack([each] * steps), pretraining_batch()
    )
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, CONFIG.vocab_size, (steps, BATCH, LENGTH))
    x["token_ids"] = ids.astype("int32")
    weight["mlm"][:] = 1
    return x, y, weight


TRAINING, HELD_OUT = batches(STEPS), batches(2, seed=1)


def fresh_model(seed=0, dtype=None, in_graph=False, **optimizer):
    """Tracing takes longer than a few steps op by op."""
    keras.utils.set_random_seed(seed)
    model = ka.AlbertForPretraining(ka.AlbertBackbone(TINY, dtype=dtype))
    rate = ka.WarmupPolynomialDecay(0.01, STEPS, 5)
    compile_for_pretraining(model, ka.Lamb(rate, **optimizer))
    if not in_graph:
        model.run_eagerly = QUICK["run_eagerly"]
    return model


def fit(folder, timetable=TIMETABLE, *, arrays=TRAINING, model=None, **options):
    folder.mkdir(exist_ok=True)
    content = ModelFolder(model or fresh_model(), None, {"task": "weights"})

    def batches_from(step):
        whole = tf.data.Dataset.from_tensor_slices(arrays)
        return whole.skip(step * timetable.accumulate)

    training = Training(
        content,
        folder,
        batches_from,
        timetable,
        ORIGIN,
        validate=lambda stopped: loop.evaluate_until(
            content.model, tf.data.Dataset.from_tensor_slices(HELD_OUT), stopped
        ),
        **options,
    )
    return fit_into_folder(training)


def checkpoints(folder):
    return Checkpoints(folder / "checkpoints", 2, ORIGIN)


def same_end(folder, other, logged=(8, 16, STEPS)):
    """Whether two runs ended in the same state, with the same log.

    Bit for bit, but for PyTorch, which promises no more than 1e-6.
    """
    tolerance = 1e-6 if keras.backend.backend() == "torch" else 0.0
    ends = [checkpoints(each).newest() for each in (folder, other)]
    assert ends[0].step == ends[1].step == logged[-1]
    a, b = (end.state for end in ends)
    for group in ("trainable", "non_trainable", "optimizer"):
        assert a[group].keys() == b[group].keys() != set()
        for key in a[group]:
            np.testing.assert_allclose(
                a[group][key], b[group][key], rtol=0, atol=tolerance
            )
    rows = [RunLog(each).rows for each in (folder, other)]
    assert [row["step"] for row in rows[0]] == [*logged]
    for ours, theirs in zip(*rows, strict=True):
        assert ours == pytest.approx(theirs, rel=0, abs=10 * tolerance)
    models = [ka.load_model(each / "model.keras") for each in (folder, other)]
    for ours, theirs in zip(*(m.get_weights() for m in models), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    fit(folder, model=fresh_model(in_graph=True))
    return folder


@slow_on_tensorflow
def test_stopped_twice_is_as_if_nothing_had_been(
    tmp_path, uninterrupted, capsys
):
    """In the middle of an interval, then in a validation.

    Another seed begins each process: what is drawn must come from the file.
    """
    with signalled(signal.SIGTERM, step=5), pytest.raises(SystemExit) as stop:
        fit(tmp_path, model=fresh_model(in_graph=True))
    assert stop.value.code == 0
    error = capsys.readouterr().err
    assert "stopped at step 5 of 20; the same command goes on" in error
    assert checkpoints(tmp_path).steps() == [3, 5]
    with signalled(signal.SIGINT), pytest.raises(KeyboardInterrupt):
        fit(tmp_path, model=fresh_model(seed=1, in_graph=True))
    assert "stopped at step 8" in capsys.readouterr().err
    assert RunLog(tmp_path).rows == []
    fit(tmp_path, model=fresh_model(seed=2, in_graph=True))
    assert "going on from step 8 of 20" in capsys.readouterr().out
    same_end(tmp_path, uninterrupted)


@pytest.mark.proof
def test_parts_averages_and_loss_scaling_go_on(tmp_path):
    """All that an optimizer may have, at once, from where a run was killed.

    The loss is scaled ever higher until gradients overflow in float16: those
    parts are left out, so that steps end while a sum is half done.
    """
    timetable = Timetable(8, 4, 5, 9, accumulate=3)
    arrays = batches(8 * 3)
    runs = tmp_path / "whole", tmp_path / "killed"
    for seed, run in enumerate(runs):
        if seed:
            shutil.copytree(runs[0], run)
            shutil.rmtree(run / "checkpoints" / "step-00000008")
        model = fresh_model(
            seed,
            "mixed_float16",
            gradient_accumulation_steps=3,
            use_ema=True,
            ema_momentum=0.8,
        )
        model.optimizer.dynamic_growth_steps = 2
        fit(run, timetable, arrays=arrays, model=model)
        inner = model.optimizer.inner_optimizer
        assert int(numpy(inner.iterations)) < 8, "some parts overflowed"
        assert float(numpy(model.optimizer.dynamic_scale)) >= 2**15
    assert checkpoints(runs[1]).steps() == [4, 5, 8]
    same_end(*runs, logged=(4, 8))


def damage(checkpoint, how):
    if how == "no manifest":
        (checkpoint / "manifest.json").unlink()
        return
    files = [p for p in (checkpoint / "state").rglob("*") if p.is_file()]
    file = max(files, key=lambda path: path.stat().st_size)
    if how == "no file":
        file.unlink()
        return
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content[: -1 if how == "truncated" else None])


@pytest.mark.on_torch
def test_a_damaged_checkpoint_is_passed_over(tmp_path, uninterrupted, capsys):
    """After step 20 it goes back to 18, and arrives at the same end."""
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    damage(folder / "checkpoints" / "step-00000020", "truncated")
    fit(folder, model=fresh_model(seed=3, in_graph=True))
    assert "going on from step 18 of 20" in capsys.readouterr().out
    same_end(folder, uninterrupted)
    names = {path.name for path in (folder / "checkpoints").iterdir()}
    assert "damaged-step-00000020" in names
    assert "step-00000020" in names, "made again"


def with_nan(step):
    x, y, weight = TRAINING
    mlm = weight["mlm"].copy()
    mlm[step - 1, 1, 2] = np.nan
    return x, y, {**weight, "mlm": mlm}


def test_a_loss_that_is_not_finite_is_named(tmp_path):
    message = (
        "diverged at step 5: the loss is nan.*Lower the learning rate"
        r".*keeps the checkpoint of step 3\.$"
    )
    with pytest.raises(ka.AlbertError, match=message):
        fit(tmp_path / "run", arrays=with_nan(5))
    assert checkpoints(tmp_path / "run").newest().step == 3
    # Nothing is left of a run that kept nothing.
    with pytest.raises(ka.AlbertError, match=r"step 2: .* is removed"):
        fit(tmp_path / "early", arrays=with_nan(2))
    assert not (tmp_path / "early").exists()
    # But a model from before, whose checkpoints somebody deleted, is kept.
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "model.keras").touch()
    with pytest.raises(
        ka.AlbertError, match="keeps its model, and no checkpoint"
    ):
        fit(tmp_path / "early", arrays=with_nan(2))


@pytest.mark.on_torch
def test_a_weight_or_held_out_loss_that_is_not_finite(tmp_path, monkeypatch):
    """Nothing is kept of it: neither a checkpoint nor a model or a row."""
    times, losses = Timetable(6, 3, 3, 2), iter([1.0, np.nan])
    monkeypatch.setattr(
        loop, "evaluate_until", lambda *_: {"loss": next(losses)}
    )
    folder = tmp_path / "held-out"
    with pytest.raises(ka.AlbertError, match="step 6: the held-out loss is na"):
        fit(folder, times)
    assert [row["step"] for row in RunLog(folder).rows] == [3]
    save = TrainingSteps._save

    def after_overflow(steps, logs):
        if steps.step == 6:
            # On JAX, `steps.model` is where training puts the weights.
            bias = steps.model.weights[-1]
            bias.assign(np.full(bias.shape, np.inf))
        save(steps, logs)

    monkeypatch.setattr(TrainingSteps, "_save", after_overflow)
    monkeypatch.setattr(loop, "evaluate_until", lambda *_: {"loss": 1.0})
    folder = tmp_path / "weights"
    with pytest.raises(ka.AlbertError, match="step 6: a weight is not finite"):
        fit(folder, times)
    assert checkpoints(folder).steps() == [3]


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("patience", "end"), [(1, 3), (2, 6), (3, 7), (None, None)]
)
def test_patience(patience, end, tmp_path):
    """Evaluations without a better model; the first of equals is best."""
    training = Training(
        *(None, tmp_path, None, TIMETABLE, ORIGIN),
        validate=len,
        best="accuracy",
        patience=patience,
    )
    log, scores = RunLog(None), (0.5, 0.7, 0.7, 0.8, 0.6, 0.8, 0.7, 0.1)
    finished = []
    for step, score in enumerate(scores, start=1):
        log.append({"step": step, "val_accuracy": score})
        if training.is_finished(log):
            finished.append(step)
    assert finished[:1] == ([end] if end else [])


@quick_on_torch
def test_a_loss_is_read_while_the_next_step_is_computed(tmp_path, monkeypatch):
    """Or at once, if the step is saved; Keras has not read it before."""
    of_steps, read = [], []
    end, numbers = TrainingSteps.on_train_batch_end, loop._numbers

    def ended(self, batch, logs):
        assert not isinstance(logs["loss"], float)
        of_steps.append(logs)
        end(self, batch, logs)

    def reads(logs):
        (step,) = (i for i, each in enumerate(of_steps, 1) if each is logs)
        read.append((len(of_steps), step))
        return numbers(logs)

    monkeypatch.setattr(TrainingSteps, "on_train_batch_end", ended)
    monkeypatch.setattr(loop, "_numbers", reads)
    fit(tmp_path, Timetable(6, 3, 3, 1))
    assert read == [(2, 1), (3, 2), (3, 3), (5, 4), (6, 5), (6, 6)]


@pytest.mark.on_torch
@pytest.mark.parametrize("where", ["_exchange_flags", "resume"])
def test_errors_of_libraries(tmp_path, monkeypatch, where, capsys):
    """The folder is free again, as it is after our own errors."""
    failing = Mock(side_effect=MemoryError)
    monkeypatch.setattr(loop.TrainingSteps, where, failing)
    with pytest.raises(MemoryError):
        fit(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert "failed. No model was kept" in capsys.readouterr().err


@pytest.mark.on_torch
def test_a_stop_after_the_last_step(tmp_path, monkeypatch):
    """It is not lost, as another seed may follow; the next call just ends."""
    append, times = RunLog.append, Timetable(6, 3, 3, 1)

    def appended(self, row):
        append(self, row)
        if row["step"] == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "append", appended)
        with pytest.raises(SystemExit):
            fit(tmp_path, times)
    before = (tmp_path / "log.csv").read_bytes()
    assert fit(tmp_path, times)["step"] in (3, 6)
    assert (tmp_path / "log.csv").read_bytes() == before


@pytest.mark.on_torch
def test_another_process_has_finished_the_run(tmp_path):
    """While this one read its tables: nothing is trained over it."""
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(ka.AlbertError, match="another process has finished"):
        fit(tmp_path)
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["report.json"]


@pytest.mark.on_torch
def test_what_cannot_be_continued_stays(tmp_path):
    """An accumulated sum has no place there; then every checkpoint is bad."""
    fit(tmp_path, Timetable(3, 3, 3, 2))
    kept = {*tmp_path.rglob("*")}
    model = fresh_model(gradient_accumulation_steps=2)
    with pytest.raises(ka.AlbertError, match="variables of the optimizer, exp"):
        fit(tmp_path, model=model)
    for manifest in tmp_path.rglob("manifest.json"):
        manifest.write_text("")
    with pytest.raises(ka.AlbertError, match=r"damaged.*to begin anew\.$"):
        fit(tmp_path)
    assert kept <= {*tmp_path.rglob("*")}


@pytest.mark.on_torch
def test_the_disk_becomes_full(tmp_path, monkeypatch):
    """Where a checkpoint has room, and the log has none any more."""
    full = DiskFull(tmp_path / "log.csv", "no space")
    monkeypatch.setattr(RunLog, "append", Mock(side_effect=full))
    message = r"log\.csv: cannot .* keeps the checkpoint of step"
    with pytest.raises(DiskFull, match=message):
        fit(tmp_path / "run")


@pytest.mark.on_torch
def test_parts_of_a_batch_are_the_batch(tmp_path, capsys):
    """Two steps of three parts, and of the whole; clipping acts in each.

    Every row has equally many predictions: otherwise a part's mean counts as
    much as another's, where the batch has one mean. A low rate, as the bias of
    the key, whose gradient is nothing but rounding, moves with it.
    """
    weights = []
    for parts in (3, 1):
        keras.utils.set_random_seed(0)
        backbone = ka.AlbertBackbone(with_dropout(0.0, TINY))
        model = ka.AlbertForPretraining(backbone)
        optimizer = ka.Lamb(
            ka.WarmupPolynomialDecay(0.002, 8, 2),
            global_clipnorm=0.1,
            gradient_accumulation_steps=parts if parts > 1 else None,
        )
        compile_for_pretraining(model, optimizer)
        model.run_eagerly = QUICK["run_eagerly"]
        rows = BATCH * 3 // parts
        arrays = tf.nest.map_structure(
            lambda a, rows=rows: a[:6].reshape(-1, rows, *a.shape[2:]), TRAINING
        )
        row = fit(
            tmp_path / f"{parts}",
            Timetable(2, 2, 2, 1, accumulate=parts),
            arrays=arrays,
            model=model,
            work_of=lambda _: Work(100, 1e6, 1e12),
        )
        assert row["step"] == int(numpy(optimizer.iterations)) == 2
        assert row["model_flops_utilization"] == pytest.approx(
            row["tokens_per_second"] * 1e6 / 100 / 1e12
        )
        assert "tokens/s" in capsys.readouterr().out
        weights.append(model.get_weights())
    for parts, whole in zip(*weights, strict=True):
        np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-6)


@pytest.mark.on_torch
def test_training_goes_on_with_the_weights_themselves(tmp_path):
    """Not with their averages, which are only evaluated and saved."""
    timetable = Timetable(4, 2, 2, 2)
    averaged = fresh_model(use_ema=True, ema_momentum=0.8)
    fit(tmp_path / "averaged", timetable, model=averaged)
    fit(tmp_path / "plain", timetable)
    found, expected = (
        checkpoints(tmp_path / name).newest().state["trainable"]
        for name in ("averaged", "plain")
    )
    for name, weight in expected.items():
        np.testing.assert_allclose(found[name], weight, atol=1e-6)


@pytest.mark.on_torch
def test_the_checkpoint_of_the_best_model_is_kept(tmp_path, monkeypatch):
    """The log has the learning rate of each step, not that of the next one."""
    losses, resets = iter([1.0, 3.0, 2.0]), []
    monkeypatch.setattr(
        loop, "evaluate_until", lambda *_: {"loss": next(losses)}
    )
    reset = loop.SpeedMeter.reset
    monkeypatch.setattr(
        loop.SpeedMeter, "reset", lambda self: (resets.append(1), reset(self))
    )
    fit(tmp_path, Timetable(3, 1, 1, 1))
    assert checkpoints(tmp_path).steps() == [1, 3]
    rates = [row["learning_rate"] for row in RunLog(tmp_path).rows]
    assert rates == pytest.approx([0.0, 0.002, 0.004])
    assert len(resets) == 1 + 3, "at first, and after each interval"


@pytest.mark.any_backend
def test_the_log_may_get_other_columns(tmp_path):
    """A later version may log more numbers, or fewer."""
    log = RunLog(tmp_path)
    for row in ({"step": 1, "a": 1.0}, {"step": 2}, {"step": 3, "b": 2.0}):
        log.append(row)
    nothing = {"a": None, "b": None}
    assert RunLog(tmp_path).rows == [
        {"step": 1, **nothing, "a": 1.0},
        {"step": 2, **nothing},
        {"step": 3, **nothing, "b": 2.0},
    ]


@pytest.mark.any_backend
@pytest.mark.parametrize("group", ["trainable", "non_trainable"])
def test_which_weights_must_be_finite(group):
    state = {"trainable": {}, "non_trainable": {}, "metrics": {}}
    state["metrics"]["0"] = np.array([np.nan])  # may be a mean of nothing
    assert has_finite_weights(state)
    state[group] = {"0": np.array([1.0, np.inf])}
    assert not has_finite_weights(state)


@pytest.mark.on_torch
def test_averages_are_evaluated_and_saved(tmp_path):
    timetable = Timetable(2, 2, 1, 2)
    model = fresh_model(use_ema=True, ema_momentum=0.8)
    row = fit(tmp_path / "averaged", timetable, model=model)
    fit(tmp_path / "plain", timetable)
    averaged, plain = (
        checkpoints(tmp_path / name).newest().state
        for name in ("averaged", "plain")
    )
    weights, optimizer, plain_weights = (
        [group[str(i)] for i in range(len(group))]
        for group in (
            averaged["trainable"],
            averaged["optimizer"],
            plain["trainable"],
        )
    )
    for weight, same in zip(weights, plain_weights, strict=True):
        np.testing.assert_allclose(weight, same, atol=1e-6)
    averages = optimizer[1 : 1 + len(weights)]  # after `iterations`
    assert np.abs(averages[0] - weights[0]).max() > 1e-4
    saved = ka.load_model(tmp_path / "averaged" / "model.keras")
    for a, b in zip(saved.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(numpy(a), b)
    compile_for_pretraining(saved, "sgd")
    saved.run_eagerly = QUICK["run_eagerly"]
    held_out = tf.data.Dataset.from_tensor_slices(HELD_OUT)
    measured = saved.evaluate(held_out, return_dict=True, verbose=0)
    assert measured["loss"] == pytest.approx(row["val_loss"], abs=1e-5)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("best", "values", "kept"),
    [
        ("loss", [3.0, 1.0, 2.0, 1.0], 20),
        ("accuracy", [0.1, 0.5, 0.3, 0.5], 20),
        ("equal accuracy", [0.1, 0.5, 0.3, 0.5], 40),
        (None, [3.0, 1.0, 2.0, 1.0], 40),
    ],
)
def test_which_model_is_kept(tmp_path, best, values, kept):
    """The lowest loss, the highest of other values, the first of equals.

    Of equal accuracies with another loss it is that of the lower one. Where
    nothing is held out, the newest. A run that goes on in between compares
    with what was before.
    """
    (tmp_path / "checkpoints").mkdir()
    saved = []
    losses = itertools.repeat(5.0)
    if best == "equal accuracy":
        best, losses = "accuracy", itertools.count(9.0, -1.0)
    validated = [
        {"loss": loss, best: value}
        for loss, value in zip(losses, values, strict=False)
    ]
    optimizer = SimpleNamespace(last_learning_rate=0.1, averages=[])
    content = SimpleNamespace(
        model=SimpleNamespace(optimizer=optimizer),
        save=lambda folder: saved.append(steps.step),
    )
    training = Training(
        content,
        tmp_path,
        None,
        Timetable(40, 10, 10, 2),
        ORIGIN,
        best and (lambda _: validated.pop(0)),
        best or "loss",
    )
    for ends in ((10, 20), (30, 40)):
        steps = TrainingSteps(
            training,
            RunLog(tmp_path),
            SimpleNamespace(line=print),
            StopRequest(),
        )
        for step in ends:
            steps.step, steps._ended_interval = step, {"loss": 7.0}
            steps.finish_interval()
    assert saved[-1] == training.kept(steps.log.rows)["step"] == kept
    expected = {20: [10, 20], 40: [10, 20, 40]}[kept]
    assert saved == (expected if best else [10, 20, 30, 40])


ARRAYS = {"trainable": {"0": np.arange(3000.0), "1": np.array([7], "uint32")}}


@pytest.mark.any_backend
def test_newest_and_best_are_kept(tmp_path):
    kept = checkpoints(tmp_path)
    for step in range(1, 7):
        kept.save(step, ARRAYS, None)
        kept.prune(best=2)
    half = kept.folder / "checkpoint.unfinished-x"  # left by a killed process
    half.mkdir()
    (half / "manifest.json").write_text("{")
    assert kept.steps() == [2, 5, 6]
    found = kept.newest()
    assert not half.exists()
    assert found.step == 6 and found.logs is None
    np.testing.assert_array_equal(found.state["trainable"]["0"], range(3000))
    assert found.state["trainable"]["1"].dtype == "uint32"
    other = Checkpoints(kept.folder, 2, {"data": "others"})
    with pytest.raises(ka.AlbertError, match=r"begun with another data \("):
        other.newest()
    # As another process reads it, which must see the same folder.
    assert kept.read(5).step == 5
    with pytest.raises(ka.AlbertError, match="no such checkpoint here, but p"):
        kept.read(4)


@pytest.mark.any_backend
def test_the_origin_may_lack_newer_settings_alone(tmp_path):
    begun = {"data": "numbers", "config": {"layers": 1, "width": 8}}
    Checkpoints(tmp_path, 1, begun).save(3, ARRAYS, None)
    newer = {**begun, "config": {**begun["config"], "dropout": 0.0}, "new": 1}
    assert Checkpoints(tmp_path, 1, newer).newest().step == 3
    other = {**begun, "config": {"layers": 2, "width": 8}}
    with pytest.raises(ka.AlbertError, match=r"begun with another config \("):
        Checkpoints(tmp_path, 1, other).newest()


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "how", ["truncated", "changed", "no file", "no manifest"]
)
def test_damage_is_seen(tmp_path, how, capsys):
    """Nor does it count as one of the newest, of which one is kept."""
    kept = Checkpoints(tmp_path / "checkpoints", 1, ORIGIN)
    for step in (40, 50):
        kept.save(step, ARRAYS, None)
    damage(kept.folder / "step-00000050", how)
    (kept.folder / "step-00000040.bak").mkdir()  # somebody's copy
    (kept.folder / "step-00000040" / ".DS_Store").touch()  # of macOS's Finder
    assert kept.newest().step == 40
    error = capsys.readouterr().err
    assert "warning: " in error and "step-00000050" in error
    assert "The one before it is tried." in error
    kept.save(42, ARRAYS, None)
    kept.prune(None)
    assert kept.steps() == [42]
    assert kept.newest().step == 42


@pytest.mark.any_backend
def test_no_room(tmp_path, monkeypatch, capfd, small_disk):
    """The first one stays.

    Where the disk has too little room for all of it, nothing is written, as
    Orbax prints tracebacks.
    """
    kept = checkpoints(tmp_path)
    kept.save(1, ARRAYS, None)
    large = {"trainable": {"0": np.random.default_rng(0).random(300_000)}}
    message = "step 2 cannot be written.*Make room"
    with pytest.raises(ka.AlbertError, match=message), small_disk(100_000):
        kept.save(2, large, None)
    capfd.readouterr()
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    message = r"step 2 cannot be written \(2\.4 MB are needed, 0\.0 MB free\)"
    with pytest.raises(ka.AlbertError, match=message):
        kept.save(2, large, None)
    assert capfd.readouterr().err == ""
    assert [p.name for p in kept.folder.iterdir()] == ["step-00000001"]
    assert kept.newest().step == 1


@pytest.mark.any_backend
def test_an_error_of_a_network_disk(tmp_path, monkeypatch):
    """It is no mistake of the user, and leaves no half checkpoint."""
    kept = checkpoints(tmp_path)
    lost = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(np, "savez", Mock(side_effect=lost))
    with pytest.raises(OSError, match=r"Input/output error: '.*checkpoints'"):
        kept.save(4, ARRAYS, None)
    assert not any(kept.folder.iterdir())


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (np.nan, "step 7: the loss is nan"),
        (0.5, "step 7: the loss of another process is not finite"),
    ],
)
def test_a_process_that_diverges_ends_all(loss, reason):
    """Each has the mean loss of its own rows."""
    steps = SimpleNamespace(_exchange_flags=lambda failed: True)
    with pytest.raises(ka.AlbertError, match=reason):
        TrainingSteps._check(steps, 7, {"loss": loss})


@pytest.mark.any_backend
def test_all_damaged(tmp_path, capsys):
    kept = checkpoints(tmp_path)
    kept.save(4, ARRAYS, None)
    manifest = kept.folder / "step-00000004" / "manifest.json"
    for content in ("", "[]", '{"files": {}}'):
        manifest.write_text(content)
        with pytest.raises(ka.AlbertError, match="every checkpoint is damaged"):
            kept.newest()
        assert "step-00000004" in capsys.readouterr().err


@pytest.mark.any_backend
def test_the_reader_of_the_output_is_gone(monkeypatch):
    """As `tee` is, after Ctrl-C in a terminal: the step still ends."""

    def closed(*_):
        raise BrokenPipeError

    with StopRequest() as stop, monkeypatch.context() as patch:
        patch.setattr(os, "write", closed)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT


IN_A_TERMINAL = """
import os, signal, sys
from keras_albert.signals import StopRequest, signals_as_ctrl_c

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored under nohup
sys.stdin.readline()  # until the terminal is closed
with signals_as_ctrl_c(), StopRequest() as stop:  # as in a command
    os.kill(os.getpid(), signal.SIGHUP)
    print("the next line of the progress", flush=True)
    print("and an error", file=sys.stderr, flush=True)
    assert stop.signal == signal.SIGHUP
    sys.exit(7)
"""


@pytest.mark.any_backend
@pytest.mark.skipif(os.name != "posix", reason="needs a terminal of POSIX")
def test_a_terminal_that_is_closed():
    """The step ends, and what is printed is lost."""
    ours, theirs = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    os.close(ours)
    child.communicate(b"closed\n", timeout=100)
    assert child.returncode == 7


@pytest.mark.any_backend
def test_second_signal_does_not_wait():
    stop = StopRequest()
    before = signal.getsignal(signal.SIGTERM)
    with stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before
    # Only the main thread may handle signals; in another one nothing changes.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(stop.__enter__).result()
    assert signal.getsignal(signal.SIGTERM) == before
