"""What a run costs: minutes, tokens, floating-point operations, energy.

The energy is that of all processor packages together, from the counters of
Intel's and AMD's processors (RAPL), which Linux shows in /sys/class/powercap.
Most machines only let root read them, and accelerators are not in them.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from keras_albert.training.config import CHECKPOINTS_FOLDER
from keras_albert.training.loop import Training, fit_into_folder
from keras_albert.training.run_log import LogRow, RunLog
from keras_albert.training.speed import Work

POWERCAP = Path("/sys/class/powercap")
MICRO = 1e-6
SECONDS_BETWEEN_SAMPLES = 20


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of training; validation counts for the energy alone."""

    minutes: float | None
    """time of the steps; steps that were not timed count as if they had been
    as fast as the others; None if none was timed"""
    tokens: int
    """number of positions, with padding"""
    flops: float
    """floating-point operations, see pretraining/flops.py"""
    joules: float | None
    """energy of all processors during the run, that of validation, checkpoints
    and other programs included; None if the counters cannot be read, or if the
    run was continued from a checkpoint"""

    def line(self) -> str:
        """The cost as a line of text."""
        parts = [f"{self.tokens:,} tokens", f"{self.flops:.3g} FLOP"]
        if self.minutes is not None:
            parts.insert(0, f"{self.minutes:.1f} minutes")
        energy = "energy unknown"
        if self.joules is not None:
            energy = f"{self.joules / 1000:,.1f} kJ in the processors"
        return f"cost: {', '.join([*parts, energy])}"


def fit_with_cost(
    training: Training, work_of: Callable[[int], Work]
) -> tuple[LogRow, Cost | None]:
    """Trains a model as `fit_into_folder` does, and measures the cost.

    Returns the row of the log that belongs to the saved model, and the cost of
    the run, which only the first of several processes knows. `work_of` maps
    the number of a step, from 1, to its work.
    """
    whole = not (training.folder / CHECKPOINTS_FOLDER).exists()
    energy = EnergyMeter()
    try:
        kept = fit_into_folder(training)
    finally:
        joules = energy.joules()
    if not training.devices.is_first:
        return kept, None
    rows = RunLog(training.folder).rows
    return kept, cost_of_run(
        rows, rows[-1]["step"], work_of, joules if whole else None
    )


def cost_of_run(
    rows: Sequence[LogRow],
    steps: int,
    work_of: Callable[[int], Work],
    joules: float | None,
) -> Cost:
    """The cost of all steps, those of earlier, interrupted runs included.

    Args:
        rows: the log of the run.
        steps: number of steps of the run.
        work_of: maps the number of a step, from 1, to its work.
        joules: energy of the processors; None if it is unknown, as it is for a
            run that was interrupted and continued: the energy of its earlier
            part was not stored.
    """
    speeds = {row["step"]: row.get("tokens_per_second") for row in rows}
    tokens = interval = timed = 0
    flops = seconds = 0.0
    for step in range(1, steps + 1):
        work = work_of(step)
        tokens += work.tokens
        interval += work.tokens
        flops += work.flops
        if step in speeds:
            if speed := speeds[step]:  # else no step of the interval was timed
                seconds += interval / speed
                timed += interval
            interval = 0
    return Cost(
        minutes=seconds / 60 * tokens / timed if timed else None,
        tokens=tokens,
        flops=flops,
        joules=joules,
    )


def total(costs: Sequence[Cost]) -> Cost:
    """The sum of several costs.

    A field that is None, unknown, in one of them is None in the sum.
    """

    def summed(name: str):
        values = [getattr(cost, name) for cost in costs]
        return None if None in values else sum(values)

    names = [field.name for field in dataclasses.fields(Cost)]
    return Cost(**{name: summed(name) for name in names})


class EnergyMeter:
    """Measures the energy of all processors from its creation on, in joules.

    The counters of the processors are small and start again at zero after some
    minutes. A thread therefore reads them more often than that.
    """

    def __init__(self, folder: Path = POWERCAP):
        self._folder = folder
        self._last = self._read()
        self._used: int | None = 0 if self._last else None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        if self._last:
            threading.Thread(target=self._watch, daemon=True).start()

    def joules(self) -> float | None:
        """The energy since the creation; None if the counters cannot be read.

        The first call also ends the thread that reads the counters.
        """
        self._ended.set()
        self.sample()
        return None if self._used is None else self._used * MICRO

    def sample(self) -> None:
        """Reads the counters and adds the energy since the previous reading."""
        with self._lock:
            now = self._read()
            if self._used is None or now.keys() != self._last.keys():
                self._used = None
                return
            for package, (value, limit) in now.items():
                used = value - self._last[package][0]
                self._used += used if used >= 0 else used + limit
            self._last = now

    def _watch(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_SAMPLES):
            self.sample()

    def _read(self) -> dict[str, tuple[int, int]]:
        """The counter of each package and the value at which it wraps."""
        try:
            return {
                package.name: (
                    int((package / "energy_uj").read_text()),
                    int((package / "max_energy_range_uj").read_text()),
                )
                for package in self._packages()
            }
        except (OSError, ValueError):
            return {}

    def _packages(self) -> Iterator[Path]:
        # Other zones are parts of a package, or the platform around them all.
        for path in sorted(self._folder.glob("intel-rapl:*")):
            if (path / "name").read_text().startswith("package"):
                yield path
