"""Settings of the devices and processes of a training run."""

import dataclasses
import os

from keras_albert.errors import AlbertError, check_choice, check_positive

# Exit status if a process is lost: EX_TEMPFAIL, to be started again.
LOST_PROCESS_STATUS = 75
STRATEGIES = ("mirrored", "multiworker", "tpu")  # of TensorFlow
DISTRIBUTIONS = ("auto", "none", "data", "model", *STRATEGIES)


def available_cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
    """Settings of a run with several processes, for JAX and PyTorch.

    They are only needed if neither a TPU runtime nor torchrun configures the
    processes. TensorFlow reads TF_CONFIG, and only uses `wait`.
    """

    coordinator: str | None = None
    """HOST:PORT at which process 0 listens; the same in every process"""
    count: int | None = None
    """number of processes"""
    index: int | None = None
    """number of this process, from 0"""
    wait: int = 300
    """seconds to wait for other processes before the run fails: at its start,
    when a process is lost, and while process 0 saves, or measures a seed of
    `finetune --seeds`"""

    def __post_init__(self):
        check_positive("processes.wait", self.wait)
        given = [self.coordinator, self.count, self.index]
        if given == [None] * 3:
            return
        host, _, port = (self.coordinator or "").rpartition(":")
        is_port = port.isdecimal() and 1 <= int(port) < 2**16
        if None in given or not host or not is_port:
            raise AlbertError(
                "several processes need --processes.coordinator HOST:PORT, "
                "PORT from 1 to 65535, --processes.count and "
                "--processes.index. Received: "
                f"coordinator={self.coordinator!r}, count={self.count!r}, "
                f"index={self.index!r}."
            )
        check_positive("processes.count", self.count)
        if type(self.index) is not int or not 0 <= self.index < self.count:
            raise AlbertError(
                "`processes.index` must be an integer from 0 to count - 1. "
                f"Received: index={self.index!r}, count={self.count}."
            )


@dataclasses.dataclass(frozen=True)
class DeviceConfig:
    """The devices of a training run, and how work is divided among them.

    `PretrainRun` and the fine-tuning settings document the fields.
    """

    distribution: str = "auto"
    model_parallel: int = 1
    steps_per_execution: int = 1
    processes: ProcessConfig = ProcessConfig()

    def __post_init__(self):
        check_choice("distribution", self.distribution, DISTRIBUTIONS)
        check_positive("model_parallel", self.model_parallel)
        check_positive("steps_per_execution", self.steps_per_execution)
        if (self.distribution == "model") != (self.model_parallel > 1):
            raise AlbertError(
                "`distribution=model` and `model_parallel` of 2 or more go "
                f"together. Received: distribution={self.distribution!r}, "
                f"model_parallel={self.model_parallel}."
            )
