"""What all benchmarks have: options, processes, pairs of times, tables."""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

MOST_WARM_UPS = 8
# A call that is this much quicker than the last one: was still compiling.
STILL_WARMING = 0.8


@dataclasses.dataclass(frozen=True)
class PairedTimes:
    """Seconds of each call, in order; `ours[i]` and `peer[i]` are a pair."""

    ours: Sequence[float]
    peer: Sequence[float]

    def summary(self) -> dict:
        """Medians in ms; quartiles of ours / peer, below 1 where ours wins.

        The ratio is taken in each pair first: what slows the machine for a
        while then slows both.

        >>> s = PairedTimes((1.0, 2.0, 9.0), (2.0, 4.0, 6.0)).summary()
        >>> s["ratio"], s["ratio_quartiles"], s["ours_ms"], s["peer_ms"]
        (0.5, [0.5, 1.0], 2000.0, 4000.0)
        """
        return self.ratios() | {
            "pairs": len(self.ours),
            "ours_ms": float(np.median(self.ours)) * 1e3,
            "peer_ms": float(np.median(self.peer)) * 1e3,
        }

    def ratios(self) -> dict:
        """The median and the quartiles alone."""
        ratios = np.divide(self.ours, self.peer)
        low, middle, high = np.percentile(ratios, (25, 50, 75)).tolist()
        return {"ratio": middle, "ratio_quartiles": [low, high]}


def benchmark_parser(description: str, pairs: int) -> argparse.ArgumentParser:
    """The options that all benchmarks have.

    Args:
        description: of the benchmark.
        pairs: of calls, unless told otherwise.
    """
    result = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    # Quartiles need two values; the order must have been swapped once.
    add("--pairs", type=at_least(2), default=pairs, help="of calls, a line")
    add("--output", type=Path, help="also write a JSON file, with all times")
    return result


def at_least(lowest: int) -> Callable[[str], int]:
    """The type of an option."""

    def integer(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(
                f"expected an integer of {lowest} or more, received {text!r}"
            )
        return int(text)

    return integer


def in_process(prepare: Callable, setting, function: Callable, *arguments):
    """Calls it in a new process, in which `prepare(setting)` comes first."""
    with new_process(prepare, setting) as process:
        return process.submit(function, *arguments).result()


def new_process(
    prepare: Callable, *settings
) -> concurrent.futures.ProcessPoolExecutor:
    """One in which `prepare(*settings)` comes first."""
    spawn = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(1, spawn, prepare, settings)


def resident(field: str) -> int | None:
    """Bytes: VmRSS, what this process holds, or VmHWM, the most so far."""
    with contextlib.suppress(OSError):  # Linux alone says it
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return 1024 * int(value.split()[0])
    return None


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes; it must wait for its own result."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def warm_up(call: Callable[[], object]) -> int:
    """Calls until calls no longer get quicker; returns how often."""
    count, last = 1, seconds(call)
    while count < MOST_WARM_UPS:
        count, now = count + 1, seconds(call)
        if now > STILL_WARMING * last:
            break
        last = now
    return count


class CpuMeter:
    """How much of the machine other processes used since it was made."""

    def __init__(self):
        self.start = time.perf_counter()
        self.own, self.all = time.process_time(), _busy_seconds()

    def seconds(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self.start

    def others(self) -> float | None:
        """A share of all cores, 0 to 1; None where the system keeps none."""
        if self.all is None:
            return None
        others = _busy_seconds() - self.all - (time.process_time() - self.own)
        return max(others / (self.seconds() * os.cpu_count()), 0.0)


def _busy_seconds() -> float | None:
    """Of all cores since the machine started, what was not idle or waiting."""
    try:
        first, *_ = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal, *_ = map(
        int, first.split()[1:]
    )
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def in_turn(
    sides: Mapping[str, Callable[[], object]], pairs: int
) -> dict[str, list]:
    """What both sides return; who is first changes every time."""
    found = {name: [] for name in sides}
    for pair in range(pairs):
        for name in sides if pair % 2 == 0 else reversed(sides):
            found[name].append(sides[name]())
    return found


def paired_times(
    ours: Callable[[], object], peer: Callable[[], object], pairs: int
) -> PairedTimes:
    """Seconds of both, called in turn."""
    sides = {"ours": lambda: seconds(ours), "peer": lambda: seconds(peer)}
    return PairedTimes(**in_turn(sides, pairs))


# What is said of it.


def print_table(titles: Sequence[str], rows: Iterable[Sequence]) -> None:
    """Columns as wide as their widest cell; nothing is shown as "-"."""
    table = [titles, *rows]
    table = [
        ["-" if cell is None else str(cell) for cell in row] for row in table
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = zip(row, widths, strict=True)
        print("  ".join(cell.rjust(width) for cell, width in cells))


def times_and_ratio(line: dict) -> tuple[str, ...]:
    """Cells: the times of both sides in ms, their ratio and its quartiles."""
    times = (f"{line[side]:,.1f}" for side in ("ours_ms", "peer_ms"))
    return *times, f"{line['ratio']:.2f}", quartiles(line, 2)


def quartiles(line: dict, digits: int = 3) -> str:
    """Those of the ratio, as a cell."""
    low, high = line["ratio_quartiles"]
    return f"{low:.{digits}f} - {high:.{digits}f}"


def percent(share: float | None, digits: int = 0) -> str | None:
    """A share as a cell."""
    return None if share is None else f"{share:.{digits}%}"


def write_report(options: argparse.Namespace, report: dict) -> None:
    """Writes the file of --output."""
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n")
