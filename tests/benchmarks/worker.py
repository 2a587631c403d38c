"""Measures the lines of one backend and mode, in a process of bench_model.py.

Each line is {"backend", "mode", "peer", "ours_dtype", "peer_dtype"}.
"""

import functools
import gc

from pairing import CpuMeter, paired_times, seconds, warm_up
from workload import SIZES, TRAIN, check_same_work

import keras_albert as ka

# A step of ALBERT-base would take minutes. Measured: 40 on torch on Zen 3.
TOO_SLOW = 3
say = functools.partial(print, flush=True)


def measure(options, lines: list[dict]) -> dict[str, list[dict]]:
    """Those lines with their times, and those that would take too long."""
    backend, mode = lines[0]["backend"], lines[0]["mode"]
    if backend == "torch" or any(x["peer"] == "transformers" for x in lines):
        import torch  # must precede TensorFlow in a process
    from sides import (  # imports Keras
        PeakMemory,
        device_name,
        make_side,
        matrix_product,
    )

    from keras_albert.pretraining.flops import flops_per_example
    from keras_albert.training.speed import matrix_product_peak

    device, left_out = device_name(), []
    sees_gpu = {backend: device != "cpu"}
    if any(line["peer"] == "transformers" for line in lines):
        sees_gpu["torch"] = torch.cuda.is_available()
    blind = [name for name, sees in sees_gpu.items() if not sees]
    if options.device == "gpu" and blind:
        raise ka.AlbertError(
            f"{blind[0]} sees no GPU. Install its build for GPUs, or leave "
            "--device=gpu out."
        )
    if not options.dtypes:
        lines, left_out = without_emulated_bfloat16(lines, matrix_product)
    workload = SIZES[options.size]
    row = ka.ExampleConfig(
        sequence_length=workload.length, max_predictions=workload.predictions
    )
    flops = workload.batch_size * flops_per_example(workload.config, row)
    peak = functools.cache(matrix_product_peak)

    @functools.cache
    def side(role, name, dtype):
        """Something to time, and the memory that it takes."""
        say(f"  {name}, {mode}, {dtype}: making and warming up ...")
        memory = PeakMemory("torch" if name == "transformers" else backend)
        made = make_side(name, mode, dtype, workload)
        warm_up(made.call)
        return made, memory.read()

    results = []
    for number, line in enumerate(lines, 1):
        both = {
            "ours": side("ours", "ours", line["ours_dtype"]),
            "peer": side("peer", line["peer"], line["peer_dtype"]),
        }
        ours, peer = (made for made, _ in both.values())
        check_same_work(ours.facts, peer.facts)
        gc.collect()
        meter = CpuMeter()
        times = paired_times(ours.call, peer.call, options.pairs)
        result = line | times.summary() | {"others": meter.others()}
        say(
            f"  {number}/{len(lines)} {mode} vs {line['peer']}, "
            f"{line['ours_dtype']} vs {line['peer_dtype']}: "
            f"{result['ratio']:.3f} ({meter.seconds():.0f} s)"
        )
        for role, (made, memory) in both.items():
            rate, utilization = 1000 / result[f"{role}_ms"], None
            if mode == TRAIN:
                utilization = flops * rate / peak(line[f"{role}_dtype"])
            tokens = workload.batch_size * workload.length
            result |= {
                f"{role}_tokens_per_second": tokens * rate,
                f"{role}_utilization": utilization,
                f"{role}_memory": memory,
                f"{role}_how": made.how,
                f"{role}_seconds": getattr(times, role),
            }
        results.append(result | {"device": device})
    return {"lines": results, "left_out": left_out}


def without_emulated_bfloat16(
    lines: list[dict], matrix_product
) -> tuple[list[dict], list[dict]]:
    """Lines to measure, and those whose bfloat16 this processor emulates."""

    @functools.cache
    def emulated(name):
        quickest = []
        for dtype in ("bfloat16", "float32"):
            call = matrix_product(name, dtype)
            call()  # compiles
            quickest.append(min(seconds(call) for _ in range(3)))
        slowdown = quickest[0] / quickest[1]
        if slowdown > TOO_SLOW:
            say(
                f"  {name}: a product in bfloat16 takes {slowdown:.0f} times "
                "as long as in float32 on this processor. Its bfloat16 lines "
                "are left out; --dtypes measures them all the same"
            )
        return slowdown > TOO_SLOW

    kept, left_out = [], []
    for line in lines:
        sides = ("ours", "ours_dtype"), (line["peer"], "peer_dtype")
        slow = any(
            line[dtype] == "bfloat16" and emulated(name)
            for name, dtype in sides
        )
        (left_out if slow else kept).append(line)
    return kept, left_out
