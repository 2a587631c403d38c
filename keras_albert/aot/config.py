"""Settings of the command `compile`."""

import dataclasses
from pathlib import Path
from typing import Literal

from keras_albert.distribution.config import DeviceConfig
from keras_albert.errors import check_positive
from keras_albert.modeling.config import LOOPS, PRECISIONS, VARIANTS
from keras_albert.pretraining.config import ExampleConfig, PretrainRun
from keras_albert.training.config import OptimizerConfig, check_parts


@dataclasses.dataclass(frozen=True)
class CompileRun:
    """Compile the training step of `pretrain` for a TPU slice, without a TPU.

    Says how much memory it needs, what the devices exchange, and the largest
    batch that fits. The options are those of `pretrain`.
    """

    topology: str
    """the slice, as Cloud TPU names it: v5e-16, v6e-8, v4-32, v3-8, v5p-8,
    and so on"""
    slices: int = 1
    """how many of them, joined by the data center's network"""
    model_parallel: int = DeviceConfig.model_parallel
    """devices that share the weights of one replica; the batch is divided by
    the others"""
    config: Path | None = PretrainRun.config
    """albert_config.json of the model; without it, --variant counts"""
    variant: Literal[tuple(VARIANTS)] = PretrainRun.variant
    """a released size"""
    batch_size: int = PretrainRun.batch_size
    """examples in a step, on all devices; rows of them with --examples.pack"""
    accumulate: int = PretrainRun.accumulate
    """equal parts that a batch is computed in: one of them is compiled"""
    precision: Literal[PRECISIONS] = PretrainRun.precision
    """what the model computes in; mixed_bfloat16 is what a TPU is fast in"""
    loop: Literal[LOOPS] = PretrainRun.loop
    """scan, with --remat, takes the least memory and compiles the fastest"""
    remat: bool = PretrainRun.remat
    """compute activations again for the gradient: less memory, more time"""
    search: bool = True
    """look for the largest batch that fits: some compilations more"""
    examples: ExampleConfig = PretrainRun.examples
    optimizer: OptimizerConfig = PretrainRun.optimizer

    def __post_init__(self):
        for name in ("slices", "model_parallel", "batch_size", "accumulate"):
            check_positive(name, getattr(self, name))
        check_parts(self.batch_size, self.accumulate)
