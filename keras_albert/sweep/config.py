"""Settings of the command `sweep`."""

import dataclasses
from pathlib import Path
from typing import Literal

from keras_albert.errors import (
    AlbertError,
    check_flag,
    check_positive_number,
)


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """Search for the best options of `pretrain` or `finetune`.

    It runs the command once for each combination of values, and writes a table
    and a plot. The same command again continues an interrupted search; finished
    runs are never run again, and those that failed only with --retry-failed.
    """

    file: Path
    """TOML file with `command` ("pretrain" or "finetune"), a table `options`
    with the options that all runs share, and a table `search` with a list of
    values, or {low, high, points} for values at equal ratios, for each option
    to search"""
    output: Path
    """folder for the runs, the table and the plot"""
    method: Literal["grid", "halving"] = "grid"
    """grid: train every combination to its end; halving: stop a run early that
    is not in the better half of all runs at the same evaluation (successive
    halving, with the evaluations 1, 2, 4 and so on)"""
    score: str | None = None
    """number of the report to maximize; by default the task's own score, and
    mlm_accuracy for `pretrain`"""
    max_minutes: float | None = None
    """stop after so many minutes; the same command continues later"""
    retry_failed: bool = False
    """also run those combinations again that failed in an earlier command"""

    def __post_init__(self):
        check_flag("retry_failed", self.retry_failed)
        if self.max_minutes is not None:
            check_positive_number("max_minutes", self.max_minutes)
        if not self.file.is_file():
            raise AlbertError(
                f"{self.file}: no such file. `--file` of `sweep` is a TOML "
                "file with `command`, `options` and `search`."
            )
