"""How fast a run is, beside what the device can do.

Model-FLOPs utilisation (Chowdhery et al. 2022, arXiv:2204.02311, appendix B):
floating-point operations that the model needs for the tokens of a second,
over the device's peak. Operations are those of matrix products, two for a
multiply-add; the backward pass has twice those of the forward pass. What
rematerialization computes again does not count, nor do lookups,
normalisation and the optimizer.

Letters: S sequence length, P predictions, H hidden size, I intermediate size,
E embedding size, V vocabulary, r relaxed rank.
"""

import dataclasses
import time

from keras import ops

from keras_albert.config import AlbertConfig, ExampleConfig

FIRST_SIZE, LARGEST_SIZE = 256, 16384  # rows of the measured matrices
LONG_ENOUGH = 0.05  # seconds of a product: start-up no longer counts
REPEATS = 2


def flops_per_example(config: AlbertConfig, examples: ExampleConfig) -> int:
    """Operations of a training step for one example, both heads included."""
    sequence, predictions = examples.sequence_length, examples.num_predictions
    hidden, inner = config.hidden_size, config.intermediate_size
    embedding, rank = config.embedding_size, config.relaxed_rank
    attention_kernels = 4 * hidden * hidden
    if rank and config.sharing in ("all", "attention"):
        attention_kernels += 4 * rank * 2 * hidden
    ffn_kernels = 2 * hidden * inner
    if rank and config.sharing in ("all", "ffn"):
        ffn_kernels += 2 * rank * (hidden + inner)
    scores_and_sum = 2 * sequence * hidden  # of one token with all others
    block = sequence * (attention_kernels + ffn_kernels + scores_and_sum)
    blocks = config.num_hidden_layers * config.inner_group_num
    projection = sequence * embedding * hidden if config.has_projection else 0
    masked_lm = predictions * embedding * (hidden + config.vocab_size)
    sentence_order = hidden * hidden + 2 * hidden
    products = projection + blocks * block + masked_lm + sentence_order
    return 3 * 2 * products


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
        work: None where steps differ in size: nothing is measured.
        clock: seconds.
    """

    def __init__(self, work: Work | None, clock=time.perf_counter):
        self.work = work
        self._clock = clock
        self._started = None
        self._compiled = False
        self._steps, self._seconds = 0, 0.0

    def start(self) -> None:
        """Training begins, or goes on after something else."""
        self._started = self._clock()

    def step(self) -> None:
        """A step has ended; the first one, which compiles, does not count."""
        now = self._clock()
        if self._compiled:
            self._steps += 1
            self._seconds += now - self._started
        self._compiled = True
        self._started = now

    def reading(self) -> dict[str, float | None]:
        """Since the last `reset`; None before there is anything to divide."""
        if self.work is None:
            return {}
        per_second = self._steps / self._seconds if self._steps else None
        return {
            "tokens_per_second": per_second and self.work.tokens * per_second,
            "model_flops_utilization": per_second
            and self.work.flops * per_second / self.work.peak,
        }

    def reset(self) -> None:
        """Begins a new interval."""
        self._steps, self._seconds = 0, 0.0
