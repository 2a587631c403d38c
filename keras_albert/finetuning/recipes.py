"""Hyper-parameters of fine-tuning: the paper's, and defaults for any table."""

import dataclasses
import math

from keras_albert.finetuning.config import FinetuneRun
from keras_albert.modeling.config import CLASSIFIER_DROPOUT, AlbertConfig


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of a fine-tuning run with AdamW, the default."""

    learning_rate: float  # peak learning rate
    batch_size: int  # examples in a step
    dropout: float  # hidden and attention dropout of the encoder ("ALBERT DR")
    steps: int  # optimizer steps
    warmup_steps: int  # steps of linear warm-up
    sequence_length: int = 512  # longest example, in tokens
    # dropout before the classifier; the same in every task
    classifier_dropout: float = CLASSIFIER_DROPOUT
    # task of the model that it starts from (paper, footnote 4), if fine-tuned
    start: str | None = None


RECIPES = {
    "CoLA": Recipe(1e-5, 16, 0.0, 5_336, 320),
    "STS-B": Recipe(2e-5, 16, 0.0, 3_598, 214, start="MNLI"),
    "SST-2": Recipe(1e-5, 32, 0.0, 20_935, 1_256),
    "MNLI": Recipe(3e-5, 128, 0.0, 10_000, 1_000),
    "QNLI": Recipe(1e-5, 32, 0.0, 33_112, 1_986),
    "QQP": Recipe(5e-5, 128, 0.1, 14_000, 1_000),
    "RTE": Recipe(3e-5, 32, 0.1, 800, 200, start="MNLI"),
    "MRPC": Recipe(2e-5, 32, 0.0, 800, 200, start="MNLI"),
    "WNLI": Recipe(2e-5, 16, 0.1, 2_000, 250),
    "SQuAD-1.1": Recipe(5e-5, 48, 0.0, 3_649, 365, sequence_length=384),
    "SQuAD-2.0": Recipe(3e-5, 48, 0.0, 8_144, 814),
    "RACE": Recipe(2e-5, 32, 0.1, 12_000, 1_000),
    # Not in the paper: the reference's README, for models of version 2.
    "RACE-v2": Recipe(1e-5, 32, 0.0, 12_000, 1_000),
}


# Defaults of a run.

FEW_ROWS = 10_000
MANY_ROWS = 100_000
FEWEST_STEPS = 1_000
MOST_EPOCHS = 50


def choose(
    rows: int, hidden_size: int, trains_few: bool = False
) -> dict[str, int | float]:
    """Batch size, epochs and learning rate of a run that names none.

    | rows | batch | epochs |
    |---|---|---|
    | fewer than 10,000 | 16 | 10, or as many as make 1,000 steps, up to 50 |
    | fewer than 100,000 | 32 | 5 |
    | more | 32 | 3 |

    | width of the model | learning rate |
    |---|---|
    | up to 256 | 3e-4 |
    | less than 768 | 1e-4 |
    | 768 and more (all released models) | 2e-5 |

    Small tables need more steps than a few epochs give: Mosbach et al. 2021
    (arXiv:2006.04884) take 20 epochs at 2e-5 with a tenth of warm-up, whereas
    three epochs often leave a model that always gives the same answer. The
    paper's Table 14 has 10 epochs for CoLA, STS-B, SST-2, QNLI and RTE, 50 for
    WNLI's 635 rows, and 3 to 5 for MNLI and QQP. Narrow models need higher
    rates (Turc et al. 2019, arXiv:1908.08962: up to 3e-4).

    `rows` are those of the training table, or windows of its contexts.
    `trains_few` says that only adapters or a head are trained: that takes ten
    times the rate (Schulman et al. 2025, "LoRA Without Regret").
    """
    batch_size = 16 if rows < FEW_ROWS else 32
    steps_per_epoch = math.ceil(rows / batch_size)
    if rows < FEW_ROWS:
        enough = math.ceil(FEWEST_STEPS / steps_per_epoch)
        epochs = min(max(10, enough), MOST_EPOCHS)
    else:
        epochs = 5 if rows < MANY_ROWS else 3
    if hidden_size <= 256:
        learning_rate = 3e-4
    else:
        learning_rate = 1e-4 if hidden_size < 768 else 2e-5
    if trains_few:
        learning_rate *= 10
    return {
        "batch_size": batch_size,
        "epochs": epochs,
        "learning_rate": learning_rate,
    }


def choose_missing(
    run: FinetuneRun, rows: int, config: AlbertConfig
) -> dict[str, int | float]:
    """The values that `choose` gives to the settings that a run leaves open."""
    settings = choose(rows, config.hidden_size, run.trains_few)
    if run.steps is not None:
        del settings["epochs"]
    return {k: v for k, v in settings.items() if getattr(run, k) is None}
