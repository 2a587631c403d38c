"""Settings of how contexts are read for the answers to questions."""

import dataclasses

from keras_albert.errors import (
    AlbertError,
    check_fields,
    check_positive,
    is_number,
    to_python_numbers,
)


@dataclasses.dataclass(frozen=True)
class WindowConfig:
    """How questions and contexts are cut into windows."""

    sequence_length: int = 384
    """most tokens of a window, including [CLS] and two [SEP] (Paper Table 14,
    SQuAD 1.1; 512 for SQuAD 2.0)"""
    stride: int = 128
    """tokens of the context from one window to the next (doc_stride in the
    reference's run_squad_v1.py and run_squad_v2.py)"""
    query_length: int = 64
    """most tokens of a question; the rest is cut off (max_query_length)"""

    def __post_init__(self):
        to_python_numbers(self)
        sizes = "sequence_length stride query_length"
        check_fields(check_positive, self, sizes)
        if self.sequence_length <= self.query_length + 3:
            raise AlbertError(
                "`sequence_length` must be above `query_length` + 3, or no "
                "context fits beside a long question. Received: "
                f"sequence_length={self.sequence_length}, "
                f"query_length={self.query_length}."
            )


@dataclasses.dataclass(frozen=True)
class AnswerConfig:
    """Which answers are considered (reference run_squad_v1.py)."""

    n_best: int = 20
    """most answers to a question; also how many starts and ends of a window
    are combined to answers"""
    answer_length: int = 30
    """most tokens of an answer"""

    def __post_init__(self):
        to_python_numbers(self)
        check_positive("n_best", self.n_best)
        check_positive("answer_length", self.answer_length)


@dataclasses.dataclass(frozen=True)
class WindowOptions:
    """How contexts are cut into windows; options that may be left out."""

    stride: int | None = None
    """tokens of the context from one window to the next; by default 128
    (reference run_squad_v1.py), or a third of a window if that is less"""
    query_length: int | None = None
    """most tokens of a question, the rest is cut off; by default 64 (reference
    run_squad_v1.py), or a third of a window if that is less"""

    def of(self, sequence_length: int) -> WindowConfig:
        """The windows with this length; AlbertError if it is too short."""
        third = max(sequence_length // 3, 1)
        return WindowConfig(
            sequence_length,
            self.stride or min(WindowConfig.stride, third),
            self.query_length or min(WindowConfig.query_length, third),
        )

    def __post_init__(self):
        check_fields(check_positive, self, "stride query_length")


@dataclasses.dataclass(frozen=True)
class ReadingConfig:
    """How a fine-tuned model reads contexts for answers."""

    windows: WindowConfig
    answers: AnswerConfig
    threshold: float | None = 0.0
    """a question is answered with "" if its no-answer score is above this: a
    logit, for which 0 is a probability of 0.5. None for the threshold with the
    best F1 on the examples at hand"""

    def __post_init__(self):
        to_python_numbers(self)
        if self.threshold is not None and not is_number(self.threshold):
            raise AlbertError(
                "`threshold` for questions must be a number or None. Received: "
                f"threshold={self.threshold!r:.60}."
            )

    @classmethod
    def from_dict(cls, settings: dict) -> "ReadingConfig":
        """The inverse of `dataclasses.asdict`."""
        return cls(
            WindowConfig(**settings["windows"]),
            AnswerConfig(**settings["answers"]),
            settings["threshold"],
        )
