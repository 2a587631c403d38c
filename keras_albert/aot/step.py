"""Compiles the training step of `fit` for a TPU slice, without a TPU.

libtpu is only used as a compiler. `compile.py` runs this module in a process of
its own, since the environment variables that say that there is no TPU must be
set before JAX is imported, and a crash must not affect the main process.

    python -m keras_albert.aot.step OUTCOME < pickled CompileRun
"""

import dataclasses
import pickle
import re
import sys
import time
from pathlib import Path

import keras
import numpy as np

from keras_albert.aot.compile import Compiled
from keras_albert.aot.config import CompileRun
from keras_albert.aot.hlo import exchanged_bytes
from keras_albert.aot.topologies import topology_of
from keras_albert.errors import AlbertError
from keras_albert.modeling.config import VARIANTS, AlbertConfig
from keras_albert.pretraining.config import ExampleConfig, PretrainRun
from keras_albert.pretraining.flops import flops_per_example
from keras_albert.pretraining.model import (
    check_examples,
    compile_for_pretraining,
    pretraining_model,
)
from keras_albert.private_apis import build_for_batch
from keras_albert.storage import write_json
from keras_albert.training.optimizer import make_optimizer
from keras_albert.training.schedules import WarmupPolynomialDecay

# The message of XLA on a program that needs too much memory.
_TOO_LARGE = re.compile(
    r"Used ([\d.]+)([KMGT]) of [\d.]+\w hbm"
    r"|\(([\d.]+)([KMGT])\) exceeds available HBM"
)


def compile_step(run: CompileRun) -> Compiled:
    """Compiles the training step of one part of a batch.

    Raises AlbertError unless the config exists and fits examples and devices.
    """
    import jax
    from jax.experimental import topologies

    from keras_albert.distribution.jax_mesh import check_shares

    config = VARIANTS[run.variant]
    if run.config:
        config = AlbertConfig.from_json(run.config)
    check_examples(run.examples, config)
    check_shares(config, run.model_parallel)
    topology = topology_of(run.topology)
    options = dict(topology.options)
    if run.slices > 1:
        options["num_slices"] = run.slices
    slices = topologies.get_topology_desc(topology.spec, "tpu", **options)
    model, state, data, distribution = abstract_step(
        run, config, slices.devices
    )
    with distribution.scope():
        lowered = jitted(model, state).lower(state, data)
    started = time.perf_counter()
    memory, exchanged, complaint = None, {}, None
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        complaint = str(error)
        if "RESOURCE_EXHAUSTED" not in complaint:
            raise
        memory = needed_bytes(complaint)
    else:
        memory = program.memory_analysis().peak_memory_in_bytes
        exchanged = exchanged_bytes(program.as_text())
    return Compiled(
        parameters=model.count_params(),
        flops=run.batch_size * flops_per_example(config, run.examples),
        fits=complaint is None,
        memory=memory,
        exchanged=exchanged,
        seconds=time.perf_counter() - started,
    )


def abstract_step(run: CompileRun, config: AlbertConfig, devices) -> tuple:
    """The arguments of the training step, as shapes with their shardings.

    `devices` are those of the slice, which do not exist: no array can be put on
    them. Returns the model, compiled as by `pretrain`; its state and a batch,
    as structures of jax.ShapeDtypeStruct; and the keras.distribution.
    """
    import jax

    from keras_albert.distribution.jax_mesh import distribution_over

    shape = (-1, run.model_parallel) if run.model_parallel > 1 else (-1,)
    distribution = distribution_over(np.array(devices).reshape(shape))
    mesh = distribution.device_mesh
    # Variables need devices that exist. They are created on a mesh of the same
    # axes with a single CPU, and their layouts copied to that of the slice.
    here = np.array(jax.devices("cpu")[:1]).reshape((1,) * len(shape))
    stand_in = distribution_over(here)

    def abstract(shape, dtype, axes):
        sharding = keras.distribution.TensorLayout(axes, mesh).backend_layout
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def variables(group):
        return [
            abstract(
                each.shape,
                each.value.dtype,
                stand_in.get_variable_layout(each).axes,
            )
            for each in group
        ]

    rows = run.batch_size // run.accumulate
    data = keras.tree.map_structure(
        lambda each: abstract(
            each.shape,
            each.dtype,
            distribution.get_data_layout(each.shape).axes,
        ),
        batch_spec(run.examples, rows),
    )
    with stand_in.scope():
        model = pretraining_model(
            config, run.examples, run.loop, run.remat, run.precision
        )
        rate = schedule_of(run)
        optimizer = make_optimizer(run.optimizer, rate, run.accumulate)
        compile_for_pretraining(model, optimizer)
        build_for_batch(model, data)
    state = tuple(
        variables(group)
        for group in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )
    return model, state, data, distribution


def schedule_of(run: CompileRun) -> WarmupPolynomialDecay:
    """The schedule of `pretrain`, with its default number of steps."""
    return WarmupPolynomialDecay(
        run.optimizer.learning_rate, PretrainRun.steps, PretrainRun.warmup_steps
    )


def jitted(model: keras.Model, state: tuple):
    """The jitted step, as keras.Model.make_train_function makes it."""
    import jax

    layouts = keras.tree.map_structure(lambda each: each.sharding, state)
    return jax.jit(
        model.train_step, donate_argnums=0, out_shardings=(None, layouts)
    )


def batch_spec(examples: ExampleConfig, rows: int) -> tuple[dict, dict, dict]:
    """The shapes and dtypes of the batches of `masking.build_batch`."""

    def spec(size, dtype="int32"):
        shape = (rows,) if size is None else (rows, size)
        return keras.KerasTensor(shape, dtype)

    sequence, predictions = examples.sequence_length, examples.row_predictions
    x = {
        "token_ids": spec(sequence),
        "segment_ids": spec(sequence),
        "padding_mask": spec(sequence),
        "masked_positions": spec(predictions),
    }
    slots = None
    if examples.pack:
        slots = examples.max_examples
        x["example_ids"] = x["position_ids"] = spec(sequence)
        x["cls_positions"] = spec(slots)
    sizes = {"mlm": predictions}
    if examples.sentence_task != "none":
        sizes[examples.sentence_task] = slots
    y = {task: spec(size) for task, size in sizes.items()}
    weight = {task: spec(size, "float32") for task, size in sizes.items()}
    return x, y, weight


def needed_bytes(complaint: str) -> int | None:
    """The bytes that a program needs which XLA refuses as too large.

    They are read from XLA's message; None if it does not have them.
    """
    found = _TOO_LARGE.search(complaint)
    if not found:
        return None
    number, unit = found[1] or found[3], found[2] or found[4]
    return int(float(number) * 1024 ** ("KMGT".index(unit) + 1))


def main(outcome: Path) -> None:
    """Reads a CompileRun from standard input and writes the results as JSON."""
    run = pickle.load(sys.stdin.buffer)
    try:
        content = dataclasses.asdict(compile_step(run))
    except AlbertError as error:
        content = {"error": str(error)}
    write_json(outcome, content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
