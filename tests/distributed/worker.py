"""One process of a run, on so many virtual devices: worker.py N COMMAND ..."""

import gc
import os
import sys

gc.disable()  # until all is imported: to search modules for garbage takes time
devices = int(sys.argv[1])
backend = os.environ["KERAS_BACKEND"]
os.environ["JAX_PLATFORMS"] = "cpu"
flags = f"--xla_force_host_platform_device_count={devices}"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
if backend == "torch":
    import torch

    torch.set_num_threads(1)
import tensorflow as tf  # noqa: E402

if not os.environ.get("KERAS_ALBERT_PROOF"):  # see _rewrite_graphs, conftest.py
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": True}
    )
if backend == "tensorflow":
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * devices
    )

from keras_albert.cli import main  # noqa: E402
from keras_albert.training import plots, speed  # noqa: E402

# To draw curves and to measure the device takes longer than a few steps. What
# uses these functions is imported by the command.
plots.draw_curves = lambda *_: None
speed.matrix_product_peak = lambda _: 1e12

gc.freeze()
gc.enable()
main(sys.argv[2:])
if sys.argv[2] == "pretrain":  # which starts from no other model here
    assert "keras_albert.checkpoints.load" not in sys.modules
