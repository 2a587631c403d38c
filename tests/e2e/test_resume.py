"""Processes that are killed at any moment lose nothing."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from commands import log_of, read_json, run
from small import TEXT_CONFIG, same_weights

import keras_albert as ka
from keras_albert.training.checkpointing import Checkpoints

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow",
        reason="no backend has a part in how a process dies; what a run "
        "restores is tested on each in test_loop.py",
    ),
]
CONFIG = TEXT_CONFIG.replace(
    vocab_size=160, max_position_embeddings=64, hidden_dropout_prob=0.1
)
# Imports once and forks a process for each command, as a life of seconds
# would be spent on imports. Nothing of a run is shared: TensorFlow begins in
# the child.
SERVER = """
import gc, json, os, sys
gc.disable()  # until all is imported: to search modules for garbage takes time
import tensorflow as tf
from keras_albert.cli import main
from keras_albert.pretraining import run
from keras_albert.training import loop

# Neither curves nor the speed of the device have a part in it.
loop.draw_curves = lambda *_: None
run.matrix_product_peak = lambda _: 1e12

gc.freeze()
for line in sys.stdin:
    arguments, output = json.loads(line)
    pid = os.fork()
    if not pid:
        gc.enable()
        tf.config.run_functions_eagerly(True)  # starts at once
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        status = 0
        try:
            main(arguments)
        except SystemExit as stop:
            status = stop.code
        sys.stdout.flush()
        os._exit(status)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Processes:
    """Runs `pretrain` in one process after the other."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def pretrain(self, output, steps, *options, until=None):
        """Returns the exit status and what was printed.

        Args:
            output: folder of the run.
            steps: of the whole run.
            options: further ones of the command.
            until: called with the process's id until it returns True.
        """
        printed = self.folder / f"{output.name}.txt"
        printed.unlink(missing_ok=True)
        arguments = (
            ["pretrain", "--data", str(self.folder / "shards")]
            + ["--config", str(self.folder / "config.json")]
            + ["--validation", str(self.folder / "shards")]
            + ["--validation-steps=1", f"--steps={steps}", "--batch-size=2"]
            + ["--warmup-steps=6", f"--validate-every={steps // 3}"]
            + ["--optimizer.learning-rate=0.005"]
            + ["--examples.sequence-length=64", "--output", str(output)]
        )
        request = json.dumps([[*arguments, *options], str(printed)])
        print(request, file=self.server.stdin, flush=True)
        pid = int(self.server.stdout.readline())
        while until and not until(pid):
            ended, _, _ = select.select([self.server.stdout], [], [], 0.01)
            if ended:
                break
        status = int(self.server.stdout.readline())
        return status, printed.read_text() if printed.exists() else ""


@pytest.fixture(scope="module")
def processes(tmp_path_factory, tiny_lines, tiny_vocab):
    folder = tmp_path_factory.mktemp("resume")
    documents = ["\n".join(tiny_lines[i : i + 12]) for i in range(0, 240, 12)]
    (folder / "train.txt").write_text("\n\n".join(documents))
    CONFIG.to_json(folder / "config.json")
    text, shards = folder / "train.txt", folder / "shards"
    run("prepare", input=text, vocab=tiny_vocab, output=shards)
    processes = Processes(folder)
    yield processes
    processes.server.stdin.close()
    processes.server.wait(timeout=60)


# What is killed more often needs more steps.
@pytest.fixture(
    scope="module",
    params=[(2, 9), pytest.param((20, 33), marks=pytest.mark.proof)],
    ids=["2", "20"],
)
def killed(request):
    """How often a run is killed, and how many steps it has."""
    return request.param


@pytest.fixture(scope="module")
def uninterrupted(processes, killed):
    steps = killed[1]
    output = processes.folder / f"uninterrupted-{steps}"
    status, printed = processes.pretrain(output, steps)
    assert status == 0, printed
    return output


def newest_step(output) -> int:
    names = [path.name for path in output.glob("checkpoints/step-*")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def assert_same_end(output, other, steps):
    """State, model and log are the same, bit for bit, except for speeds."""
    states, logs = [], []
    for folder in (output, other):
        path = folder / "checkpoints" / f"step-{steps:08d}" / "manifest.json"
        origin = read_json(path)["origin"]
        found = Checkpoints(folder / "checkpoints", 2, origin).newest()
        assert found.step == steps
        states.append(found.state)
        logs.append(log_of(folder))
        for row in logs[-1]:
            del row["tokens_per_second"], row["model_flops_utilization"]
    validated = [int(row["step"]) for row in logs[0]]
    assert validated == [steps // 3, steps // 3 * 2, steps]
    assert logs[0] == logs[1]
    for group, arrays in states[0].items():
        if group != "metrics":
            for key, array in arrays.items():
                np.testing.assert_array_equal(array, states[1][group][key])
    assert same_weights(*map(ka.load, (output, other)))


def test_killed_again_and_again(processes, uninterrupted, killed):
    """kill -9 while it starts, trains, saves or validates; then SIGTERM.

    Each process is killed after a random time, or before it has done so many
    steps that none would be left for the next.
    """
    kills, steps = killed
    output = processes.folder / f"killed-{kills}"
    rng = random.Random(6)  # the first life is killed while it starts
    for life in range(kills):
        begun, after = newest_step(output), rng.choice([0, 1, 1, 2])
        delay = rng.uniform(0, 2 if after == 0 else 0.5)
        far = steps * (life + 1) // (kills + 1)
        since = None

        def kill(pid, begun=begun, after=after, delay=delay, far=far):
            nonlocal since
            step = newest_step(output)
            if since is None and step >= begun + after:
                since = time.monotonic()
            waited = since is not None and time.monotonic() - since >= delay
            done = waited or (step > begun and step >= far)
            if done:
                os.kill(pid, signal.SIGKILL)
            return done

        status, printed = processes.pretrain(
            output, steps, "--checkpoint-every=1", until=kill
        )
        assert status == -signal.SIGKILL, printed
    begun = newest_step(output)
    assert 0 < begun < steps

    def terminate(pid):
        done = newest_step(output) != begun
        if done:
            os.kill(pid, signal.SIGTERM)
        return done

    status, printed = processes.pretrain(
        output, steps, "--checkpoint-every=1", until=terminate
    )
    assert status == 0 and "warning: " not in printed
    assert f"going on from step {begun} of {steps}" in printed
    step = newest_step(output)
    assert f"stopped at step {step} of {steps}; the same command" in printed
    status, printed = processes.pretrain(output, steps)
    assert status == 0, printed
    assert f"going on from step {step}" in printed
    assert_same_end(output, uninterrupted, steps)
