"""The command `check`: compares an exported model with its source."""

import dataclasses
import time
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_albert.distribution.backend import leave_gpu_to_backend
from keras_albert.errors import AlbertError
from keras_albert.exports.check_texts import (
    check_texts,
    compare_texts,
    text_lines,
)
from keras_albert.exports.config import CheckRun
from keras_albert.exports.load import (
    Run,
    export_settings,
    files_of,
    load_exported,
    share_of_equal,
)
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import print_skipped
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.task_file import load_with_task
from keras_albert.text.special_tokens import CLS_ID, SEP_ID
from keras_albert.text.unknown import check_readable

# Largest difference from the model's outputs, by the data type of the weights:
# other kernels round float32 differently, float16 has 11 significant bits and
# bfloat16 8. It is multiplied by the standard deviation of the outputs if that
# is above 1.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
# int8 has no such bound, and only another or a broken model is refused. The
# root mean square of the differences, in standard deviations of the outputs,
# was 0.14 and 0.24 for int8, and is about 1.4 (the square root of 2) for
# unrelated outputs. int8 kept 99.9 % of the predictions
# (tests/benchmarks/README.md).
LARGEST_ERROR, LEAST_SAME = 0.5, 0.9
NEGLIGIBLE = -1e4  # log-probabilities of masked positions are below it
BATCH_SIZES, LENGTHS = (1, 8), (32, 128)
# Calls that are timed for a latency: at least LEAST_CALLS, then until SECONDS
# have passed, and at most MOST_CALLS; WARM_UP calls come before.
MOST_CALLS, LEAST_CALLS, SECONDS = 100, 10, 10.0
WARM_UP = 3


def check(run: CheckRun) -> dict:
    """Prints and returns differences, sizes and latencies.

    Raises AlbertError if outputs differ by more than TOLERANCES; or if they
    differ by more than LARGEST_ERROR and fewer predictions than LEAST_SAME are
    equal.
    """
    leave_gpu_to_backend()
    exported = load_exported(run.export, run.threads)
    predictor = _original(run.model, exported)
    if exported.settings() != predictor.settings():
        raise AlbertError(
            f"{run.export} was not made from {run.model}: their tasks, labels "
            "or lengths differ. Name the model that was exported."
        )
    rule = exported.model.early_exit
    if rule is not None:  # the graph stops early: so shall the model
        predictor = dataclasses.replace(predictor, early_exit=rule)
    for table in predictor.parts(run.data, run.skip_bad, run.rows):
        print_skipped(table)
        if len(table):  # the first part with a row that can be read
            break
    table = table.first(run.rows)  # the part is a whole file of SQuAD's JSON
    features = predictor.features(table)
    found = predictor.unreadable(features, table)
    check_readable(*found, run.data, run.any_text)
    outputs = [each.outputs(features) for each in (predictor, exported)]
    answers = [
        each.decode(found, features)
        for each, found in zip((predictor, exported), outputs, strict=True)
    ]
    texts = compare_texts(exported, table, answers[1])
    largest, error = _differences(*outputs)
    report = {
        **export_settings(run.export),
        "rows": len(table),
        "same_predictions": share_of_equal(*answers),
        "same_as_texts": texts,
        "largest_difference": largest,
        "error": error,
        "megabytes": {
            file.name: file.stat().st_size / 1e6
            for file in files_of(run.export)
        },
        "latencies": [
            _latency(exported.model.run, batch, length, features.choices)
            for batch in BATCH_SIZES
            for length in LENGTHS
            if length <= predictor.model.config.max_position_embeddings
        ],
    }
    print("\n".join(_lines(report)))
    limit = TOLERANCES.get(report["weights"], np.inf)
    limit *= max(1.0, _spread(outputs[0]))
    if not largest <= limit:  # also true if `largest` is NaN
        raise AlbertError(
            f"{run.export}: an output differs from the model's by "
            f"{largest:.2g}, more than {limit:g}. Check that {run.model} is "
            "the model that was exported, and export it again."
        )
    if error > LARGEST_ERROR and report["same_predictions"] < LEAST_SAME:
        raise AlbertError(
            f"{run.export}: {report['same_predictions']:.0%} of the "
            f"predictions are the model's, less than {LEAST_SAME:.0%}, and "
            f"outputs differ by {error:.2g} of their standard deviation. Check "
            f"that {run.model} is the model that was exported, and export it "
            "again, in more bits."
        )
    check_texts(texts, run.export)
    return report


def _original(source: str, exported: Predictor) -> Predictor:
    """The source model, with settings of the export where it has none."""
    loaded = load_with_task(source)
    settings = {}
    if loaded.task["task"] not in ALL_TASKS:
        settings = {
            name: getattr(exported, name)
            for name in ("task", "labels", "lengths", "columns", "reading")
        }
    predictor = Predictor.of(loaded, **settings)
    return dataclasses.replace(predictor, early_exit=None)


def _differences(expected: Sequence, found: Sequence) -> tuple[float, float]:
    """The largest difference of floating-point outputs, and their RMS.

    The root mean square is in standard deviations of the expected outputs. Both
    are NaN if an output is NaN.
    """
    # Masked positions may have any value below NEGLIGIBLE.
    differences = np.concatenate(
        [
            (np.maximum(a, NEGLIGIBLE) - np.maximum(b, NEGLIGIBLE))[
                (a > NEGLIGIBLE) | ~(b <= NEGLIGIBLE)
            ]
            for one, other in zip(expected, found, strict=True)
            for a, b in _compared(one, other)
        ]
    )
    error = np.sqrt(np.mean(differences**2)) / max(_spread(expected), 1e-9)
    return float(np.abs(differences).max()), float(error)


def _compared(one, other) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of float64 arrays that should be equal, from one example."""
    ends = "end_top_log_probs"
    if isinstance(one, dict) and ends in one:
        # Starts of almost equal scores may come in another order; compare the
        # ends of equal starts only.
        same = one["start_top_index"] == other["start_top_index"]
        one, other = ({**each, ends: each[ends][same]} for each in (one, other))
    for a, b in zip(
        keras.tree.flatten(one), keras.tree.flatten(other), strict=True
    ):
        if np.issubdtype(np.asarray(a).dtype, np.floating):
            yield np.asarray(a, "float64"), np.asarray(b, "float64")


def _spread(outputs: Sequence) -> float:
    """The standard deviation of all floating-point outputs."""
    numbers = [
        a[a > NEGLIGIBLE] for one in outputs for a, _ in _compared(one, one)
    ]
    return float(np.std(np.concatenate(numbers)))


def _latency(run: Run, batch: int, length: int, choices: int | None) -> dict:
    """Milliseconds of a call for rows without padding."""
    shape = (batch, choices, length) if choices else (batch, length)
    token_ids = np.full(shape, SEP_ID + 2, "int32")  # any piece of text
    token_ids[..., 0], token_ids[..., -1] = CLS_ID, SEP_ID
    for _ in range(WARM_UP):
        run(token_ids)
    seconds, start = [], time.perf_counter()
    while len(seconds) < MOST_CALLS:
        before = time.perf_counter()
        if len(seconds) >= LEAST_CALLS and before - start > SECONDS:
            break
        run(token_ids)
        seconds.append(time.perf_counter() - before)
    p50, p99 = 1000 * np.quantile(seconds, [0.5, 0.99])
    return {
        "batch": batch,
        "length": length,
        "calls": len(seconds),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
    }


def _lines(report: dict) -> list[str]:
    total = sum(report["megabytes"].values())
    sizes = [
        f"  {name} {size:.2f} MB" for name, size in report["megabytes"].items()
    ]
    latencies = [
        f"{line['batch']} x {line['length']} tokens: p50 {line['p50_ms']:.1f} "
        f"ms, p99 {line['p99_ms']:.1f} ms ({line['calls']} calls)"
        for line in report["latencies"]
    ]
    return [
        f"{report['format']}, {report['weights']}, "
        f"{report['parameters']:,} parameters, {total:.2f} MB",
        *sizes,
        f"{report['rows']:,} rows: {report['same_predictions']:.2%} of the "
        "predictions are the model's, outputs differ by at most "
        f"{report['largest_difference']:.2g}, in the mean by "
        f"{report['error']:.2g} of their standard deviation",
        *text_lines(report["same_as_texts"]),
        *latencies,
    ]
