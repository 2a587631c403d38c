"""How fast `keras-albert prepare` is, and how much memory it takes.

    python tests/benchmarks/bench_prepare.py --vocab spiece.model \
        --input 'corpus/*.txt' --copies 1 4 --workers 1 2

A line for each number of copies of the text and of processes: megabytes of
text, tokens/s from start to end of the command, its seconds, the seconds that
all its processes computed (less dependent on what else the machine does), and
the largest memory that they had together (pages that they share are counted
once; taken every twentieth of a second, so a short peak may be missed). Linux
only, with psutil.
"""

import argparse
import contextlib
import glob
import resource
import sys
import tempfile
import time
from pathlib import Path

import psutil

from keras_albert.corpus.shards import Manifest

SECONDS_BETWEEN_LOOKS = 0.05


def megabytes(root: psutil.Process) -> float:
    """Of a process and all that come from it; n that share count an nth."""
    found = 0.0
    with contextlib.suppress(psutil.Error):  # one has ended
        for process in (root, *root.children(recursive=True)):
            found += process.memory_full_info().pss / 1e6
    return found


def computed() -> float:
    """CPU seconds of all commands that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(command: list[str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds and peak megabytes of a command."""
    start, before, peak = time.perf_counter(), computed(), 0.0
    with (
        tempfile.TemporaryFile("w+") as said,
        psutil.Popen(command, stderr=said) as process,
    ):
        while process.poll() is None:
            peak = max(peak, megabytes(process))
            time.sleep(SECONDS_BETWEEN_LOOKS)
        if process.returncode:
            said.seek(0)
            sys.exit(f"this failed: {' '.join(command)}\n{said.read()[-500:]}")
    return time.perf_counter() - start, computed() - before, peak


def main() -> None:
    """Prints a line for each corpus and number of processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", required=True, help="spiece.model")
    parser.add_argument("--input", required=True, help="pattern of text files")
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    files = sorted(map(Path, glob.glob(options.input)))
    if not files:
        parser.error(f"--input: no file is named {options.input}")
    size = sum(path.stat().st_size for path in files) / 1e6
    print("  text MB  workers   tokens/s  seconds  CPU seconds  peak MB")
    for copies in options.copies:
        for workers in options.workers:
            with tempfile.TemporaryDirectory() as folder:
                folder = Path(folder)
                for copy in range(copies):
                    for number, path in enumerate(files):
                        link = folder / f"{copy}-{number}-{path.name}"
                        link.symlink_to(path.resolve())
                seconds, cpu_seconds, peak = measure(
                    [sys.executable, "-m", "keras_albert.cli", "prepare"]
                    + ["--input", f"{folder}/*", "--vocab", options.vocab]
                    + ["--output", f"{folder}/shards"]
                    + ["--workers", str(workers)]
                )
                tokens = Manifest.read(folder / "shards").count("tokens")
            print(
                f"{size * copies:9.1f}  {workers:7}  {tokens / seconds:9,.0f}  "
                f"{seconds:7.1f}  {cpu_seconds:11.1f}  {peak:7.0f}"
            )


if __name__ == "__main__":
    main()
