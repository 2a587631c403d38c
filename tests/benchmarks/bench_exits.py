"""Early exit of ALBERT-base beside the whole model.

    python tests/benchmarks/bench_exits.py

Both sides of a line are the same model with a classifier behind each layer, of
random weights; one stops early, the other computes all layers. In the first
lines every row stops after a quarter, half or three quarters of the layers; in
the last one no row stops, which shows what it costs to ask after each layer.
Who comes first changes with every pair of calls.

KERAS_BACKEND chooses the backend. Run it on a machine that does nothing else.
"""

import argparse
import os
import sys

from bench_model import CPU_ONLY, machine
from pairing import (
    at_least,
    benchmark_parser,
    paired_times,
    print_table,
    times_and_ratio,
    warm_up,
    write_report,
)
from workload import SIZES, Workload

import keras_albert as ka

NEVER = "none: asked, and never certain"
TITLES = ("rows", "stop after", "early, ms", "all, ms", "ratio", "quartiles")


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints the table, and writes it where it is told to."""
    options = parser().parse_args(arguments)
    os.environ.update(CPU_ONLY)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    about = machine() | {
        "backend": os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    }
    work = SIZES[options.size]
    lines = measured(work, options.batch_sizes, options.pairs)
    print(f"{about['backend']}, float32, rows of {work.length} tokens\n")
    print_table(TITLES, map(cells, lines))
    write_report(options, about | {"lines": lines})


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = benchmark_parser(__doc__, pairs=20)
    add = result.add_argument
    add(
        "--size",
        choices=list(SIZES),
        default="base",
        help="of the model; tiny is for a test of this program",
    )
    add(
        "--batch-sizes",
        type=at_least(1),
        nargs="+",
        default=[1, 8],
        help="rows at a time",
    )
    return result


def rules(layers: int) -> dict[str, ka.EarlyExit]:
    """The rules of early exit that are measured, by their names."""
    stops = sorted({max(layers * share // 4, 1) for share in (1, 2, 3)})
    found = {
        f"{count} of {layers} layers": ka.EarlyExit(layers=count)
        for count in stops
    }
    # Random classifiers are far from certain.
    return found | {NEVER: ka.EarlyExit(confidence=1.0)}


def measured(work: Workload, batch_sizes: list[int], pairs: int) -> list[dict]:
    """A line for each rule and number of rows."""
    from keras_albert.finetuning.layer_by_layer import LayerByLayer

    model = ka.AlbertForSequenceClassification(
        ka.AlbertBackbone(work.config), num_labels=2, exits="own"
    )
    layers, found = work.config.num_hidden_layers, []
    for rows in batch_sizes:
        x = {name: each[:rows] for name, each in work.inputs().items()}
        for name, rule in rules(layers).items():
            early = LayerByLayer(model, rule)

            def stopping(early=early, x=x):
                return early(model, x)

            def whole(x=x):
                return model.predict_on_batch(x)

            warm_up(stopping)
            warm_up(whole)
            times = paired_times(stopping, whole, pairs)
            used = early.layers / early.rows
            line = {"rows": rows, "rule": name, "layers": used}
            found.append(line | times.summary())
    return found


def cells(line: dict) -> tuple[str, ...]:
    """A row of the table."""
    return str(line["rows"]), line["rule"], *times_and_ratio(line)


if __name__ == "__main__":
    sys.exit(main())
