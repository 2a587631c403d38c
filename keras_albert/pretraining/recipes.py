"""Sets of options of `pretrain` that were found by search and run as a whole.

This module imports nothing, as the command line reads it for any command.
"""


def small(steps: int = 12_000) -> dict[str, str | int | float]:
    """A run of less than two hours on two CPU cores, see examples/small.

    The model reads 32 million tokens, in short rows first, which need less
    time. It predicts 40 % of them, from which it learns more than from the
    paper's 15 % (Wettig et al. 2022, arXiv:2202.08005). docs/decisions/muon.md
    compares Muon with AdamW.

    Args:
        steps: number of steps; warm-up and short rows keep their shares.
    """
    return {
        "variant": "small",
        "batch_size": 32,
        "steps": steps,
        "warmup_steps": steps // 10,
        "short_steps": steps * 8 // 17,
        "short_length": 32,
        "examples.sequence_length": 128,
        "examples.masked_lm_prob": 0.4,
        "examples.max_predictions": 51,  # 40 % of a long row
        "optimizer.optimizer": "muon",
        "optimizer.learning_rate": 0.0015,
    }


RECIPES = {"small": small}
