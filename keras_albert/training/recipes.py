"""How the paper fine-tuned: hyper-parameters of Table 14, as data."""

import dataclasses

from keras_albert.config import CLASSIFIER_DROPOUT


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of a fine-tuning run; the optimizer is AdamW."""

    learning_rate: float
    """peak learning rate"""
    batch_size: int
    """examples in a step"""
    dropout: float
    """hidden and attention dropout of the encoder ("ALBERT DR")"""
    steps: int
    """optimizer steps"""
    warmup_steps: int
    """steps of linear warm-up"""
    sequence_length: int = 512
    """longest example, in tokens"""
    classifier_dropout: float = CLASSIFIER_DROPOUT
    """before the classifier; the same in every task"""
    start: str | None = None
    """task whose fine-tuned model it starts from (Paper footnote 4); None:
    from the pretrained one"""


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
