"""Prints the sums of outputs after dropout in each replica, as JSON.

python masks.py mirrored                            (TensorFlow)
python masks.py data HOST:PORT PROCESSES INDEX      (PyTorch)
"""

import json
import os
import sys

if os.environ["KERAS_BACKEND"] == "torch":
    import torch  # noqa: F401
else:
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
import keras
import numpy as np
from keras import ops

import keras_albert as ka
from keras_albert.distribution.backend import opened
from keras_albert.distribution.config import DeviceConfig, ProcessConfig

CONFIG = ka.AlbertConfig(
    vocab_size=23,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=8,
    initializer_range=0.3,
)
IDS = {"token_ids": np.arange(5, 13, dtype="int32")[None]}
# Masks come from two kinds of generators: of the encoder, of a head's layer.
MODELS = {
    "encoder": (CONFIG.replace(attention_probs_dropout_prob=0.5), 0.0),
    "head": (CONFIG, 0.5),
}


def sums(devices, model) -> list[float]:
    """The sum of each replica's outputs."""

    def once():
        return ops.sum(model(IDS, training=True))

    if devices.count == 1:
        values = devices.strategy.run(once)
        return [float(value) for value in values.values]
    mine = float(ops.convert_to_numpy(once()))
    return [float(value) for value in devices.share(str(mine))]


def main(way, coordinator=None, count=None, index=None):
    processes = ProcessConfig(
        coordinator, count and int(count), index and int(index)
    )
    found = {}
    with opened(DeviceConfig(way, processes=processes)) as devices:
        for name, (config, dropout) in MODELS.items():
            keras.utils.set_random_seed(3)
            with devices.scope():
                model = ka.AlbertForSequenceClassification(
                    ka.AlbertBackbone(config), 3, dropout=dropout
                )
                model.compile("sgd", "mse")
            devices.prepare(model)
            found[name] = sums(devices, model)
            keras.utils.set_random_seed(3)  # as of a checkpoint
            devices.vary_random(7)
            found[f"{name}, going on"] = sums(devices, model)
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
