"""The work that both sides of a pair get, and the check that it is the same.

Letters: B batch, S sequence length, P predicted positions of a row,
V vocabulary. Nothing here imports a backend.
"""

import dataclasses
import math

import numpy as np

import keras_albert as ka
from keras_albert.text.special_tokens import SPECIAL_PIECES

FORWARD, TRAIN = MODES = ("forward", "train")
OPTIMIZER = "Adam"  # keras.optimizers and torch.optim have it, same defaults
LEARNING_RATE = 1e-4
# Both sides start at ln(V) + ln(2), their logits being near 0.
FIRST_LOSS_TOLERANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Workload:
    """One size of the work: an architecture and a batch of real tokens."""

    config: ka.AlbertConfig
    batch_size: int
    """B, rows"""
    length: int
    """S, tokens of a row, none of them padding"""
    predictions: int
    """P, masked positions of a row that are predicted in training"""
    seed: int = 0

    def inputs(self) -> dict[str, np.ndarray]:
        """`token_ids`, `segment_ids`, `padding_mask`, int32 [B, S]."""
        rng = np.random.default_rng(self.seed)
        shape = (self.batch_size, self.length)
        half = np.arange(self.length) >= self.length // 2
        return {
            "token_ids": rng.integers(
                len(SPECIAL_PIECES), self.config.vocab_size, shape, "int32"
            ),
            "segment_ids": np.broadcast_to(half, shape).astype("int32"),
            "padding_mask": np.ones(shape, "int32"),
        }

    def training_batch(self) -> tuple[dict, dict, dict]:
        """(x, y, sample_weight) of `AlbertForPretraining`, all weights 1."""
        rng = np.random.default_rng(self.seed + 1)
        chosen = (self.batch_size, self.predictions)
        positions = rng.permuted(
            np.tile(np.arange(1, self.length), (self.batch_size, 1)), axis=1
        )[:, : self.predictions]
        x = self.inputs() | {
            "masked_positions": np.sort(positions).astype("int32")
        }
        y = {
            "mlm": rng.integers(
                len(SPECIAL_PIECES), self.config.vocab_size, chosen, "int32"
            ),
            "sop": rng.integers(0, 2, self.batch_size, "int32"),
        }
        weight = {
            "mlm": np.ones(chosen, "float32"),
            "sop": np.ones(self.batch_size, "float32"),
        }
        return x, y, weight


SIZES = {
    "base": Workload(ka.VARIANTS["base_v2"], 8, 128, 20),
    "base-512": Workload(ka.VARIANTS["base_v2"], 32, 512, 20),
    "large-512": Workload(ka.VARIANTS["large_v2"], 32, 512, 20),
    "tiny": Workload(  # for a test of the benchmark itself
        ka.AlbertConfig(
            vocab_size=97,
            embedding_size=8,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=32,
        ),
        batch_size=2,
        length=16,
        predictions=3,
    ),
}


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a side does, read from its own model, arrays and results."""

    token_shape: tuple[int, ...]
    """of the ids that go in, [B, S]"""
    real_tokens: int
    """ones in the mask that goes in"""
    layers: int
    heads: int
    weight_sizes: tuple[int, ...]
    """elements of every trainable weight, sorted; a shared one counts once"""
    output_shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """of what comes out; in training, of the logits that the loss sees"""
    optimizer: str | None = None
    """its class, None without training"""
    learning_rate: float | None = None
    first_loss: float | None = None
    """before any update"""


def check_same_work(ours: Facts, peer: Facts) -> None:
    """AlbertError unless both sides do the same work.

    Weights and the order of operations may differ, sizes may not.
    """
    for field in dataclasses.fields(Facts):
        a, b = getattr(ours, field.name), getattr(peer, field.name)
        if field.name == "first_loss" and None not in (a, b):
            same = math.isclose(a, b, rel_tol=FIRST_LOSS_TOLERANCE)
        else:
            same = a == b
        if not same:
            raise ka.AlbertError(
                f"both sides must do the same work, but `{field.name}` "
                f"differs. Received: ours {a}, peer {b}. Give both the same "
                "Workload."
            )
