"""How fast a run is, beside what the device can do.

Model-FLOPs utilisation (Chowdhery et al. 2022, arXiv:2204.02311, appendix B):
floating-point operations that the model needs for the tokens of a second,
over the device's peak. Operations are those of matrix products, two for a
multiply-add; the backward pass has twice those of the forward pass. What
rematerialization computes again does not count, nor do lookups,
normalisation and the optimizer.

Letters: S sequence length, P predictions, H hidden size, I intermediate size,
E embedding size, V vocabulary, r relaxed rank, K examples in a row.
"""

import dataclasses
import time
from collections.abc import Callable

from keras import ops

FIRST_SIZE, LARGEST_SIZE = 256, 16384  # rows of the measured matrices


LONG_ENOUGH = 0.05  # seconds of a product: start-up no longer counts


REPEATS = 2


def matrix_product_peak(dtype: str) -> float:
    """Operations a second of a large matrix product on this device.

    Takes about half a second: the size is doubled until a product takes
    LONG_ENOUGH.
    """
    size = FIRST_SIZE
    while True:
        matrix = ops.ones((size, size), dtype)
        _seconds(matrix)  # start-up
        seconds = _seconds(matrix)
        if seconds > LONG_ENOUGH or size == LARGEST_SIZE:
            break
        size *= 2
    seconds = min([seconds, *(_seconds(matrix) for _ in range(REPEATS))])
    return 2 * size**3 / seconds


def _seconds(matrix) -> float:
    started = time.perf_counter()
    # Reading a number waits until the device is done.
    float(ops.cast(ops.matmul(matrix, matrix)[0, 0], "float32"))
    return time.perf_counter() - started


@dataclasses.dataclass(frozen=True)
class Work:
    """What a step of a run does."""

    tokens: int
    """positions, padding included"""
    flops: float
    """operations, see `flops_per_example`"""
    peak: float
    """operations a second that the device reaches"""


class SpeedMeter:
    """Tokens a second and utilisation, of training alone.

    Args:
        work_of: a step, counted from 1, -> what it does; None where steps
            differ in size: nothing is measured.
        clock: seconds.
    """

    def __init__(
        self,
        work_of: Callable[[int], Work] | None,
        clock=time.perf_counter,
    ):
        self.work_of = work_of
        self._clock = clock
        self._started = None
        self._before = None  # the work of the step before
        self.reset()

    def start(self) -> None:
        """Training begins, or goes on after something else."""
        self._started = self._clock()

    def step(self, number: int) -> None:
        """A step has ended; the first of its kind, which compiles, is out."""
        now = self._clock()
        work = self.work_of and self.work_of(number)
        if work and work == self._before:
            self._tokens += work.tokens
            self._used += work.flops / work.peak
            self._seconds += now - self._started
        self._before = work
        self._started = now

    def reading(self) -> dict[str, float | None]:
        """Since the last `reset`; None before there is anything to divide."""
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
        """Begins a new interval."""
        self._tokens = 0
        self._used = 0.0  # seconds that the device would need at its peak
        self._seconds = 0.0
