"""Is the step that is compiled for a slice the one that `fit` runs?

On four virtual CPU devices in a slice's place, where `fit` can begin. Prints
"same" if XLA gets the same program: operations, shapes, layouts, what is given
away. And fails where JAX cannot translate it for a TPU, which needs no libtpu.

    python fit_step.py CONFIG [devices that share the weights] [parts]
"""

import contextlib
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import keras
import numpy as np
from keras.src.backend.jax import trainer

import keras_albert as ka
from keras_albert.aot.config import CompileRun
from keras_albert.aot.step import abstract_step, batch_spec, jitted, schedule_of
from keras_albert.pretraining.model import (
    compile_for_pretraining,
    pretraining_model,
)
from keras_albert.training.optimizer import make_optimizer


class Recorded(Exception):
    """The program is known: it need not run."""


def program_of_fit(run, config, distribution) -> str:
    """What Keras's trainer gives to JAX in the first step of `fit`."""
    programs = []

    def recording(function, **options):
        step = jax.jit(function, **options)

        def call(*arguments):
            programs.append(step.lower(*arguments).as_text())
            raise Recorded

        return call

    trainer.jit = recording
    keras.distribution.set_distribution(distribution)
    model = pretraining_model(
        config, run.examples, run.loop, run.remat, run.precision
    )
    optimizer = make_optimizer(run.optimizer, schedule_of(run), run.accumulate)
    compile_for_pretraining(model, optimizer)
    rows = run.batch_size // run.accumulate
    batch = keras.tree.map_structure(
        lambda each: np.ones(each.shape, each.dtype),
        batch_spec(run.examples, rows),
    )
    x, y, weight = batch
    with contextlib.suppress(Recorded):
        model.fit(x, y, sample_weight=weight, batch_size=rows, verbose=0)
    return programs[0]


def main(config: str, shares: int = 1, parts: int = 1) -> None:
    run = CompileRun(
        topology="v5e-4",
        model_parallel=shares,
        batch_size=8 * parts,
        accumulate=parts,
        loop="scan",
        remat=True,
        precision="mixed_bfloat16",
        examples=ka.ExampleConfig(sequence_length=16, max_predictions=2),
    )
    config = ka.AlbertConfig.from_json(config)
    devices = jax.devices()
    model, state, data, distribution = abstract_step(run, config, devices)
    with distribution.scope():
        step = jitted(model, state)
        ours = step.lower(state, data).as_text()
        # JAX has a rule for each of its operations on a TPU.
        step.trace(state, data).lower(lowering_platforms=("tpu",))
    theirs = program_of_fit(run, config, distribution)
    print("same" if ours == theirs else "other", len(ours.splitlines()))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
