"""Measures the lines of one backend; started by bench_model.py.

    python tests/benchmarks/worker.py TASK.json RESULT.json

The task is {"size", "pairs", "probe", "device", "lines": [{"mode", "peer",
"ours_dtype", "peer_dtype"}, ...]}; the result is {"lines", "left_out"}: those
lines with their times, written anew after each, so that an interrupted run
keeps what it has, and those that would take too long.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path

from pairing import paired_times, seconds, warm_up
from workload import SIZES, TRAIN, check_same_work

from keras_albert.errors import AlbertError
from keras_albert.pretraining.config import ExampleConfig

# A step of ALBERT-base would take minutes. Measured: 40 on torch on Zen 3.
TOO_SLOW = 3


def main(task_file: str, result_file: str) -> None:
    """Measures line after line and writes the result."""
    task = json.loads(Path(task_file).read_text())
    if os.environ["KERAS_BACKEND"] == "torch" or any(
        line["peer"] == "transformers" for line in task["lines"]
    ):
        import torch  # noqa: F401  (must precede TensorFlow in a process)
    from sides import (  # imports Keras
        PeakMemory,
        device_name,
        make_side,
        matrix_product,
    )

    from keras_albert.pretraining.flops import flops_per_example
    from keras_albert.training.speed import matrix_product_peak

    device = device_name()
    if task["device"] == "gpu" and device == "cpu":
        raise AlbertError(
            f"{os.environ['KERAS_BACKEND']} sees no GPU. Install its build "
            "for GPUs, or leave --device=gpu out."
        )
    lines, left_out = task["lines"], []
    if task["probe"]:
        lines, left_out = without_emulated_bfloat16(lines, matrix_product)
    workload = SIZES[task["size"]]
    row = ExampleConfig(
        sequence_length=workload.length, max_predictions=workload.predictions
    )
    training = workload.batch_size * flops_per_example(workload.config, row)
    ready, peaks, results = {}, {}, []

    def write():
        Path(result_file).write_text(
            json.dumps({"lines": results, "left_out": left_out})
        )

    def side(role, name, mode, dtype):
        key = (role, name, mode, dtype)
        if key not in ready:
            say(f"  {name}, {mode}, {dtype}: making and warming up ...")
            backend = os.environ["KERAS_BACKEND"]
            memory = PeakMemory("torch" if name == "transformers" else backend)
            made = make_side(name, mode, dtype, workload)
            warm_up(made.call)
            ready[key] = made, memory.read()
        return ready[key]

    def speed(role, milliseconds, dtype, memory):
        """What the table of sides says."""
        rate, utilization = 1000 / milliseconds, None
        if mode == TRAIN:
            if dtype not in peaks:
                peaks[dtype] = matrix_product_peak(dtype)
            utilization = training * rate / peaks[dtype]
        tokens = workload.batch_size * workload.length
        return {
            f"{role}_tokens_per_second": tokens * rate,
            f"{role}_utilization": utilization,
            f"{role}_memory": memory,
        }

    write()
    mode = None
    for number, line in enumerate(lines, 1):
        if line["mode"] != mode:  # lines come mode by mode: free the models
            mode = line["mode"]
            ready.clear()
        ours, memory = side("ours", "ours", mode, line["ours_dtype"])
        peer, peer_memory = side("peer", line["peer"], mode, line["peer_dtype"])
        check_same_work(ours.facts, peer.facts)
        gc.collect()
        meter = CpuMeter()
        times = paired_times(ours.call, peer.call, task["pairs"])
        result = line | times.summary() | {"others": meter.others()}
        say(
            f"  {number}/{len(lines)} {mode} vs {line['peer']}, "
            f"{line['ours_dtype']} vs {line['peer_dtype']}: "
            f"{result['ratio']:.3f} ({meter.seconds():.0f} s)"
        )
        result |= speed("ours", result["ours_ms"], line["ours_dtype"], memory)
        result |= speed(
            "peer", result["peer_ms"], line["peer_dtype"], peer_memory
        )
        result |= {
            "device": device,
            "ours_how": ours.how,
            "peer_how": peer.how,
            "ours_seconds": times.ours,
            "peer_seconds": times.peer,
        }
        results.append(result)
        write()


def without_emulated_bfloat16(
    lines: list[dict], matrix_product
) -> tuple[list[dict], list[dict]]:
    """Lines to measure, and those whose bfloat16 this processor emulates."""
    slowdown = {}

    def emulated(name, dtype):
        if dtype != "bfloat16":
            return False
        if name not in slowdown:
            quickest = {}
            for kind in ("float32", "bfloat16"):
                call = matrix_product(name, kind)
                call()  # compiles
                quickest[kind] = min(seconds(call) for _ in range(3))
            slowdown[name] = quickest["bfloat16"] / quickest["float32"]
            if slowdown[name] > TOO_SLOW:
                say(
                    f"  {name}: a product in bfloat16 takes "
                    f"{slowdown[name]:.0f} times as long as in float32 on "
                    "this processor. Its bfloat16 lines are left out; "
                    "--dtypes measures them all the same"
                )
        return slowdown[name] > TOO_SLOW

    kept, left_out = [], []
    for line in lines:
        slow = emulated("ours", line["ours_dtype"]) or emulated(
            line["peer"], line["peer_dtype"]
        )
        (left_out if slow else kept).append(line)
    return kept, left_out


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


def say(text: str) -> None:
    """Progress, at once."""
    print(text, flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AlbertError as error:
        sys.exit(f"error: {error}")
