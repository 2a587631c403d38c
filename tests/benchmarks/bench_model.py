"""How fast ALBERT is here and in the peers, call by call in turn.

    make bench        (or: python tests/benchmarks/bench_model.py --help)

ALBERT-base, 8 rows of 128 real tokens, on the CPU: `forward` is tokens to
vectors, `train` a step of masked LM (20 predictions a row) and sentence order
with Adam. On a GPU, in bfloat16, with the paper's 512 tokens:

    python tests/benchmarks/bench_model.py --device gpu --size large-512 \
        --backends jax torch --peers transformers --dtypes bfloat16

Both sides of a line sit in one process, are warmed up, and are
called in turn; the ratio ours / peer is taken in each pair of calls, and its
median and quartiles over the pairs are reported. Below 1 ours is faster. The
peer `ours` is this package once more: how far from 1 it is, is the noise.
`others` is the share of the machine that other processes took meanwhile:
above a few per cent, repeat the line when they have ended. Thread pools of
two backends suffer differently from a busy core. `utilization`, of training, is
that of model-FLOPs: the share of what a large matrix product reaches here in
the same dtype. `memory` is the most that a side had at once on a GPU: weights,
optimizer, activations.
"""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import itertools
import operator
import os
import platform
import sys
import time
from pathlib import Path

from pairing import (
    benchmark_parser,
    in_process,
    percent,
    print_table,
    quartiles,
    write_report,
)
from worker import measure
from workload import MODES, SIZES

from keras_albert.distribution.config import available_cores

# What a line of the report is of.
LINE = ("backend", "mode", "peer", "ours_dtype", "peer_dtype")
# (ours, peer) by the name on the command line.
DTYPES = {
    "float32": ("float32", "float32"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "bfloat16-float32": ("bfloat16", "float32"),
}
BACKENDS = ("tensorflow", "jax", "torch")
# What must be importable, and what `pip install` calls it.
PEERS = {
    "keras_hub": ("keras_hub", "keras-hub"),
    "transformers": ("transformers", "transformers"),
    "ours": ("keras_albert", "-e ."),
}
# transformers is torch: on another backend only when asked for.
DEFAULT_PEERS = {
    "tensorflow": ("keras_hub",),
    "jax": ("keras_hub",),
    "torch": ("keras_hub", "transformers"),
}
CPU_ONLY = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",
    "KERAS_TORCH_DEVICE": "cpu",
}
DEVICES = {
    "cpu": CPU_ONLY,
    # Two libraries share the card: none may take all of its memory. JAX keeps
    # what it once had, 60 of 80 GB with the large size on an H100.
    "gpu": {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    },
}
PACKAGES = (
    "keras",
    "tensorflow-cpu",
    "tensorflow",
    "jax",
    "torch",
    "keras-hub",
    "transformers",
    "onnxruntime",
    "ai-edge-litert",
)


def main(arguments: list[str] | None = None) -> int:
    """Runs it; returns the exit status."""
    options = parser().parse_args(arguments)
    pairs = measurable(options)
    todo = [
        dict(zip(LINE, (backend, mode, peer, *DTYPES[dtype]), strict=True))
        for backend, mode in itertools.product(options.backends, options.modes)
        for there, peer in pairs
        if there == backend
        for dtype in options.dtypes or DTYPES
    ]
    if not todo:
        print("error: nothing is left to measure, see above.", file=sys.stderr)
        return 2
    work = SIZES[options.size]
    about = machine() | {"workload": dataclasses.asdict(work)}
    print(
        f"{work.batch_size} x {work.length} tokens, {work.predictions} "
        f"predictions a row, {work.config.num_hidden_layers} layers of "
        f"{work.config.hidden_size}"
    )
    print(f"{len(todo)} lines of {options.pairs} pairs; see --help for fewer.")
    report, failed = about | {"lines": [], "left_out": []}, []
    start = time.perf_counter()
    groups = itertools.groupby(todo, operator.itemgetter("backend", "mode"))
    for (backend, mode), some in groups:
        print(f"{backend}, {mode} ...", flush=True)
        try:
            found = in_process(
                *(use_backend, (backend, options.device)),
                *(measure, options, [*some]),
            )
        except Exception as error:  # also of a process that was killed
            print(f"error: {error}", file=sys.stderr)
            failed.append(f"{backend}, {mode}")
            continue
        for part, values in found.items():
            report[part] += values
        write_report(options, report)
    print_lines(report["lines"])
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes")
    if failed:
        print(f"error: failed on {'; '.join(failed)}.", file=sys.stderr)
    return int(bool(failed))


def use_backend(setting: tuple[str, str]) -> None:
    """Chooses the backend and the device before Keras is imported."""
    backend, device = setting
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.update(DEVICES[device] | {"KERAS_BACKEND": backend})


def parser() -> argparse.ArgumentParser:
    """The options; their defaults are what `make bench` runs."""
    result = benchmark_parser(__doc__, pairs=8)
    add = result.add_argument
    add("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    add(
        "--peers",
        nargs="+",
        choices=list(PEERS),
        help="default: keras_hub, and on torch transformers",
    )
    add("--modes", nargs="+", choices=MODES, default=MODES)
    add(
        "--dtypes",
        nargs="+",
        choices=list(DTYPES),
        help="ours-peer where they differ; default: all, but for bfloat16 "
        "where the processor is too slow at it",
    )
    add(
        "--size",
        choices=list(SIZES),
        default="base",
        help="base: 8 x 128 tokens; those with -512: 32 x 512; tiny: to test "
        "the benchmark, its times mean nothing",
    )
    add("--device", choices=list(DEVICES), default="cpu")
    return result


def installed(module: str, package: str, what: str) -> bool:
    """Whether a module is there; says so if it is not."""
    if importlib.util.find_spec(module):
        return True
    print(
        f"{what} is not installed, its lines are left out; "
        f"pip install {package}",
        flush=True,
    )
    return False


def measurable(options: argparse.Namespace) -> list[tuple[str, str]]:
    """(backend, peer) of all that is there."""
    return [
        (backend, peer)
        for backend in options.backends
        if installed(backend, backend, f"the {backend} backend")
        for peer in options.peers or DEFAULT_PEERS[backend]
        if installed(*PEERS[peer], f"{backend}: {peer}")
    ]


def machine() -> dict:
    """Cores, processor and versions, which are also printed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    # Zen 3 and older, Skylake and older have none: bfloat16 is emulated.
    units = {"amx_bf16", "avx512_bf16", "bf16"} & {*cpuinfo("flags").split()}
    about = {
        "cores": available_cores(),
        "processor": cpuinfo("model name") or platform.machine(),
        "bfloat16_units": sorted(units),
        "versions": versions,
    }
    print(
        f"{about['cores']} cores of {about['processor']}, "
        f"{', '.join(sorted(units)) or 'no units'} for bfloat16"
    )
    print(", ".join(f"{k} {v}" for k, v in versions.items()))
    return about


def cpuinfo(field: str) -> str:
    """What Linux says of the first core; "" elsewhere."""
    file = Path("/proc/cpuinfo")
    for line in file.read_text().splitlines() if file.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def print_lines(found: list[dict]) -> None:
    """A row a line; then both sides: how fast, how much of the device."""
    print_table(
        (*LINE, "ours ms", "peer ms", "ratio", "quartiles", "others"),
        (
            (
                *(line[name] for name in LINE),
                *(f"{line[name]:.1f}" for name in ("ours_ms", "peer_ms")),
                f"{line['ratio']:.3f}",
                quartiles(line),
                percent(line["others"]),
            )
            for line in found
        ),
    )
    print_table(
        ("backend", "mode", "side", "tokens/s", "utilization", "GiB of memory"),
        (
            (
                line["backend"],
                line["mode"],
                side,
                f"{line[f'{role}_tokens_per_second']:,.0f}",
                percent(line[f"{role}_utilization"], 1),
                (memory := line[f"{role}_memory"]) and f"{memory / 2**30:.2f}",
            )
            for line in found
            for role, side in (("ours", "ours"), ("peer", line["peer"]))
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
