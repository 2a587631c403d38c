"""Settings of the command `compile`."""

import dataclasses
from pathlib import Path
from typing import Literal

from keras_albert.distribution.config import DeviceConfig
from keras_albert.errors import check_fields, check_positive
from keras_albert.modeling.config import LOOPS, PRECISIONS, VARIANTS
from keras_albert.pretraining.config import (
    DEFAULT_VARIANT,
    ExampleConfig,
    PretrainRun,
)
from keras_albert.training.config import OptimizerConfig, check_parts


@dataclasses.dataclass(frozen=True)
class CompileRun:
    """Compile the training step of `pretrain` for a TPU slice, without a TPU.

    Prints how much memory the step needs, what the devices exchange, and the
    largest batch that fits. Options that `pretrain` has, too, have the same
    meaning and default there.
    """

    topology: str
    """name of the slice in Cloud TPU: v5e-16, v6e-8, v4-32, v3-8, v5p-8, and so
    on"""
    slices: int = 1
    """number of slices, connected by the data center's network"""
    model_parallel: int = DeviceConfig.model_parallel
    """number of devices among which the weights of a replica are divided; the
    batch is divided among the replicas"""
    config: Path | None = PretrainRun.config
    """albert_config.json of the model; if not given, --variant is used"""
    variant: Literal[tuple(VARIANTS)] = DEFAULT_VARIANT
    """a released size"""
    batch_size: int = PretrainRun.batch_size
    """number of examples in a step over all devices, or of rows with
    --examples.pack"""
    accumulate: int = PretrainRun.accumulate
    """number of equal parts of a batch that are computed one after another; one
    of them is compiled"""
    precision: Literal[PRECISIONS] = PretrainRun.precision
    """dtype policy of the model; TPUs are fast with mixed_bfloat16"""
    loop: Literal[LOOPS] = PretrainRun.loop
    """scan, with --remat, needs the least memory and compiles the fastest"""
    remat: bool = PretrainRun.remat
    """recompute activations in the backward pass: less memory, more time"""
    search: bool = True
    """search the largest batch that fits, which takes several compilations"""
    examples: ExampleConfig = PretrainRun.examples
    optimizer: OptimizerConfig = PretrainRun.optimizer

    def __post_init__(self):
        counts = "slices model_parallel batch_size accumulate"
        check_fields(check_positive, self, counts)
        check_parts(self.batch_size, self.accumulate)
