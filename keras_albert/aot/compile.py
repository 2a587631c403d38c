"""Compiles a training step for a TPU slice without a TPU, to see if it fits.

The compilation itself is in `step.py`, which runs in a process of its own.
"""

import dataclasses
import functools
import importlib.metadata
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from keras_albert.aot.config import CompileRun
from keras_albert.aot.topologies import Topology, topology_of
from keras_albert.errors import AlbertError, check_installed, check_worker
from keras_albert.storage import read_json

GIB = 2**30
# Most compilations of a search; for a large model each takes minutes.
MOST_COMPILATIONS = 8
# Bytes of state for each parameter: weight and two moments of LAMB, float32.
STATE_BYTES = 12
# Environment of the process that compiles. It uses libtpu only as a compiler:
# JAX must not look for a TPU, and several processes may load libtpu at once.
# The first two variables only silence warnings.
_ENVIRONMENT = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    # JAX can write such a program to its compilation cache but not read it.
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "KERAS_BACKEND": "jax",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The results of compiling a step."""

    parameters: int  # number of parameters of the model
    # FLOP of all devices in an optimizer step; see `flops_per_example`
    flops: int
    fits: bool  # whether the step fits into the memory of a device
    # peak memory of a device in bytes; None if the compiler does not say
    memory: int | None
    # for each kind of collective operation how often a device executes it in a
    # part of a step, and the bytes that it exchanges
    exchanged: dict[str, tuple[int, int]]
    seconds: float  # time of the compilation


def compile_for_slice(run: CompileRun) -> None:
    """Compiles a step, prints the results, and searches the largest batch.

    Raises AlbertError if the step does not fit (after everything is printed),
    options contradict each other, or libtpu is not installed.
    """
    topology = topology_of(run.topology)
    rows = rows_of_replica(run, topology)
    check_libtpu()
    first = compiled(run)
    for line in lines_of(run, topology, first):
        print(line, flush=True)
    largest = _search(run, topology, rows, first) if run.search else None
    if not first.fits:
        raise AlbertError(
            f"the step does not fit {slices_name(run)}: it needs "
            f"{_needed(topology, first)}. {_remedy(run, topology, largest)}"
        )


def rows_of_replica(run: CompileRun, topology: Topology) -> int:
    """Rows of a compiled part of a batch for each replica of the model.

    Raises AlbertError if devices or batch cannot be divided into equal parts.
    """
    devices = topology.devices * run.slices
    if devices % run.model_parallel:
        raise AlbertError(
            f"`model_parallel` must divide the {devices} devices of "
            f"{slices_name(run)}. Received: {run.model_parallel}."
        )
    replicas = devices // run.model_parallel
    rows = run.batch_size // run.accumulate
    if rows % replicas:
        raise AlbertError(
            "`batch_size` / `accumulate` must be a multiple of the replicas, "
            f"{replicas} on {slices_name(run)}. Received: {run.batch_size} / "
            f"{run.accumulate} = {rows}."
        )
    return rows // replicas


def slices_name(run: CompileRun) -> str:
    """The name of the slices, such as "v5e-16" or "2 x v5e-16"."""
    times = f"{run.slices} x " if run.slices > 1 else ""
    return times + run.topology


def check_libtpu() -> None:
    """Raises AlbertError unless JAX and its compiler for TPUs are installed."""
    # They are not imported here, as that takes seconds.
    extra = "'keras-albert[tpu-compile]'"
    check_installed("jax libtpu", extra, "compiling for a TPU")


def compiled(run: CompileRun) -> Compiled:
    """Compiles a step in a process of its own; see `step.py`.

    Raises AlbertError if the process was killed, or the config does not fit.
    """
    # Settings for JAX and XLA could change the program: they are not passed on.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "XLA_", "LIBTPU_"))
    }
    with tempfile.TemporaryDirectory() as folder:
        outcome = Path(folder) / "outcome.json"
        worker = subprocess.run(
            [sys.executable, "-m", "keras_albert.aot.step"] + [str(outcome)],
            input=pickle.dumps(run),
            env=inherited | _ENVIRONMENT,
            capture_output=True,
        )
        content = read_json(outcome) if worker.returncode == 0 else {}
    said = worker.stderr.decode(errors="replace")
    check_worker("the process that compiles", worker.returncode, said)
    if "error" in content:
        raise AlbertError(content["error"])
    exchanged = {
        kind: tuple(each) for kind, each in content.pop("exchanged").items()
    }
    return Compiled(**content, exchanged=exchanged)


def lines_of(run: CompileRun, topology: Topology, step: Compiled) -> list[str]:
    """The lines that describe the results."""
    device = _device_name(topology)
    chips = topology.chips * run.slices
    rows = rows_of_replica(run, topology)
    parallel = run.model_parallel
    whose = device if parallel == 1 else f"{parallel} {device}s"
    peak = chips * topology.generation.peak
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("jax", "libtpu")
    )
    lines = [
        f"{run.config or run.variant}: {step.parameters:,} parameters, "
        f"{run.precision}, {run.loop}" + ", remat" * run.remat,
        f"{slices_name(run)}: {chips} chips, a batch of {run.batch_size:,} x "
        f"{run.examples.sequence_length} tokens"
        + (f" in {run.accumulate} parts" if run.accumulate > 1 else "")
        + f", {rows:,} rows to a {whose}",
        f"memory:    {_needed(topology, step)}: "
        + ("fits" if step.fits else "DOES NOT FIT"),
        f"work:      {step.flops / 1e12:,.4g} TFLOP a step, "
        f"{step.flops / peak:.3g} s at the chips' bfloat16 peak",
    ]
    parts = " of each part" if run.accumulate > 1 else ""
    for kind, (count, size) in sorted(step.exchanged.items()):
        lines.append(
            f"exchanged: {size / 1e6:,.1f} MB a {device} in {count} {kind}"
            f"{'s' if count > 1 else ''}{parts}"
        )
    lines.append(
        f"compiled for, not run on, a TPU: {step.seconds:.0f} s, {versions}"
    )
    return lines


def _device_name(topology: Topology) -> str:
    return "core" if topology.generation.devices > 1 else "chip"


def _needed(topology: Topology, step: Compiled) -> str:
    needed = "more than"
    if step.memory is not None:
        needed = f"{step.memory / GIB:.3g} of"
    limit = f"{topology.device_memory / GIB:g} GiB"
    return f"{needed} the {limit} of a {_device_name(topology)}"


def _is_valid(run: CompileRun, topology: Topology, **changes: int) -> bool:
    """Whether the devices and the batch can be divided after some changes."""
    try:
        rows_of_replica(dataclasses.replace(run, **changes), topology)
    except AlbertError:
        return False
    return True


def _remedy(run: CompileRun, topology: Topology, largest: int | None) -> str:
    options = []
    if run.loop != "scan" or not run.remat:
        options.append("--loop scan --remat")
    if run.precision == "float32":
        options.append("--precision mixed_bfloat16")
    accumulate, model_parallel = 2 * run.accumulate, 2 * run.model_parallel
    if _is_valid(run, topology, accumulate=accumulate):
        options.append(f"--accumulate {accumulate}")
    options.append(
        f"--batch-size {largest}" if largest else "a smaller --batch-size"
    )
    if _is_valid(run, topology, model_parallel=model_parallel):
        options.append(f"--model-parallel {model_parallel}")
    return f"Give {', '.join(options)}, or a larger slice."


def _search(
    run: CompileRun, topology: Topology, rows: int, first: Compiled
) -> int | None:
    """Prints each trial; returns the largest batch size, None if none fits."""

    def with_rows(rows_now: int) -> CompileRun:
        return dataclasses.replace(
            run, batch_size=run.batch_size // rows * rows_now
        )

    def fits(rows_now: int) -> bool:
        if rows_now == rows:
            return first.fits
        changed = with_rows(rows_now)
        step = compiled(changed)
        print(
            f"  {changed.batch_size:,}: {_needed(topology, step)}, "
            + ("fits" if step.fits else "does not fit"),
            flush=True,
        )
        return step.fits

    good, bad = largest_that_fits(
        functools.cache(fits), guess_rows(run, topology, rows, first)
    )
    if first.fits:
        good = max(good, rows)
    if not good:
        print("no batch that was tried fits")
        return None
    largest = with_rows(good).batch_size
    beyond = "none larger was tried"
    if bad:
        beyond = f"{with_rows(bad).batch_size:,} does not"
    print(f"largest batch that fits: {largest:,} ({beyond})")
    return largest


def guess_rows(
    run: CompileRun, topology: Topology, rows: int, step: Compiled
) -> int:
    """Estimates how many rows fit.

    All memory except that of the state is taken to be proportional to the rows.
    """
    state = STATE_BYTES * step.parameters // run.model_parallel
    if step.memory is None or step.memory <= state:
        return max(rows // 2, 1)
    grows = step.memory - state
    return max(int(rows * (topology.device_memory - state) / grows), 1)


def largest_that_fits(
    fits: Callable[[int], bool], guess: int
) -> tuple[int, int | None]:
    """Searches the largest number that fits among 1, 2, 3, 4, 6, 8, 12, ...

    The search moves away from the guess in growing strides until one number
    fits and another does not, and then bisects. It assumes that all numbers
    below one that fits also fit, and calls `fits` at most MOST_COMPILATIONS
    times. Returns the largest number that fits, or 0 if none does; and the
    smallest one that does not, or None if all do.
    """
    good, bad, stride = -1, None, 1  # indices in the sequence
    place = 0
    while size_at(place + 1) <= guess:
        place += 1
    for _ in range(MOST_COMPILATIONS):
        if fits(size_at(place)):
            good = place
        else:
            bad = place
        if bad is None:
            place, stride = good + stride, 2 * stride
        elif bad == good + 1:
            break
        elif good < 0:
            place, stride = max(bad - stride, 0), 2 * stride
        else:
            place = (good + bad) // 2
    return (
        size_at(good) if good >= 0 else 0,
        None if bad is None else size_at(bad),
    )


def size_at(place: int) -> int:
    """The number at an index of the sequence 1, 2, 3, 4, 6, 8, 12, 16, ..."""
    half, odd = divmod(place, 2)
    return 2 ** (half + 1) if odd else max(3 * 2**half // 2, 1)
