"""How long fine-tuning and prediction take on SST-2, here and in the peers.

    make bench        (or: python tests/benchmarks/bench_finetune.py --help)

An epoch over a sample of SST-2's training set, then an evaluation of its dev
set, from strings to weights and logits: tokenizing is in the time. The sample
has the lengths of the whole, for which the static lengths are chosen, too.

Ours pads batches to a few static lengths, as `keras-albert finetune` does.
KerasHub is its AlbertTextClassifier with its default preprocessor (512 tokens)
on the same backend. transformers is its torch model with batches padded to
their own longest text, in random order in training and as they come in
evaluation, which is what its Trainer does. All have the same weights, texts,
batch size and AdamW; that they give the same logits before training is checked
first.

Sides are called in turn, and the ratio peer / ours is taken in each pair of
calls: above 1 ours is faster. `cpu ratio` is the same for seconds of the
processor, which other work disturbs less. The first evaluation and epoch, in
which backends compile (one length there, up to seven here), come before and
are `first s`. `tokens/s` are real tokens, `padding` is the share of all tokens
that is none.

The data are what --data or KERAS_ALBERT_DATA names: glue/SST-2/train.tsv and
dev.tsv, vocab/30k-clean.model. The default model is small, so that a backend
takes about a quarter of an hour on two cores. The work that padding makes is
that of any size; what is done once a batch weighs more than in a large one.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from bench_examples import Call, Stopwatch, peer_beside_ours
from bench_model import BACKENDS, machine, measurable, use_backend
from pairing import (
    CpuMeter,
    at_least,
    benchmark_parser,
    in_process,
    in_turn,
    percent,
    print_table,
    quartiles,
    write_report,
)

import keras_albert as ka

GLUE_TASK = "SST-2"
VOCAB = Path("vocab", "30k-clean.model")
# Of one epoch and one evaluation: how many times as fast this package is to be.
GOALS = {"keras_hub": 5.0, "transformers": 1.2}
SIZES = {
    "small": ka.VARIANTS["base_v2"].replace(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    ),
    "base": ka.VARIANTS["base_v2"],
    "tiny": ka.VARIANTS["base_v2"].replace(
        embedding_size=8,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs it; returns the exit status."""
    options = parser().parse_args(arguments)
    if options.data is None:
        print(
            f"fine-tuning is left out: it needs {GLUE_TASK} and the released "
            "vocabulary; name their folder with --data or KERAS_ALBERT_DATA, "
            "see --help"
        )
        return 0
    report = machine() | {
        "size": options.size,
        "batch_size": options.batch_size,
        "lines": [],
    }
    try:
        for backend, peer in measurable(options):
            print(f"{backend} beside {peer} ...", flush=True)
            report["lines"] += in_process(
                use_backend, (backend, "cpu"), compare, peer, options
            )
            write_report(options, report)
    except ka.AlbertError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not report["lines"]:
        print("error: nothing is left to measure, see above.", file=sys.stderr)
        return 2
    print_lines(report["lines"])
    return 0


def parser() -> argparse.ArgumentParser:
    """The options; their defaults are what `make bench` runs."""
    result = benchmark_parser(__doc__, pairs=3)
    add = result.add_argument
    add("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    add(
        "--peers",
        nargs="+",
        choices=list(GOALS),
        help="default: keras_hub, and on torch transformers",
    )
    add(
        "--data",
        type=Path,
        default=os.environ.get("KERAS_ALBERT_DATA"),
        help="folder with glue/SST-2 and vocab; default: KERAS_ALBERT_DATA",
    )
    add(
        "--size",
        choices=list(SIZES),
        default="small",
        help="small: 4 layers of 256; base: some hours, and more than 24 GB "
        "for KerasHub; tiny: to test the benchmark, its times mean nothing",
    )
    add("--train-batches", type=at_least(1), default=32, help="of an epoch")
    add(
        "--dev-batches",
        type=at_least(1),
        default=28,
        help="of an evaluation; the default is all 872 examples",
    )
    add("--batch-size", type=at_least(1), default=32, help="examples")
    return result


def compare(peer_name: str, options: argparse.Namespace) -> list[dict]:
    """A line for each of `modes`: both sides in turn, in this process."""
    # `first` is to have all that is compiled.
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    if os.environ["KERAS_BACKEND"] == "torch" or peer_name == "transformers":
        import torch  # noqa: F401  (must precede TensorFlow in a process)
    import finetune_sides as work

    training, dev, both = work.make_sides(peer_name, options)
    logits, losses, first = {}, {}, {}
    for name, side in both.items():
        logits[name], evaluation = timed(side.predict, dev)
        losses[name], epoch = timed(side.train, training)
        first[name] = modes(epoch, evaluation)
    difference = work.check_same_predictions(**logits)
    work.check_same_training(both, losses)
    print(
        f"  same predictions ({logits['ours'].argmax(-1).mean():.0%} of class "
        f"1), logits to {difference:.1g}; mean loss of the first epoch "
        f"{losses['ours']:.4f} and {losses['peer']:.4f}",
        flush=True,
    )

    def call(side):
        _, epoch = timed(side.train, training)
        _, evaluation = timed(side.predict, dev)
        return modes(epoch, evaluation)

    meter = CpuMeter()
    sides = {name: functools.partial(call, x) for name, x in both.items()}
    calls = in_turn(sides, options.pairs)
    shared = {
        "backend": os.environ["KERAS_BACKEND"],
        "peer": peer_name,
        "pairs": options.pairs,
        "others": meter.others(),
        "logits_difference": difference,
        "first_losses": losses,
    }
    examples = modes(len(training), len(dev))
    real = modes(training.tokens, dev.tokens)
    return [
        shared
        | {"mode": mode}
        | line(
            {side: [each[mode] for each in calls[side]] for side in calls},
            {side: first[side][mode].seconds for side in first},
            examples[mode],
            real[mode],
        )
        for mode in examples
    ]


def timed(step: Callable, examples) -> tuple[object, Call]:
    """What a step of a side returns, and how long it took."""
    watch = Stopwatch()
    found, tokens = step(examples)
    return found, watch.call(tokens)


def modes(epoch, evaluation) -> dict:
    """Two calls, or two counts, with their sum."""
    return {
        "epoch": epoch,
        "evaluation": evaluation,
        "both": epoch + evaluation,
    }


def line(
    calls: dict[str, list[Call]],
    first: dict[str, float],
    examples: int,
    real_tokens: int,
) -> dict:
    """What is to be said of the calls of both sides.

    Two pairs of calls that take 3 and 1, 5 and 1 seconds: a ratio of 4.
    """
    result = peer_beside_ours(calls) | {"sides": {}}
    for side, mine in calls.items():
        seconds = statistics.median(call.seconds for call in mine)
        tokens = statistics.mean(call.tokens for call in mine)
        result["sides"][side] = {
            "examples_per_second": examples / seconds,
            "tokens_per_second": real_tokens / seconds,
            "padding": 1 - real_tokens / tokens,
            "first_seconds": first[side],
            "calls": [dataclasses.asdict(call) for call in mine],
        }
    return result


def print_lines(lines: list[dict]) -> None:
    """Two rows a line, of our side and of the peer's; then the goals."""
    rows = []
    for line in lines:
        compared = (
            f"{line['ratio']:.2f}",
            quartiles(line, 2),
            f"{line['cpu_ratio']:.2f}",
            percent(line["others"]),
        )
        for side, ratios in (("ours", ("",) * 4), ("peer", compared)):
            own = line["sides"][side]
            rows.append(
                (
                    line["backend"],
                    line["mode"],
                    line["peer"] if side == "peer" else side,
                    f"{own['examples_per_second']:.1f}",
                    f"{own['tokens_per_second']:,.0f}",
                    percent(own["padding"]),
                    f"{own['first_seconds']:.1f}",
                    *ratios,
                )
            )
    titles = ("backend", "mode", "side", "examples/s", "tokens/s", "padding")
    titles += ("first s", "ratio", "quartiles", "cpu ratio", "others")
    print_table(titles, rows)
    for line in lines:
        if line["mode"] == "both":
            goal = GOALS[line["peer"]]
            verdict = "reached" if line["ratio"] >= goal else "missed"
            print(
                f"{line['backend']}, epoch and evaluation: {line['ratio']:.2f} "
                f"x {line['peer']}, goal {goal:g}: {verdict}"
            )


if __name__ == "__main__":
    sys.exit(main())
