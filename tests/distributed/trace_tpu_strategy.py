"""Traces a training step under a real TPUStrategy, on virtual CPU devices.

A stub says that there are TPU cores; then CPU devices are put in their place.
So all of TPUStrategy that is Python runs: how variables are made and mirrored,
what a replica may do, what is summed across replicas. The program that comes
of it cannot run here.

    python trace_tpu_strategy.py [dropout] [parts to accumulate] [steps a call]

Prints how many operations of each kind it has, as JSON.
"""

import collections
import json
import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.tpu import tpu_system_metadata

import keras_albert as ka
from keras_albert.distribution.config import DeviceConfig
from keras_albert.distribution.tf_strategy import Strategy
from keras_albert.pretraining.model import compile_for_pretraining
from keras_albert.training.config import OptimizerConfig
from keras_albert.training.optimizer import make_optimizer

REPLICAS = 2
TASK = "/job:localhost/replica:0/task:0"
ROWS, LENGTH, PREDICTIONS = 6, 17, 3  # in a batch of all replicas
CONFIG = ka.AlbertConfig(
    vocab_size=97,
    embedding_size=11,
    hidden_size=26,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=37,
    max_position_embeddings=LENGTH,
)


class Stub:
    """A cluster resolver of REPLICAS cores that are not there."""

    task_type = task_id = None

    def get_tpu_system_metadata(self):
        return tpu_system_metadata.TPUSystemMetadata(
            num_cores=REPLICAS,
            num_hosts=1,
            num_of_cores_per_host=REPLICAS,
            topology=None,
            devices=[
                session._DeviceAttributes(f"{TASK}/device:TPU:{i}", "TPU", 0, 0)
                for i in range(REPLICAS)
            ],
        )

    def cluster_spec(self):
        return tf.train.ClusterSpec({})


def strategy_on_cpus() -> tf.distribute.TPUStrategy:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * REPLICAS,
    )
    strategy = tf.distribute.TPUStrategy(Stub())
    host, *_ = cpus = [f"{TASK}/device:CPU:{i}" for i in range(REPLICAS)]
    extended = strategy.extended
    extended._tpu_devices = np.array([[cpu] for cpu in cpus], dtype=object)
    extended._host_device = host
    extended._device_input_worker_devices = {host: cpus}
    extended._host_input_worker_devices = {host: [host] * REPLICAS}
    strategy._enable_packed_variable_in_eager_mode = False
    return strategy


def dataset() -> tf.data.Dataset:
    zeros = np.zeros((2 * ROWS, LENGTH), "int32")
    positions = np.zeros((2 * ROWS, PREDICTIONS), "int32")
    orders = np.zeros(2 * ROWS, "int32")
    x = {
        "token_ids": zeros,
        "segment_ids": zeros,
        "padding_mask": zeros + 1,
        "masked_positions": positions,
    }
    y = {"mlm": positions, "sop": orders}
    weight = {name: np.ones(y[name].shape, "float32") for name in y}
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.OFF
    options.experimental_distribute.auto_shard_policy = policy
    return (
        tf.data.Dataset.from_tensor_slices((x, y, weight))
        .batch(ROWS, drop_remainder=True)
        .with_options(options)
    )


def counted(graph: tf.Graph) -> collections.Counter:
    """Operations of a graph and of all functions that it calls."""
    definition = graph.as_graph_def()
    count = collections.Counter(node.op for node in definition.node)
    for function in definition.library.function:
        count.update(node.op for node in function.node_def)
    return count


def main(dropout: float = 0.0, parts: int = 1, steps: int = 1) -> None:
    strategy = strategy_on_cpus()
    config = DeviceConfig(distribution="tpu", steps_per_execution=steps)
    devices = Strategy(config, parts, strategy)
    batches = dataset()
    with devices.scope():
        config = CONFIG.replace(
            num_hidden_layers=1,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        model = ka.AlbertForPretraining(ka.AlbertBackbone(config))
        schedule = ka.WarmupPolynomialDecay(1e-3, 10, 2)
        optimizer = make_optimizer(OptimizerConfig(), schedule)
        compile_for_pretraining(model, optimizer)
        model.optimizer.build(model.trainable_variables)
    devices.prepare(model)
    devices._build_metrics(model, batches)
    # What `fit` calls, and the tf.function in it.
    assert model.make_train_function() is model.train_function
    iterator = iter(devices._distributed(batches))
    traced = model.train_function.traced.get_concrete_function(iterator)
    found = {
        "strategy": type(strategy).__name__,
        "replicas": strategy.num_replicas_in_sync,
        "variables": type(model.weights[0].value).__name__,
        "trainable": len(model.trainable_variables),
        "operations": counted(traced.graph),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    numbers = [float(number) for number in sys.argv[1:]]
    keras.utils.set_random_seed(0)
    main(*numbers[:1], *map(int, numbers[1:]))
