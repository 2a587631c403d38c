"""Fits the temperature and the thresholds, on the held-out rows."""

import dataclasses

import numpy as np

from keras_albert.data.batches import Features
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import scores_report
from keras_albert.modeling.exits import divide_logits
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.storage import read_json, write_json
from keras_albert.tasks.decisions import Calibration, calibrated
from keras_albert.tasks.task import LearnedTask, Outputs
from keras_albert.training.config import CHECKPOINTS_FOLDER
from keras_albert.training.model_folder import ModelFolder

CALIBRATION_FILE = "calibration.json"  # among the checkpoints, until the end


def calibrate_and_tune(
    run: FinetuneRun, predictor: Predictor, outputs: Outputs, examples: Features
) -> tuple[Predictor, Outputs, Features, dict]:
    """Fits the temperature, then the thresholds, and scores the held-out rows.

    Each is fitted only if the run says so (`calibrate`, `tune_threshold`). A
    calibrated model replaces the one in the output folder. `outputs` are those
    of the predictor for `examples`, the held-out rows.

    Returns:
        the predictor with its threshold, the outputs of the calibrated model,
        the examples with the threshold, and the report with their scores.
    """
    found = {}
    if run.calibrate:
        calibration, outputs = _calibrate(run, predictor, outputs, examples)
        found["calibration"] = dataclasses.asdict(calibration)
    task, names = predictor.definition, predictor.labels
    if run.tune_threshold:
        before = task.measure(outputs, examples, names).values
        examples = with_tuned_threshold(task, outputs, examples)
        threshold = examples.threshold
        predictor = predictor.with_threshold(threshold)
        decides = names[-len(threshold) :]  # of two labels the second one
        found["threshold"] = dict(zip(decides, threshold, strict=True))
        found["untuned"] = {name: float(v) for name, v in before.items()}
    report = scores_report(run.task, outputs, examples, names)
    return predictor, outputs, examples, report | found


def with_tuned_threshold(
    task: LearnedTask, outputs: Outputs, examples: Features
) -> Features:
    """The examples, with the threshold that is best for outputs of them."""
    threshold = task.tuned(outputs, examples)
    return dataclasses.replace(examples, threshold=threshold)


def _calibrate(
    run: FinetuneRun, predictor: Predictor, outputs: Outputs, examples: Features
) -> tuple[Calibration, Outputs]:
    """Divides the weights of the last layer by the fitted temperature.

    The model in the folder is replaced, so that everything that is made of it
    has the calibrated logits. What was fitted is written before, with the
    checksum of the calibrated weights: if the run is killed before its report
    is written, the next call knows which of the two models it finds.
    """
    model, path = predictor.model, run.output / CHECKPOINTS_FOLDER
    path /= CALIBRATION_FILE
    if path.exists():
        done = read_json(path)
        if done.pop("weights") == weights_checksum(model):
            return Calibration(**done), outputs
    logits = np.stack(outputs)
    found = calibrated(logits, examples.target, run.seed)
    divide_logits(model, found.temperature)
    record = {**dataclasses.asdict(found), "weights": weights_checksum(model)}
    write_json(path, record)
    tokenizer, settings = predictor.tokenizer, predictor.settings()
    ModelFolder(model, tokenizer, settings).save(run.output)
    return found, list(logits / found.temperature)
