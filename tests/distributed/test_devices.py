"""One run on one device, on several, and in several processes.

Virtual devices of one machine; what a run computes must not depend on them.
"""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import keras
import numpy as np
import pytest
from commands import log_of, report_of, run as command_here, write_rows
from processes import LIMIT, Run, free_ports
from small import BATCH, CONFIG, inputs, numpy, op_by_op

import keras_albert as ka
from keras_albert.cli import main
from keras_albert.data.batches import (
    Features,
    choose_lengths,
    training_dataset as finetuning_batches,
)
from keras_albert.data.input_pipeline import host_rows
from keras_albert.distribution.backend import _several_devices, opened
from keras_albert.distribution.config import (
    LOST_PROCESS_STATUS,
    DeviceConfig,
    ProcessConfig,
)
from keras_albert.distribution.devices import OneDevice, vary_seeds
from keras_albert.text.model_inputs import Row
from keras_albert.training import checkpointing, loop
from keras_albert.training.checkpointing import Checkpoints, _load_state

BACKEND = keras.backend.backend()
TINY = ka.AlbertConfig(
    vocab_size=160,
    embedding_size=8,
    hidden_size=12,
    num_hidden_layers=1,  # every process traces, or compiles, all of them
    num_attention_heads=4,
    intermediate_size=16,
    max_position_embeddings=64,
    initializer_range=0.1,
)
STEPS = 24  # of a run that is stopped
LOSSES, WEIGHTS = 2e-6, 1e-5  # largest differences: relative, absolute
# Which options are also those of the run on one device.
FOR_ALL = ("--accumulate", "--examples", "--optimizer")
UNREAD_POOLER = "--examples.sentence-task=none"
ACCUMULATED = "--accumulate=2"
MIRRORED = "--distribution=mirrored"
MUON = "--optimizer.optimizer=muon"
DIVIDED = ("--distribution=model", "--model-parallel=2")
# Processes, devices of each, options.
SETTINGS = {
    "tensorflow": {
        "2 replicas": (1, 2, MIRRORED, ACCUMULATED),
        "2 replicas, 3 steps a call": (
            *(1, 2, MIRRORED, "--steps-per-execution=3", ACCUMULATED),
        ),
        "4 replicas": (1, 4, MIRRORED),
        "2 replicas, Muon": (1, 2, MIRRORED, MUON, ACCUMULATED),
        "2 workers": (2, 1, ACCUMULATED, UNREAD_POOLER),
    },
    "jax": {
        "4 devices": (1, 4, ACCUMULATED, UNREAD_POOLER),
        "2 x 2 devices": (1, 4, *DIVIDED),
        "the same with Muon": (1, 4, *DIVIDED, MUON, ACCUMULATED),
        "2 processes, divided weights": (2, 2, *DIVIDED, ACCUMULATED),
    },
    "torch": {
        "2 processes": (2, 1, ACCUMULATED, UNREAD_POOLER),
        "4 processes": (4, 1),
        "2 processes, Muon": (2, 1, MUON, ACCUMULATED, UNREAD_POOLER),
    },
}[BACKEND]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_vocab, tiny_lines):
    """A folder with shards of 67 documents and configs of a model."""
    folder = tmp_path_factory.mktemp("devices")
    documents = ["\n".join(tiny_lines[i : i + 9]) for i in range(0, 600, 9)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    text, shards = folder / "text.txt", folder / "shards"
    command_here("prepare", input=text, vocab=tiny_vocab, output=shards)
    TINY.to_json(folder / "config.json")
    dropout = TINY.replace(
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
    )
    dropout.to_json(folder / "dropout.json")
    return folder


def pretraining(folder, output, *options, config="config.json"):
    """A command with clipping and prediction weights, 6 steps of 8 rows."""
    return (
        ["pretrain", "--data", str(folder / "shards")]
        + ["--validation", str(folder / "shards"), "--validation-steps=2"]
        + ["--config", str(folder / config), "--output", str(output)]
        + ["--batch-size=8", "--steps=6", "--warmup-steps=2"]
        + ["--validate-every=3", "--optimizer.learning-rate=0.01"]
        + ["--examples.sequence-length=64", *options]
    )


def logged(output):
    """What log.csv says of losses and accuracies, by step."""
    return [
        {
            name: float(value)
            for name, value in row.items()
            if value and "second" not in name and "flops" not in name
        }
        for row in log_of(output)
    ]


def state(output):
    """The state in the newest checkpoint."""
    steps = Checkpoints(output / "checkpoints", 2, {}).steps()
    return _load_state(output / "checkpoints" / f"step-{steps[-1]:08d}")


def check_same(output, expected):
    """Two runs have the same losses and weights."""
    rows, other = logged(output), logged(expected)
    assert [row["step"] for row in rows] == [row["step"] for row in other]
    for row, row_expected in zip(rows, other, strict=True):
        assert row == pytest.approx(row_expected, rel=LOSSES, abs=LOSSES)
    weights, others = state(output), state(expected)
    for i, weight in others["trainable"].items():
        np.testing.assert_allclose(
            weights["trainable"][i], weight, atol=WEIGHTS
        )


def finished(run, steps=6):
    """Each process ends well, and the first alone has printed its progress."""
    assert set(run.ends()) == {0}, [run.text(i) for i in range(len(run.logs))]
    end = f"step {steps}/{steps}"
    assert end in run.text(0)
    assert not any(end in run.text(i) for i in range(1, len(run.logs)))


def run_alone(folder, options=()):
    """The output of one device, which several tests compare with."""
    one = folder / " ".join(["one", *options])
    if not one.exists():
        with pytest.MonkeyPatch.context() as patch, op_by_op():
            patch.setattr(loop, "draw_curves", lambda *_: None)
            main(pretraining(folder, one, "--distribution=none", *options))
    return one


@pytest.mark.parametrize(
    "name",
    [
        name if i == 0 else pytest.param(name, marks=pytest.mark.proof)
        for i, name in enumerate(SETTINGS)
    ],
)
def test_a_run_is_the_same_on_one_device(name, folder, tmp_path):
    count, devices, *options = SETTINGS[name]
    one = run_alone(folder, [o for o in options if o.startswith(FOR_ALL)])
    several = tmp_path / "several"
    command = pretraining(folder, several, *options)
    finished(Run(BACKEND, command, tmp_path, count, devices))
    check_same(several, one)


@pytest.mark.skipif(
    BACKEND != "tensorflow", reason="the exchanges of MirroredStrategy"
)
def test_two_runs_in_one_process(folder, tmp_path):
    """Where TensorFlow would take an exchange of the first for the second's."""
    script = Path(__file__).with_name("two_runs.py")
    told = folder / "shards", folder / "config.json", tmp_path
    subprocess.run([sys.executable, script, *told], check=True, timeout=LIMIT)
    assert [row["step"] for row in log_of(tmp_path / "b")] == ["6"]


@pytest.mark.proof
def test_told_to_stop_and_killed(folder, tmp_path):
    """A signal to one of two processes; then one of them is killed.

    The run that goes on, in two processes or in one, is that of nobody stopped.
    """

    def command(output, *options):
        # Checkpoints in plenty, and time to be stopped between them.
        return pretraining(
            *(folder, output, f"--steps={STEPS}", f"--validate-every={STEPS}"),
            *("--checkpoint-every=1", f"--keep-checkpoints={STEPS}", *options),
            # PyTorch's other processes draw new masks when they go on.
            config="dropout.json" if BACKEND == "jax" else "config.json",
        )

    def started(output):
        return Run(BACKEND, command(output), tmp_path, 2, wait=60)

    whole, output = tmp_path / "whole", tmp_path / "output"
    if BACKEND == "jax":
        finished(started(whole), STEPS)
    else:
        main(command(whole, "--distribution=none"))

    def has_checkpoint(step):
        return (output / "checkpoints" / f"step-{step:08d}").is_dir()

    run = started(output)
    run.until(lambda: has_checkpoint(1))
    run.kill(1, signal.SIGTERM)
    assert run.ends() == [0, 0], run.text(0) + run.text(1)
    stops = [run.text(i).rpartition("stopped at step ")[2] for i in range(2)]
    assert stops[0] and stops[0].split()[0] == stops[1].split()[0]
    stopped = Checkpoints(output / "checkpoints", 2, {}).steps()[-1]
    assert stops[0].startswith(f"{stopped} of {STEPS}")
    assert stopped < STEPS // 2  # time enough to be killed
    run = started(output)
    run.until(lambda: has_checkpoint(stopped + 1))
    run.kill(1)
    statuses = run.ends(200)  # the first one does not wait for ever
    assert statuses[1] == -signal.SIGKILL
    if BACKEND == "jax":  # which aborts
        assert statuses[0] in (LOST_PROCESS_STATUS, -signal.SIGABRT)
    else:
        assert statuses[0] == LOST_PROCESS_STATUS, run.text(0)
        assert "error: process 0 does not reach the others" in run.text(0)
    alone = tmp_path / "alone"
    shutil.copytree(output, alone)
    main(command(alone, "--distribution=none"))
    check_same(alone, whole)
    if BACKEND == "jax":  # bit for bit
        finished(started(output), STEPS)
        found, expected = state(output), state(whole)
        for group in ("trainable", "non_trainable", "optimizer"):
            for i, array in expected[group].items():
                np.testing.assert_array_equal(found[group][i], array)


@pytest.mark.proof
def test_one_falls_silent(folder, tmp_path):
    """A process stops answering without closing its connections."""
    output = tmp_path / "output"
    steps = f"--steps={10 * STEPS}", f"--validate-every={10 * STEPS}"
    command = pretraining(folder, output, *steps, "--checkpoint-every=1")
    run = Run(BACKEND, command, tmp_path, 2, wait=10)
    run.until(lambda: (output / "checkpoints" / "step-00000001").is_dir())
    run.kill(1, signal.SIGSTOP)
    try:
        status = run.processes[0].wait(LIMIT)
    finally:
        run.ends(0)
    ended = [LOST_PROCESS_STATUS]
    if BACKEND == "jax":  # which aborts
        ended.append(-signal.SIGABRT)
    assert status in ended, run.text(0)
    if status == LOST_PROCESS_STATUS:
        # The libraries may add lines of their own while the process ends.
        assert "\nerror: process 0 does" in run.text(0)


@pytest.mark.proof
def test_goes_on_with_other_devices(folder, tmp_path):
    """Three steps on one device, three on two: JAX's and PyTorch's are those
    of two processes."""
    output = tmp_path / "output"

    class Stop(Exception):
        pass

    def prune(self, best):
        raise Stop

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Checkpoints, "prune", prune)
        main(pretraining(folder, output, "--distribution=none"))
    assert Checkpoints(output / "checkpoints", 2, {}).steps() == [3]
    count = 1 if BACKEND == "tensorflow" else 2
    options = [MIRRORED] if BACKEND == "tensorflow" else []
    command = pretraining(folder, output, *options)
    run = Run(BACKEND, command, tmp_path, count, 3 - count)
    finished(run)
    assert "going on from step 3 of 6" in run.text(0)
    check_same(output, run_alone(folder))


@pytest.fixture
def finetuning(tmp_path, pretrained_folder):
    """Returns the command for an output: 2 epochs of 6 steps of 8 rows."""
    rng = np.random.default_rng(0)
    animals, places = ["fox", "dog", "hens"], ["village", "barn", "London"]
    for part, size in (("train", 42), ("held", 11)):
        words = [rng.choice([animals, places][i % 2]) for i in range(size)]
        rows = [
            {"text": f"the {word}", "label": "ap"[i % 2], "score": i % 5}
            | {"pair": " ".join(rng.permutation(animals + places)[:4])}
            for i, word in enumerate(words)
        ]
        write_rows(tmp_path / f"{part}.jsonl", rows)

    def command(name, *options):
        if not any("--task" in option for option in options):  # vectors
            options += ("--classifier-dropout=0",)
        return (
            ["finetune", "--model", str(pretrained_folder), "--batch-size=8"]
            + ["--train", str(tmp_path / "train.jsonl"), "--epochs=2"]
            + ["--validation", str(tmp_path / "held.jsonl")]
            + ["--output", str(tmp_path / name), "--learning-rate=0.002"]
            + [*options]
        )

    return command


# What is learned, and the score; vectors are compared with those of all
# devices. Texts in parts, too.
KINDS = {
    "labels": ("accuracy",),
    "adapters": ("accuracy", "--lora-rank=2"),
    "frozen": ("accuracy", "--freeze=embeddings"),
    "pairs": (
        *("mrr", "--task=embedding", "--columns.pair=pair"),
        *("--embedding.symmetric", "--embedding.rows-at-once=3"),
    ),
    "scores": (
        *("spearman", "--task=similarity", "--columns.pair=pair"),
        "--columns.label=score",
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
def test_fine_tuning_is_the_same_on_one_device(finetuning, tmp_path, kind):
    """A run is the same on two devices, in two processes, with torchrun."""
    score, *options = KINDS[kind]

    def make(name):
        return finetuning(name, *options)

    main([*make("one"), "--distribution=none"])
    outputs = [tmp_path / "processes"]
    if BACKEND == "torch":
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run"]
            + ["--nproc-per-node=2", "--master-port", str(free_ports(1)[0])]
            + ["-m", "keras_albert.cli", *make("processes")],
            check=True,
            timeout=LIMIT,
        )
    else:
        names = [MIRRORED] if BACKEND == "tensorflow" else []
        run = Run(BACKEND, [*make("devices"), *names], tmp_path, devices=2)
        assert run.ends() == [0], run.text()
        outputs.append(tmp_path / "devices")
        devices = 2 if BACKEND == "jax" else 1
        run = Run(BACKEND, make("processes"), tmp_path, 2, devices)
        assert run.ends() == [0, 0], run.text(0) + run.text(1)
    expected, report = logged(tmp_path / "one"), report_of(tmp_path / "one")
    assert len(expected) == 2
    for output in outputs:
        for row, row_expected in zip(logged(output), expected, strict=True):
            # Cosines are divided by 0.05 in the losses of vectors.
            most = 1e-5 if score == "accuracy" else 1e-4
            assert row == pytest.approx(row_expected, rel=1e-5, abs=most)
        found = report_of(output)[score]
        assert found == pytest.approx(report[score], abs=1e-4)


# What is wrong is said by each process, and nothing hangs.


@pytest.mark.proof
def test_processes_that_differ(folder, finetuning, tmp_path):
    """Otherwise each would wait for the other for ever."""
    command = pretraining(folder, tmp_path / "output")
    if BACKEND == "torch":
        command = finetuning("output")
    name, first, second, *options = {
        "tensorflow": ("steps_per_execution", 1, 3, "--steps-per-execution=3"),
        "jax": ("distribution", "'auto'", "'model'", *DIVIDED),
        "torch": ("seeds", 1, 2, "--seeds=2"),
    }[BACKEND]
    devices = 2 if BACKEND == "jax" else 1
    run = Run(BACKEND, command, tmp_path, 2, devices, options={1: options})
    assert run.ends() == [2, 2]
    for index in range(2):
        assert (
            f"and data: {name} is {first} in process 0 and {second} in "
            "process 1. Start all of them with the same command."
        ) in run.text(index)
    assert not (tmp_path / "output").exists()


OTHERS = f"`distribution` must be auto, none, .* with {BACKEND}"
TWO = ProcessConfig("a:1", count=2, index=0, wait=1)
ALONE = "trains in one process. .*coordinator='a:1'. Leave one of them out"


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (0, "3 processes did not connect to {place} within 1 s: 1, 2."),
        (1, "process 0 does not answer at {place} in 1 s (["),
    ],
)
def test_one_comes_alone(folder, tmp_path, capsys, monkeypatch, index, message):
    place, *others = (f"127.0.0.1:{port}" for port in free_ports(3))
    told = ["--processes.wait=1"]
    if BACKEND == "tensorflow":
        cluster = {"chief": [place], "worker": others}
        task = {"type": "worker" if index else "chief", "index": 0}
        monkeypatch.setenv(
            "TF_CONFIG", json.dumps({"cluster": cluster, "task": task})
        )
    else:
        told += [f"--processes.coordinator={place}", "--processes.count=3"]
        told += [f"--processes.index={index}"]
    with pytest.raises(SystemExit) as stop:
        main(pretraining(folder, tmp_path / "output", *told))
    assert stop.value.code == LOST_PROCESS_STATUS
    assert message.format(place=place) in capsys.readouterr().err
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    {
        "tensorflow": [
            (["data"], OTHERS),
            (["multiworker"], "TF_CONFIG"),
            (["mirrored"], "needs two devices or more. Found: "),
            (["auto", 1, 1, TWO], "processes from TF_CONFIG. .*r='a:1'. Leave"),
            (["tpu"], "no TPU answers"),
        ],
        "jax": [
            (["mirrored"], OTHERS),
            (["model", 2], "number of devices of a process, 1"),
            (["auto", 1, 2], "for TensorFlow's strategies"),
            (["none", 1, 1, TWO], ALONE),
        ],
        "torch": [
            (["model", 2], OTHERS),
            (["data"], "torchrun"),
            (["auto", 1, 2], "for TensorFlow's strategies"),
            (["none", 1, 1, TWO], ALONE),
        ],
    }[BACKEND],
)
def test_devices_that_are_not_there(arguments, message, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    config = DeviceConfig(*arguments)
    with pytest.raises(ka.AlbertError, match=message), opened(config):
        pass


@pytest.mark.any_backend
def test_a_backend_that_does_not_train(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "numpy")
    message = "tensorflow, jax, torch. Received: KERAS_BACKEND=numpy"
    with pytest.raises(ka.AlbertError, match=message), opened(DeviceConfig()):
        pass


CLUSTER = '{"cluster": {"worker": ["%s"]}, "task": {"type": "%s", "index": %d}}'


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow alone")
@pytest.mark.parametrize(
    "told",
    [
        "{",
        '{"cluster": {"worker": ["a:1"]}}',
        CLUSTER % ("a:1", "ps", 0),
        CLUSTER % ("a:1", "worker", 1),
        CLUSTER % ("a", "worker", 0),
    ],
)
def test_a_tf_config_that_names_no_workers(told, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", told)
    with pytest.raises(ka.AlbertError) as raised, opened(DeviceConfig()):
        pass
    assert "needs the environment variable TF_CONFIG" in str(raised.value)
    assert str(raised.value).endswith(f"Received: {told}")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow alone")
def test_what_tensorflow_trains_on(monkeypatch):
    """A TPU that is named, else all GPUs; float16 on one device alone."""
    import tensorflow as tf

    from keras_albert.distribution.tf_strategy import Strategy

    for name in ("TPU_NAME", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    config = DeviceConfig()
    for count, chosen in ((1, None), (2, "mirrored")):
        found = Mock(return_value=["GPU"] * count)
        monkeypatch.setattr(tf.config, "list_logical_devices", found)
        assert _several_devices("tensorflow", config) == chosen
    monkeypatch.setenv("TPU_NAME", "mine")
    assert _several_devices("tensorflow", config) == "tpu"
    two = Strategy(config, strategy=SimpleNamespace(num_replicas_in_sync=2))
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(ka.AlbertError, match=r"float16 cannot .* on several"):
        two.prepare(SimpleNamespace(optimizer=scaled))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow alone")
def test_a_tpu_of_several_hosts(monkeypatch):
    import tensorflow as tf

    strategy = Mock()
    strategy.return_value.extended.num_hosts = 2
    monkeypatch.setattr(tf.distribute, "TPUStrategy", strategy)
    for module, name in (
        (tf.distribute.cluster_resolver, "TPUClusterResolver"),
        (tf.tpu.experimental, "initialize_tpu_system"),
    ):
        monkeypatch.setattr(module, name, Mock())
    monkeypatch.delenv("TPU_NAME", raising=False)
    message = "of one host. Found: 2 hosts"
    config = DeviceConfig("tpu")
    with pytest.raises(ka.AlbertError, match=message), opened(config):
        pass


@pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch alone")
def test_a_gpu_that_stays_idle(monkeypatch, capsys):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert _several_devices("torch", DeviceConfig()) is None
    assert "note: one of 2 GPUs is used; for all" in capsys.readouterr().err


@pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch alone")
def test_a_gpu_for_each_process(monkeypatch):
    """A process takes the GPU of its rank on a machine with two GPUs."""
    from keras_albert.distribution.torch_ddp import _gpu_of

    monkeypatch.delenv("LOCAL_RANK", raising=False)
    places = [ProcessConfig("a:1", 4, index) for index in range(4)]
    assert [_gpu_of(each, gpus=2) for each in places] == [0, 1, 0, 1]
    monkeypatch.setenv("LOCAL_RANK", "1")  # of the second machine
    assert _gpu_of(places[3], gpus=2) == 1
    with pytest.raises(ka.AlbertError, match=r"at most 1 .*LOCAL_RANK=1"):
        _gpu_of(places[1], gpus=1)


@pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch alone")
def test_a_process_group_that_is_there_already():
    """Of a program that calls `pretrain`: it stays as it is."""
    from torch import distributed

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        config = DeviceConfig("data", processes=TWO)
        message = "has a process group already.*destroy_process_group"
        with pytest.raises(ka.AlbertError, match=message), opened(config):
            pass
        assert distributed.is_initialized()
    finally:
        distributed.destroy_process_group()


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's is Keras's own setting")
def test_the_distribution_from_before_comes_back():
    before = keras.distribution.DataParallel()
    keras.distribution.set_distribution(before)
    try:
        with opened(DeviceConfig("data")):
            assert keras.distribution.distribution() is not before
        assert keras.distribution.distribution() is before
    finally:
        keras.distribution.set_distribution(None)


@pytest.mark.any_backend
def test_a_state_that_several_processes_cannot_read(tmp_path, monkeypatch):
    """Orbax, which wrote the checkpoints of older versions, would hang."""
    monkeypatch.setattr(checkpointing, "one_process", lambda: False)
    with pytest.raises(
        ka.AlbertError, match=r"written by Orbax.*in one process"
    ):
        _load_state(tmp_path / "step-00000003")


@pytest.mark.any_backend
def test_settings():
    for changes, message in (
        ({"distribution": "model"}, "model_parallel` of 2 or more go together"),
        ({"model_parallel": 2}, "go together"),
        ({"steps_per_execution": 0}, "positive integer"),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            DeviceConfig(**changes)
    with pytest.raises(ka.AlbertError, match=r"0 to count - 1.*index=2, count"):
        ProcessConfig("a:1", count=2, index=2)


@pytest.mark.any_backend
def test_processes_with_different_settings():
    """test_processes_that_differ shows that real processes exchange them."""

    class FirstOfTwo(OneDevice):
        def share(self, text):
            return [text, json.dumps({"steps": 9, "seed": 4})]

    FirstOfTwo().check_equal({"steps": 9, "seed": 4})
    with pytest.raises(ka.AlbertError) as raised:
        FirstOfTwo().check_equal({"steps": 9, "seed": 3})
    assert str(raised.value).endswith(
        "and data: seed is 3 in process 0 and 4 in process 1. Start all of "
        "them with the same command."
    )


@pytest.mark.any_backend
def test_processes_with_different_models():
    class FirstOfTwo(OneDevice):
        def share(self, text):
            return [text, json.dumps({"model": "a", "teacher": None})]

    FirstOfTwo().check_same_models({"model": "a", "teacher": None})
    for model, teacher, option in (("b", None, "model"), ("a", "c", "teacher")):
        with pytest.raises(ka.AlbertError, match=f"of `{option}` differ"):
            FirstOfTwo().check_same_models({"model": model, "teacher": teacher})


@pytest.mark.any_backend
def test_batches_that_cannot_be_divided():
    @dataclasses.dataclass
    class Four(OneDevice):
        replicas: int = 4

    with pytest.raises(
        ka.AlbertError, match=r"multiple of 8.*The next one is 16"
    ):
        Four().check_batch(12, accumulate=2)
    Four().check_batch(16, accumulate=2)


@pytest.mark.any_backend
def test_hosts_share_the_batches_of_fine_tuning():
    lengths = [3, 9, 4, 30, 8, 17, 5]
    rows = [Row(np.arange(n), n, False) for n in lengths]
    features = Features(rows, np.arange(7, dtype="int32"))
    static = choose_lengths(features.lengths, 30, most=2)
    settings = {"batch_size": 4, "seed": 3, "epochs": 2}
    whole = list(finetuning_batches(features, static, **settings))
    for index in range(2):
        mine = host_rows(4, index, 2)
        part = finetuning_batches(
            features, static, **settings, host_index=index, host_count=2
        )
        for (_, *wanted), (_, *found) in zip(whole, part, strict=True):
            for all_of_it, ours in zip(wanted, found, strict=True):
                np.testing.assert_array_equal(ours, all_of_it.numpy()[mine])


@pytest.mark.proof
@pytest.mark.skipif(
    BACKEND == "jax", reason="one program draws the masks of the whole batch"
)
def test_replicas_draw_other_masks_in_a_run():
    """Two replicas of equal rows; after a checkpoint, too."""
    script = Path(__file__).with_name("masks.py")
    told = [["mirrored"]]
    if BACKEND == "torch":
        (port,) = free_ports(1)
        place = f"127.0.0.1:{port}"
        told = [["data", place, "2", str(index)] for index in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"KERAS_BACKEND": BACKEND},
        )
        for arguments in told
    ]
    texts = [each.communicate(timeout=LIMIT)[0] for each in processes]
    found = json.loads(texts[0].splitlines()[-1])
    assert len(found) == 4  # of the encoder and of the head, twice each
    for name, sums in found.items():
        assert len(sums) == 2
        assert np.diff(sorted(sums)).min() > 1e-4, (name, sums)


@pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch alone")
def test_a_continued_process_draws_masks_of_its_own():
    """Of three processes, at any step, none has the seed of another."""
    import torch

    from keras_albert.distribution.torch_ddp import Ranks

    ranks, seeds = object.__new__(Ranks), []
    ranks.count = 3
    for step in (0, 1, 7):
        for ranks.index in range(3):
            torch.manual_seed(5)
            ranks.vary_random(step)
            seeds.append(torch.initial_seed() - 5)
    # Process 0 keeps the seed of the run, which its checkpoint has.
    assert seeds == [0, 1, 2, 0, 4, 5, 0, 22, 23]


def test_replicas_draw_other_masks():
    """Replica 0 draws the masks of a run on one device."""

    def outputs(replica):
        keras.utils.set_random_seed(3)
        backbone = ka.AlbertBackbone(CONFIG.replace(hidden_dropout_prob=0.5))
        if replica is not None:
            vary_seeds(backbone, lambda: replica)
        found = backbone(inputs(), training=True)["sequence_output"]
        assert found.shape[0] == BATCH
        return numpy(found)

    alone, first, second = (outputs(each) for each in (None, 0, 1))
    np.testing.assert_array_equal(first, alone)
    assert np.abs(second - alone).max() > 0.1


def test_some_draws_are_the_same_in_all_replicas():
    """Those of a generator with the attribute `same_in_replicas`."""

    class Drawing(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.same = keras.random.SeedGenerator(3)
            self.same.same_in_replicas = True
            self.other = keras.random.SeedGenerator(3)

    def draws(replica):
        layer = Drawing()
        vary_seeds(layer, lambda: replica)
        return [
            numpy(each.next()).tolist() for each in (layer.same, layer.other)
        ]

    (same, other), (same_in_second, other_in_second) = draws(0), draws(1)
    assert same == same_in_second == other
    assert other != other_in_second


@pytest.mark.skipif(BACKEND != "jax", reason="the flags of JAX's processes")
def test_flags_are_of_one_model(monkeypatch):
    """The next seed is not lost because the one before it diverged."""
    import jax

    from keras_albert.distribution import jax_mesh

    class Store(dict):
        key_value_set = dict.__setitem__

        def key_value_try_get(self, key):
            if key not in self:
                raise jax.errors.JaxRuntimeError(key)
            return self[key]

    store = Store()
    monkeypatch.setattr(jax_mesh, "jax_key_value_service", lambda: store)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax_mesh, "_join", lambda config: False)
    mesh = jax_mesh.Mesh(DeviceConfig("data"))
    try:
        mesh.prepare(None)
        assert mesh.any(True, False) == [False, False]
        assert mesh.any(False, False) == [False, False]
        assert mesh.any(False, False) == [True, False], "two steps later"
        mesh.prepare(None)
        assert mesh.any(False, False) == mesh.any(False, False) == [False] * 2
    finally:
        mesh.close()
