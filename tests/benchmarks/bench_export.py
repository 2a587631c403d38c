"""How long exported models take, beside transformers and its own export.

    make bench        (or: python tests/benchmarks/bench_export.py --help)

One classifier with random weights, exported by this package: `onnx` and
`litert` run in their own runtimes, `saved_model` is its signature `token_ids`,
`text` its `serving_default`, which starts with strings and has tokenizing in
its time. The peers have the same weights: `torch` is the eager model of
transformers (sdpa, inference mode), `onnxruntime` what torch.onnx.export
makes of it, in ONNX Runtime. In int8 they are torch's dynamic quantization of
all Linear layers, and ONNX Runtime's dynamic quantization with its
pre-processing, as both document it.

All get the same rows without padding and as many threads. Their outputs are
compared first: in float32 they must be equal to 1e-4, in int8 `error` says how
far they are from float32 (root of the mean square, in standard deviations of
the logits over 64 texts). The weights are wider than a trained model's, so that
errors grow from layer to layer: what one loses here tells sides apart, and
is no forecast.

Then all sides are called in each round, in any order, twice, and the second
call counts. The ratio ours / peer is taken in each round: below 1 ours is
faster. `cpu` is the same for seconds of the processor, which other work
disturbs less (with more than one thread a runtime may count waiting in).
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bench_examples import trained_vocab, write_text
from bench_finetune import SIZES, VOCAB
from bench_model import CPU_ONLY, installed, machine
from pairing import (
    at_least,
    benchmark_parser,
    in_process,
    percent,
    print_table,
    quartiles,
    write_report,
)

import keras_albert as ka
from keras_albert.distribution.config import available_cores

# What must be importable, and what `pip install` calls it.
OURS = {
    "onnx": ("onnxruntime", "onnx onnxruntime"),
    "litert": ("ai_edge_litert", "ai-edge-litert"),
    "saved_model": ("tensorflow_text", "tensorflow-text"),
    "text": ("tensorflow_text", "tensorflow-text"),
}
PEERS = {
    "torch": ("transformers", "torch transformers"),
    "onnxruntime": ("onnxscript", "onnx onnxruntime onnxscript"),
}
WEIGHTS = ("float32", "int8")
ONLY_FLOAT32 = {"saved_model", "text"}


def main(arguments: list[str] | None = None) -> int:
    """Runs it; returns the exit status."""
    options = parser().parse_args(arguments)
    options.ours, options.peers = (
        [name for name in chosen if installed(*known[name], name)]
        for known, chosen in ((OURS, options.ours), (PEERS, options.peers))
    )
    if not options.ours or not options.peers:
        print("error: nothing is left to measure, see above.", file=sys.stderr)
        return 2
    report = machine() | {
        "size": options.size,
        "threads": options.threads,
        "megabytes": {},
        "errors": {},
        "lines": [],
    }
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(options, Path(folder), report)
    except ka.AlbertError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_report(report)
    return 0


def measure(options: argparse.Namespace, folder: Path, report: dict) -> None:
    """Makes all files, then adds to the report what was found of them."""
    options.vocab = options.vocab or default_vocab(folder)
    print(f"exporting {options.size} ...", flush=True)
    ready = prepare, options.threads, with_sides
    in_process(*ready, "export_all", options, folder)
    for weights in options.weights:
        print(f"measuring {weights} ...", flush=True)
        found = in_process(*ready, "compare", options, folder, weights)
        report["lines"] += found.pop("lines")
        for part, values in found.items():
            report[part][weights] = values
        write_report(options, report)


def with_sides(name: str, *arguments) -> dict | None:
    """Calls a function of export_sides, which is not imported by then.

    It must not be imported before `prepare`.
    """
    import export_sides

    return getattr(export_sides, name)(*arguments)


def parser() -> argparse.ArgumentParser:
    """The options; their defaults are what `make bench` runs."""
    result = peers_parser(__doc__, pairs=9)
    add, count = result.add_argument, at_least(1)
    add("--ours", nargs="+", choices=list(OURS), default=list(OURS))
    add("--weights", nargs="+", choices=WEIGHTS, default=WEIGHTS)
    add("--batch-sizes", nargs="+", type=count, default=[1, 8], help="rows")
    add("--lengths", nargs="+", type=count, default=[32, 128], help="tokens")
    return result


def peers_parser(description: str, pairs: int) -> argparse.ArgumentParser:
    """The options of those that measure one model beside PEERS."""
    result = benchmark_parser(description, pairs)
    add = result.add_argument
    add("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    add(
        "--threads",
        type=at_least(1),
        default=available_cores(),
        help="of every side; default: all cores",
    )
    add(
        "--size",
        choices=list(SIZES),
        default="base",
        help="small: 4 layers of 256; tiny: to test the benchmark, its times "
        "mean nothing",
    )
    add(
        "--vocab",
        type=Path,
        help="default: that of KERAS_ALBERT_DATA, or else 3,000 pieces of "
        "Python's reference",
    )
    return result


def default_vocab(folder: Path) -> Path:
    """The released vocabulary where it is, or a small one."""
    data = os.environ.get("KERAS_ALBERT_DATA")
    if data and (Path(data) / VOCAB).is_file():
        return Path(data) / VOCAB
    text = folder / "text.txt"
    write_text(text, copies=1)
    return trained_vocab([text], folder / "vocab")


def prepare(threads: int) -> None:
    """Before any runtime is imported, as each reads its threads once."""
    os.environ.update(
        CPU_ONLY
        | {
            "KERAS_BACKEND": "tensorflow",
            "OMP_NUM_THREADS": str(threads),
            "TF_NUM_INTRAOP_THREADS": str(threads),
        }
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def print_report(report: dict) -> None:
    """Sizes and errors; a row a line; and who is fastest at each point."""
    for what, digits in (("megabytes", ".2f"), ("errors", ".2g")):
        for weights, numbers in report[what].items():
            shown = (f"{name} {x:{digits}}" for name, x in numbers.items())
            print(f"{weights}, {what}: {', '.join(shown)}")
    names = ("weights", "batch", "length", "ours", "peer")
    titles = ("ours ms", "peer ms", "ratio", "quartiles", "cpu", "others")
    print_table(
        names + titles,
        (
            (
                *(line[name] for name in names),
                *(f"{line[name]:.1f}" for name in ("ours_ms", "peer_ms")),
                f"{line['ratio']:.3f}",
                quartiles(line),
                f"{line['cpu_ratio']:.3f}",
                percent(line["others"]),
            )
            for line in report["lines"]
        ),
    )
    for verdict in verdicts(report["lines"]):
        print(verdict)


def verdicts(lines: list[dict]) -> list[str]:
    """Of each point, our fastest side beside the peers: goal, faster than all.

    The fastest is the one with the lowest ratio to the peer it does worst
    beside.
    """
    points = {}
    for line in lines:
        point = line["weights"], line["batch"], line["length"]
        ratios = points.setdefault(point, {})
        worst = ratios.get(line["ours"], (0.0, ""))
        ratios[line["ours"]] = max(worst, (line["ratio"], line["peer"]))
    found = []
    for (weights, batch, length), ratios in points.items():
        ours = min(ratios, key=ratios.get)
        ratio, peer = ratios[ours]
        found.append(
            f"{weights}, {batch} x {length}: {ours} takes {ratio:.2f} of "
            f"{peer}'s time, goal below 1: "
            f"{'reached' if ratio < 1 else 'missed'}"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
