"""ALBERT-base beside BERT-base: parameters, file, memory and time.

    python tests/benchmarks/albert_and_bert.py

BERT-base is the same code with `sharing="none"` and an embedding as wide as
the encoder, so that both differ in nothing but ALBERT's two ideas. Its
vocabulary is ALBERT's 30,000 pieces.

Times are of one process that holds both models and calls them in turn; who
comes first changes with every pair. `forward` is token ids to vectors, 8 rows
of 128 tokens; `training step` is masked LM (20 predictions a row) and sentence
order with Adam, which holds two moments for each parameter. Memory is the
highest resident memory of a process that holds one model and calls it a few
times, less what the process had before it made the model. A file is the
`.keras` file of the model in float32, without its optimizer.

KERAS_BACKEND chooses the backend. Run it on a machine that does nothing else.
"""

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
from pathlib import Path

from bench_model import CPU_ONLY, machine
from pairing import (
    benchmark_parser,
    in_process,
    paired_times,
    resident,
    warm_up,
    write_report,
)
from workload import FORWARD, MODES, SIZES, TRAIN, Workload

import keras_albert as ka

CALLS_FOR_MEMORY = 3  # a peak is reached by the second call
TITLES = {FORWARD: "forward", TRAIN: "training step"}


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints the table, and writes it where it is told to."""
    options = parser().parse_args(arguments)
    os.environ.update(CPU_ONLY)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    backend = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    sides = both(SIZES[options.size])
    about = machine()
    work = sides["ALBERT"]
    print(
        f"{backend}, float32, {work.batch_size} x {work.length} tokens, "
        f"medians of {options.pairs} pairs\n"
    )
    found = in_process(ready, backend, sizes, sides)
    for mode in MODES:
        for name, workload in sides.items():
            found[name][f"{mode}_bytes"] = in_process(
                ready, backend, memory, workload, mode
            )
        found[mode] = in_process(
            ready, backend, times, sides, mode, options.pairs
        )
    print("\n".join(table(found)))
    write_report(options, about | {"backend": backend, "measured": found})


def parser() -> argparse.ArgumentParser:
    """The options; their defaults make the table of README.md."""
    result = benchmark_parser(__doc__, pairs=20)
    result.add_argument(
        "--size",
        choices=list(SIZES),
        default="base",
        help="of ALBERT and the batch; tiny is for a test of this program",
    )
    return result


def both(albert: Workload) -> dict[str, Workload]:
    """The same batch for an ALBERT, and for a BERT of the same width."""
    config = albert.config.replace(
        sharing="none", embedding_size=albert.config.hidden_size
    )
    return {
        "ALBERT": albert,
        "BERT": dataclasses.replace(albert, config=config),
    }


def ready(backend: str) -> None:
    """Loads a backend into a new process, and computes something with it."""
    if backend == "torch":
        import torch  # noqa: F401  (must precede TensorFlow in a process)
    import keras

    # What the library allocates once belongs to no model.
    tiny = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    tiny.compile("adam", "mse")
    tiny.fit(keras.ops.ones((8, 4)), keras.ops.ones((8, 4)), verbose=0)


def sizes(sides: dict[str, Workload]) -> dict[str, dict]:
    """Parameters of each encoder with its pooler, and bytes of its file."""
    found = {}
    for name, workload in sides.items():
        model = ka.AlbertBackbone(workload.config)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.keras")
            model.save(file)
            size = file.stat().st_size
        found[name] = {"parameters": model.count_params(), "file": size}
    return found


def memory(workload: Workload, mode: str) -> int | None:
    """Bytes that a model and its calls add to a process; None but on Linux."""
    from sides import make_side

    before = resident("VmRSS")
    with contextlib.suppress(OSError):  # forgets the peak of the imports
        Path("/proc/self/clear_refs").write_text("5")
    side = make_side("ours", mode, "float32", workload)
    for _ in range(CALLS_FOR_MEMORY):
        side.call()
    after = resident("VmHWM")
    return None if before is None else max(after - before, 0)


def times(sides: dict[str, Workload], mode: str, pairs: int) -> dict:
    """Medians of both, and the quartiles of the ratio ALBERT / BERT."""
    from sides import make_side

    albert, bert = (
        make_side("ours", mode, "float32", workload).call
        for workload in sides.values()
    )
    warm_up(albert)
    warm_up(bert)
    return paired_times(albert, bert, pairs).summary()


def table(found: dict) -> list[str]:
    """The Markdown table of README.md."""
    albert, bert = found["ALBERT"], found["BERT"]
    lines = [
        "| | ALBERT-base | BERT-base | ALBERT / BERT |",
        "|---|---|---|---|",
    ]

    def add(title, one, two, ratio, decimals=0):
        one, two = f"{one:,.{decimals}f}", f"{two:,.{decimals}f}"
        lines.append(f"| {title} | {one} | {two} | {ratio:.2f} |")

    def compare(title, field, unit=1, decimals=0):
        one, two = albert[field], bert[field]
        if one and two:  # memory is not known everywhere
            add(title, one / unit, two / unit, one / two, decimals)

    compare("parameters", "parameters")
    compare("`.keras` file, MB", "file", 1e6, decimals=1)
    for mode, title in TITLES.items():
        compare(f"memory, {title}, MB", f"{mode}_bytes", 1e6)
    for mode, title in TITLES.items():
        times = found[mode]
        shown = times["ours_ms"], times["peer_ms"], times["ratio"]
        add(f"time, {title}, ms", *shown)
    return lines


if __name__ == "__main__":
    sys.exit(main())
