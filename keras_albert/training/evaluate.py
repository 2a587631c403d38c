"""Evaluation of a model folder, whatever it was trained for."""

from keras_albert.config import (
    AlbertError,
    EvaluateRun,
    ExampleConfig,
    TableColumns,
)
from keras_albert.data.pretraining import validation_dataset
from keras_albert.data.shards import ShardSet
from keras_albert.data.tables import label_index, read_table
from keras_albert.training.distribution import leave_gpu_to_backend
from keras_albert.training.finetune import majority_baseline, report_line
from keras_albert.training.folders import (
    CLASSIFICATION,
    PRETRAINING,
    Classifier,
    ModelFolder,
)
from keras_albert.training.pretrain import (
    compile_for_pretraining,
    held_out_report,
    report_lines,
)
from keras_albert.training.progress import progress_verbosity


def evaluate(run: EvaluateRun) -> dict:
    """Prints and returns what the model reaches on `run.data`.

    Raises:
        AlbertError: the model or the data cannot be used, an unknown label.
    """
    leave_gpu_to_backend()
    loaded = ModelFolder.load(run.model)
    task = loaded.task["task"]
    if task == CLASSIFICATION:
        return _evaluate_classifier(Classifier.of(loaded), loaded.task, run)
    if task == PRETRAINING:
        return _evaluate_pretrained(loaded, run)
    raise AlbertError(
        f"{run.model} holds converted weights, with no examples that they "
        "were trained on. Run `keras-albert finetune`, or use `ka.load` and "
        "`model.evaluate`."
    )


def _evaluate_classifier(
    classifier: Classifier, task: dict, run: EvaluateRun
) -> dict:
    if run.data.is_dir():
        raise AlbertError(
            f"{run.model} is a classifier: it is evaluated on a TSV, CSV or "
            f"JSONL file, but {run.data} is a folder. Name the file."
        )
    table = read_table(run.data, TableColumns(**task["columns"]))
    expected = label_index(
        table.labels, classifier.labels, run.data, table.lines
    )
    probabilities = classifier.probabilities(
        table.texts, table.pairs, run.batch_size
    )
    report = {
        "accuracy": float((probabilities.argmax(-1) == expected).mean()),
        "majority_baseline": majority_baseline(table.labels),
        "count": len(table.texts),
    }
    print(report_line(report, examples=""))
    return report


def _evaluate_pretrained(loaded: ModelFolder, run: EvaluateRun) -> dict:
    if run.data.is_file():
        raise AlbertError(
            f"{run.model} is a pretrained model: it is evaluated on a folder "
            f"of token shards, but {run.data} is a file. Run `keras-albert "
            "finetune` for a classifier."
        )
    shards = ShardSet.open(run.data)
    shards.verify()
    if shards.fingerprint != loaded.tokenizer.fingerprint:
        raise AlbertError(
            f"{run.data} was prepared with another vocabulary than "
            f"{run.model} has. Prepare the text with `--vocab {run.model}`."
        )
    batches = validation_dataset(
        shards,
        ExampleConfig(**loaded.task["examples"]),
        batch_size=run.batch_size,
    )
    compile_for_pretraining(loaded.model, "sgd")
    measured = loaded.model.evaluate(
        batches, return_dict=True, verbose=progress_verbosity()
    )
    report = {"held_out": held_out_report(measured, batches)}
    for line in report_lines(report, examples=""):
        print(line)
    return report
