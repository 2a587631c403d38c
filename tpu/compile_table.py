"""The table of tpu/README.md: the smallest slice on which each model fits.

    python tpu/compile_table.py rows.json > table.md

Compiles the step of every released size for slices of a generation until the
smallest that takes the batch is found. Takes hours; what is compiled is kept
in `rows.json`, and another run goes on from there.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from keras_albert.aot.compile import GIB, compiled, rows_of_replica
from keras_albert.aot.config import CompileRun
from keras_albert.aot.topologies import TOPOLOGIES, Topology
from keras_albert.pretraining.config import ExampleConfig
from keras_albert.storage import read_json, write_json

VARIANTS = ("base_v2", "large_v2", "xlarge_v2", "xxlarge_v2")
GENERATIONS = ("v5e", "v6e", "v4", "v5p", "v3")


def run_of(variant: str, topology: str) -> CompileRun:
    """Paper 4.1: batches of 4096, 512 tokens."""
    return CompileRun(
        topology=topology,
        variant=variant,
        batch_size=4096,
        examples=ExampleConfig(sequence_length=512),
        precision="mixed_bfloat16",
        loop="scan",
        remat=True,
    )


class Rows:
    """What was compiled, in a JSON file."""

    def __init__(self, path: Path):
        self.path = path
        self.content = read_json(path) if path.is_file() else {}

    def of(self, variant: str, topology: str) -> dict:
        """The outcome for a model on a slice; compiles it if need be."""
        key = f"{variant} {topology}"
        if key not in self.content:
            step = compiled(run_of(variant, topology))
            self.content[key] = dataclasses.asdict(step)
            write_json(self.path, self.content)
            print(f"{key}: {self.content[key]}", file=sys.stderr, flush=True)
        return self.content[key]


def smallest(rows: Rows, variant: str, generation: str) -> Topology | None:
    """The smallest slice on which the model fits, by halves."""
    slices = [
        topology
        for name, topology in TOPOLOGIES.items()
        if name.startswith(f"{generation}-")
    ]
    first, end = 0, len(slices)  # the answer is in [first, end]
    while first < end:
        middle = (first + end) // 2
        if rows.of(variant, slices[middle].name)["fits"]:
            end = middle
        else:
            first = middle + 1
    return slices[end] if end < len(slices) else None


def line(rows: Rows, variant: str, generation: str) -> str:
    """A row of the table."""
    topology = smallest(rows, variant, generation)
    if topology is None:
        return f"| {variant} | {generation}: none | | | | | |"
    outcome = rows.of(variant, topology.name)
    per_device = rows_of_replica(run_of(variant, topology.name), topology)
    limit = topology.device_memory / GIB
    reduced = outcome["exchanged"].get("all-reduce", [0, 0])[1]
    cells = (
        variant,
        topology.name,
        str(topology.chips),
        str(per_device),
        f"{outcome['memory'] / GIB:.1f} of {limit:g}",
        f"{reduced / 1e6:,.0f}",
        f"{outcome['seconds']:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table when all of it is compiled."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="JSON file of what is done")
    parser.add_argument("--variants", nargs="+", default=VARIANTS)
    parser.add_argument("--generations", nargs="+", default=GENERATIONS)
    arguments = parser.parse_args()
    rows = Rows(arguments.rows)
    lines = [
        line(rows, variant, generation)
        for variant in arguments.variants
        for generation in arguments.generations
    ]
    print(
        "| model | smallest slice | chips | rows a device | GiB a device "
        "| MB all-reduced a device and step | compiled in, s |"
    )
    print("|---|---|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
