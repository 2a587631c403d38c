"""Two runs of other shapes in one process: two_runs.py DATA CONFIG OUTPUT."""

import sys
from pathlib import Path

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
# Without it, graphs are ready sooner.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

import keras_albert as ka  # noqa: E402
from keras_albert.training import plots, speed  # noqa: E402

# To draw curves and to measure the device takes longer than these steps.
plots.draw_curves = lambda *_: None
speed.matrix_product_peak = lambda _: 1e12

data, config, output = map(Path, sys.argv[1:])
# The first run has two steps of the same shape in each call. Its exchanges
# between the devices must not be those of the second.
for name, short_steps, steps_per_execution in (("a", 4, 2), ("b", 3, 1)):
    ka.pretrain(
        data,
        output / name,
        config=config,
        batch_size=4,
        steps=6,
        warmup_steps=2,
        validate_every=6,
        short_length=32,
        short_steps=short_steps,
        steps_per_execution=steps_per_execution,
        distribution="mirrored",
        examples={"sequence_length": 64, "sentence_task": "none"},
    )
