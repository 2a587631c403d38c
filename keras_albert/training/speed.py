"""Measures the speed of training: tokens per second and FLOPs utilization.

Model-FLOPs utilization (Chowdhery et al. 2022, arXiv:2204.02311, appendix B) is
the number of floating-point operations that the model needs per second, divided
by the peak of the device.
"""

import dataclasses
import time
from collections.abc import Callable

from keras import ops

FIRST_SIZE, LARGEST_SIZE = 256, 16384  # rows of the measured matrices
# Seconds of a matrix product from which the time of its launch is negligible.
LONG_ENOUGH = 0.05
REPEATS = 2


def matrix_product_peak(dtype: str) -> float:
    """Measures the peak of this device with large matrix products.

    The size of the matrices is doubled until a product takes LONG_ENOUGH: in
    total half a second. Returns floating-point operations per second.
    """
    size = FIRST_SIZE
    while True:
        matrix = ops.ones((size, size), dtype)
        _seconds(matrix)  # warms up: compiles and allocates
        seconds = _seconds(matrix)
        if seconds > LONG_ENOUGH or size == LARGEST_SIZE:
            break
        size *= 2
    seconds = min([seconds, *(_seconds(matrix) for _ in range(REPEATS))])
    return 2 * size**3 / seconds


def _seconds(matrix) -> float:
    started = time.perf_counter()
    # Backends compute asynchronously; reading a number waits for the result.
    float(ops.cast(ops.matmul(matrix, matrix)[0, 0], "float32"))
    return time.perf_counter() - started


@dataclasses.dataclass(frozen=True)
class Work:
    """The amount of work in a training step."""

    tokens: int
    """number of positions, with padding"""
    flops: float
    """floating-point operations, see pretraining/flops.py"""
    peak: float
    """peak of the device in floating-point operations per second"""


class SpeedMeter:
    """Measures tokens per second and utilization of the training steps.

    `work_of` maps the number of a step, from 1, to its `Work`; if it is None,
    nothing is measured.
    """

    def __init__(
        self, work_of: Callable[[int], Work] | None, clock=time.perf_counter
    ):
        self.work_of = work_of
        self._clock = clock
        self._started = None
        self._seen = set()  # each `Work` of an earlier step
        self.reset()

    def start(self) -> None:
        """Starts the clock, when training begins or continues."""
        self._started = self._clock()

    def step(self, number: int) -> None:
        """Records the end of a step.

        The first step of each size, which includes compilation, is not counted.
        """
        now = self._clock()
        work = self.work_of and self.work_of(number)
        if work in self._seen:
            self._tokens += work.tokens
            self._used += work.flops / work.peak
            self._seconds += now - self._started
        elif work:
            self._seen.add(work)
        self._started = now

    def reading(self) -> dict[str, float | None]:
        """The values since the last `reset`; None if no step was counted.

        The dict is empty if nothing is measured.
        """
        if self.work_of is None:
            return {}
        seconds = self._seconds
        return {
            "tokens_per_second": self._tokens / seconds if seconds else None,
            "model_flops_utilization": self._used / seconds
            if seconds
            else None,
        }

    def reset(self) -> None:
        """Starts a new interval."""
        self._tokens = 0
        self._used = 0.0  # seconds that the device would take at its peak
        self._seconds = 0.0
