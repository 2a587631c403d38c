"""The command `check`: compares an exported model with its source."""

import dataclasses
import time
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_albert.data.batches import Features
from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.data.tables import Table
from keras_albert.distribution.backend import full_float32
from keras_albert.errors import AlbertError
from keras_albert.exports.check_texts import (
    check_same_texts,
    compare_texts,
    text_lines,
)
from keras_albert.exports.check_vectors import least_allowed, vectors_agree
from keras_albert.exports.config import CheckRun
from keras_albert.exports.load import (
    Exported,
    Run,
    export_settings,
    load_exported,
    share_of_equal,
    with_version,
)
from keras_albert.finetuning.layer_by_layer import LayerByLayer
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import print_skipped
from keras_albert.storage import files_of
from keras_albert.tasks.config import CUT, EarlyExit, model_names
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.task_file import load_models
from keras_albert.text.special_tokens import CLS_ID, SEP_ID
from keras_albert.text.unknown import check_readable
from keras_albert.training.model_folder import ModelFolder

# Largest difference from the model's outputs, by the data type of the weights
# or of the computation, whichever allows more: other kernels round float32
# differently, float16 has 11 significant bits and bfloat16 8. It is multiplied
# by the standard deviation of the outputs if that is above 1.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
# int8 has no such bound, and only another or a broken model is refused. The
# root mean square of the differences, in standard deviations of the outputs,
# was 0.14 and 0.24 for int8, and is about 1.4 (the square root of 2) for
# unrelated outputs. int8 kept 99.9 % of the predictions
# (tests/benchmarks/README.md).
LARGEST_ERROR, LEAST_SAME = 0.5, 0.9
# The largest root mean square of the differences of vectors in float32, in
# standard deviations of the model's outputs. The cosines alone would not show a
# wrong length.
LARGEST_VECTOR_ERROR = 0.01
NEGLIGIBLE = -1e4  # log-probabilities of masked positions are below it
BATCH_SIZES, LENGTHS = (1, 8), (32, 128)
# Calls that are timed for a latency: at least LEAST_CALLS, then until SECONDS
# have passed, and at most MOST_CALLS; WARM_UP calls come before.
MOST_CALLS, LEAST_CALLS, SECONDS = 100, 10, 10.0
WARM_UP = 3


def check(run: CheckRun) -> dict:
    """Prints and returns differences, sizes and latencies.

    Raises AlbertError if outputs differ by more than TOLERANCES, or vectors
    have a cosine below the least allowed; if outputs differ by more than
    LARGEST_ERROR, and either fewer predictions than LEAST_SAME are equal or the
    numbers of parameters differ; if fewer rows than LEAST_SAME stop after the
    same layer; or if too few texts get the answer of their token ids.
    """
    import_tensorflow()  # before it could open a GPU of the backend
    exported = load_exported(run.export, run.threads)
    loaded = load_models(run.model, run.average)
    given = {"task": run.task, "labels": run.labels}
    predictor = _original(loaded, exported, given)
    _check_made_of(run, exported.settings(), predictor.settings())
    rule = exported.model.early_exit
    if rule is not None:  # the model must stop by the same rule
        if getattr(predictor.model, "exits", None) is None:
            raise AlbertError(
                f"{run.export} stops early, and {model_names(run.model)} has "
                "no exits. Give the model that was exported."
            )
        predictor = dataclasses.replace(predictor, early_exit=rule)
    table, features = _examples(predictor, run)
    with full_float32():
        both = predictor, exported
        outputs, stops = zip(
            *(_computed(each, features, rule) for each in both), strict=True
        )
        answers = [
            each.decode(found, features)
            for each, found in zip(both, outputs, strict=True)
        ]
        # Folders of older versions do not say in what they compute.
        settings = {"compute": "float32", **export_settings(run.export)}
        texts = compare_texts(exported, table, answers[1], settings["compute"])
    # Rows that stop after different layers have outputs of two classifiers.
    same = np.flatnonzero(stops[0] == stops[1])
    same_layers = len(same) / len(stops[0])
    _judge_layers(same_layers, run)
    largest, error = _differences(
        *([found[row] for row in same] for found in outputs)
    )
    has_vectors = predictor.definition.makes_vectors
    vectors = vectors_agree(*outputs) if has_vectors else None
    report = {
        **settings,
        "rows": len(table),
        "same_predictions": share_of_equal(*answers),
        "vectors": vectors,
        "same_layers": None if rule is None else same_layers,
        "same_as_texts": texts,
        "largest_difference": largest,
        "error": error,
        "megabytes": {
            file.name: file.stat().st_size / 1e6
            for file in files_of(with_version(run.export))
        },
        "latencies": [
            _latency(exported.model.run, _timed(features, batch, length))
            for batch in BATCH_SIZES
            for length in LENGTHS
            if length <= predictor.model.config.max_position_embeddings
        ],
    }
    print("\n".join(_lines(report)))
    _judge(report, _spread(outputs[0]), run)
    _check_size(report, predictor.model.count_params(), run)
    check_same_texts(texts, run.export)
    return report


def _examples(predictor: Predictor, run: CheckRun) -> tuple[Table, Features]:
    """The first rows that can be read."""
    for table in predictor.parts(run.data, run.skip_bad, run.rows):
        print_skipped(table)
        if len(table):
            break
    table = table.first(run.rows)  # the part is a whole file of SQuAD's JSON
    features = predictor.features(table)
    found = predictor.unreadable(features, table)
    check_readable(*found, run.data, run.any_text)
    return table, features


def _remedy(run: CheckRun, or_more_bits: bool = False) -> str:
    """What to do if an export does not compute what its model computes."""
    more = ", or with a data type of more bits" if or_more_bits else ""
    return (
        f"Check that {model_names(run.model)} is the model that was exported, "
        f"and export it again{more}."
    )


def _judge_layers(same: float, run: CheckRun) -> None:
    if same < LEAST_SAME:
        raise AlbertError(
            f"{run.export}: {same:.0%} of the rows stop after the same "
            f"layer as in the model, less than {LEAST_SAME:.0%}. "
            f"{_remedy(run, or_more_bits=True)}"
        )


def _judge(report: dict, spread: float, run: CheckRun) -> None:
    """Raises AlbertError if the export is too far from the model.

    `spread` is the standard deviation of the model's outputs.
    """
    largest, error = report["largest_difference"], report["error"]
    kinds = report["weights"], report["compute"]
    limit = max(TOLERANCES.get(kind, np.inf) for kind in kinds)
    limit *= max(1.0, spread)
    vectors = report["vectors"]
    if not vectors and not largest <= limit:  # also true if `largest` is NaN
        raise AlbertError(
            f"{run.export}: an output differs from the model's by "
            f"{largest:.2g}, more than {limit:g}. {_remedy(run)}"
        )
    is_exact = {*kinds} == {"float32"}
    least = least_allowed(*kinds)
    if vectors and not vectors["cosine"] >= least:
        raise AlbertError(
            f"{run.export}: a vector has a cosine of "
            f"{vectors['cosine']:.4f} with the model's, less than "
            f"{least}. {_remedy(run, or_more_bits=not is_exact)}"
        )
    if vectors and is_exact and not error <= LARGEST_VECTOR_ERROR:
        raise AlbertError(
            f"{run.export}: vectors differ by {error:.2g} of the model's "
            f"standard deviation, more than {LARGEST_VECTOR_ERROR}. "
            f"{_remedy(run)}"
        )
    same = report["same_predictions"]
    if error > LARGEST_ERROR and same < LEAST_SAME:
        raise AlbertError(
            f"{run.export}: {same:.0%} of the predictions are the model's, "
            f"less than {LEAST_SAME:.0%}, and outputs differ by {error:.2g} of "
            f"their standard deviation. {_remedy(run, or_more_bits=True)}"
        )


def _check_size(report: dict, count: int, run: CheckRun) -> None:
    """Raises AlbertError if outputs differ much, and the sizes of the models.

    If one class is frequent, another model may have most of its predictions
    right as well. The number alone says little: a model that computes the same
    may have more parameters, such as those of a pooler that is not used.
    """
    known = report.get("parameters", count)
    if report["error"] > LARGEST_ERROR and known != count:
        raise AlbertError(
            f"{run.export} has {known:,} parameters, and "
            f"{model_names(run.model)} has {count:,}; outputs differ by "
            f"{report['error']:.2g} of their standard deviation. Name the "
            "model that was exported."
        )


def _original(
    loaded: ModelFolder, exported: Predictor, given: dict
) -> Predictor:
    """The source model, with the settings that `export` may have changed.

    `given` has the task and the labels, or None for those of the model.
    """
    names = ["lengths", "columns", "reading", "threshold"]
    task = ALL_TASKS.get(given["task"] or loaded.task["task"])
    if task is None:
        names += ["task", "labels"]
    elif task.makes_vectors and exported.definition.makes_vectors:
        names.append("task")  # one text, or the cosine of two
    settings = given | {name: getattr(exported, name) for name in names}
    settings["long_texts"] = CUT  # as in every export
    return Predictor.of(loaded, early_exit=None, **settings)


def _check_made_of(run: CheckRun, found: dict, expected: dict) -> None:
    """Raises AlbertError unless both settings are the same."""
    differing = [
        f"{name}={found.get(name)!r:.80} there, {expected.get(name)!r:.80} here"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    if differing:
        raise AlbertError(
            f"{run.export} was not made from {model_names(run.model)}: "
            f"{'; '.join(differing)}. Name the model that was exported, with "
            "--task or --labels if these were given to `export`."
        )


def _differences(expected: Sequence, found: Sequence) -> tuple[float, float]:
    """The largest difference of floating-point outputs, and their RMS.

    The RMS is in standard deviations of the expected outputs. NaN gives NaN.
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
    error = np.sqrt(np.mean(differences**2))
    # Numbers that are all equal, such as a single one, have no spread.
    scale = _spread(expected) or _size(expected)
    return float(np.abs(differences).max()), float(error / max(scale, 1e-9))


def _compared(one, other) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of float64 arrays that should be equal, from one example."""
    ends = "end_top_log_probs"
    if isinstance(one, dict) and ends in one:
        # The order of almost equal starts may differ: only equal ones count.
        same = one["start_top_index"] == other["start_top_index"]
        one, other = ({**each, ends: each[ends][same]} for each in (one, other))
    pairs = zip(*map(keras.tree.flatten, (one, other)), strict=True)
    for a, b in pairs:
        if np.issubdtype(np.asarray(a).dtype, np.floating):
            yield np.asarray(a, "float64"), np.asarray(b, "float64")


def _spread(outputs: Sequence) -> float:
    return float(np.std(_numbers(outputs)))


def _size(outputs: Sequence) -> float:
    """The root mean square."""
    return float(np.sqrt(np.mean(_numbers(outputs) ** 2)))


def _numbers(outputs: Sequence) -> np.ndarray:
    """All numbers in outputs but those of masked positions."""
    return np.concatenate(
        [a[a > NEGLIGIBLE] for one in outputs for a, _ in _compared(one, one)]
    )


def _computed(
    predictor: Predictor, features: Features, rule: EarlyExit | None
) -> tuple[list, np.ndarray]:
    """The outputs of each row, and the layer after which it stopped.

    Without a rule, the layer is always 0.
    """
    if rule is None:
        outputs = predictor.outputs(features)
        return outputs, np.zeros(len(outputs), int)
    model = predictor.model
    if isinstance(model, Exported):

        def compute(_, x):
            return dict(model.run(x["token_ids"]))
    else:
        compute = LayerByLayer(model, rule).with_layers
    found = predictor.outputs(features, compute=compute)
    stops = np.array([each["layers"] for each in found])
    return [each["logits"] for each in found], stops


def _timed(features: Features, batch: int, length: int) -> np.ndarray:
    """Rows of `length` tokens without padding, made of the texts of a table."""
    pieces = np.concatenate([row.token_ids for row in features.rows])
    pieces = pieces[~np.isin(pieces, (CLS_ID, SEP_ID))]
    shape = (batch, features.choices, length)
    if features.choices is None:
        shape = (batch, length)
    token_ids = np.resize(pieces, shape).astype("int32")
    token_ids[..., 0], token_ids[..., -1] = CLS_ID, SEP_ID
    return token_ids


def _latency(run: Run, token_ids: np.ndarray) -> dict:
    """Milliseconds of a call for these rows."""
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
        "batch": len(token_ids),
        "length": token_ids.shape[-1],
        "calls": len(seconds),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
    }


def _lines(report: dict) -> list[str]:
    sizes, compute = report["megabytes"], report["compute"]
    computed = "" if compute == "float32" else f"computed in {compute}, "
    lines = [
        f"{report['format']}, {report['weights']}, {computed}"
        f"{report['parameters']:,} parameters, {sum(sizes.values()):.2f} MB",
        *(f"  {name} {size:.2f} MB" for name, size in sizes.items()),
        f"{report['rows']:,} rows: {report['same_predictions']:.2%} of the "
        "predictions are the model's, outputs differ by at most "
        f"{report['largest_difference']:.2g}, in the mean by "
        f"{report['error']:.2g} of their standard deviation",
    ]
    if report["same_layers"] is not None:
        lines.append(
            f"{report['same_layers']:.2%} of the rows stop after the same "
            "layer; outputs of the others are not compared"
        )
    if agree := report["vectors"]:
        line = (
            f"vectors have cosines of at least {agree['cosine']:.4f} with the "
            "model's"
        )
        if agree["neighbours"] is not None:
            line += (
                f", and {agree['neighbours']:.1%} of the {agree['compared']} "
                "nearest texts of each text are the same"
            )
        lines.append(line)
    lines += text_lines(report["same_as_texts"])
    for each in report["latencies"]:
        lines.append(
            f"{each['batch']} x {each['length']} tokens: p50 "
            f"{each['p50_ms']:.1f} ms, p99 {each['p99_ms']:.1f} ms "
            f"({each['calls']} calls)"
        )
    return lines
