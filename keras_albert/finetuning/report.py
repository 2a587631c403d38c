"""Reports of fine-tuning runs: the content of report.json, and its text."""

import collections
import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from keras_albert.data.batches import Features
from keras_albert.data.tables import Table
from keras_albert.finetuning.task_model import TaskModel
from keras_albert.tasks.decisions import chosen_class
from keras_albert.tasks.metrics import (
    ClassReport,
    class_report,
    draw_confusion,
    report_text,
)
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.task import LearnedTask, Outputs
from keras_albert.text.unknown import PieceCount, check_readable
from keras_albert.training.cost import Cost, total
from keras_albert.training.plots import can_draw

CONFUSION_FILE = "confusion.png"

# Key of the score of a linear model of words, see tasks/bag_of_words.py.
BAG_OF_WORDS = "bag_of_words"
TEACHER = "teacher"  # key of the score of the teacher
START = "before_fine_tuning"  # key of the score of the pretrained encoder
ALL_SCORES = "{}_scores"  # key of all scores of one of these
# Keys of scores that are not those of the fine-tuned model.
COMPARED = ("baseline", BAG_OF_WORDS, TEACHER, START)
SHOWN_LABELS = 8  # most frequent labels that are printed before a run
SHOWN_SKIPPED = 3  # skipped rows that are printed
# Key of the scores on training rows, for a run that held nothing out.
ON_TRAINING_ROWS = "on_training_rows"


def scores_report(
    task: str, outputs: Outputs, features: Features, names
) -> dict:
    """The scores, the score of the best constant answer, and remarks."""
    definition = ALL_TASKS[task]
    scores = definition.measure(outputs, features, names)
    return {
        **scores.values,
        "best": definition.best,
        "baseline": definition.baseline(features),
        "constant": definition.constant,
        "of_words": definition.of_words,
        "count": features.count,
        "remarks": list(scores.remarks),
    }


def scores_beside(name: str, values: dict, task: LearnedTask) -> dict:
    """The entries of a report for another model, such as BAG_OF_WORDS.

    They are its best score and, if the task compares all, the others, by
    ALL_SCORES.
    """
    found = {name: values[task.best]}
    if task.compares_all_scores:
        found[ALL_SCORES.format(name)] = values
    return found


def class_report_of(outputs: Outputs, features: Features, names) -> ClassReport:
    """Scores of each class, for examples that have exactly one class."""
    predicted = chosen_class(np.stack(outputs), features.threshold)
    return class_report(features.target, predicted, names)


def report_classes(
    outputs: Outputs, features: Features, names, folder: Path
) -> dict:
    """Prints and returns the scores of each class, and draws confusions."""
    found = class_report_of(outputs, features, names)
    print(report_text(found))
    if can_draw():
        draw_confusion(found, folder / CONFUSION_FILE)
    return found.as_dict()


def seeds_report(reports: dict[int, dict], diverged: list[int]) -> dict:
    """The median and the spread of each score over several runs.

    `reports` has those of the runs by seed; the `diverged` seeds have none.
    """
    first = next(iter(reports.values()))
    best = first.get("best", "training_loss")
    shared = ["best", *COMPARED, "constant", "of_words", "count"]
    shared += [key for key in map(ALL_SCORES.format, COMPARED) if key in first]
    names = [
        name
        for name, value in first.items()
        if isinstance(value, float)
        and name not in (*COMPARED, "epoch", "threshold")
    ]
    values = {name: [each[name] for each in reports.values()] for name in names}
    choose = max if "best" in first else min
    costs = [Cost(**r["cost"]) for r in reports.values() if "cost" in r]
    if len(costs) < len(reports):  # reports of older versions have none
        costs = []
    return {
        "task": first["task"],
        "seeds": list(reports),
        "diverged": diverged,
        "best_seed": choose(reports, key=lambda seed: reports[seed][best]),
        **{name: first.get(name) for name in shared},
        "cost": dataclasses.asdict(total(costs)) if costs else None,
        "scores": {
            name: {
                "median": statistics.median(found),
                "mean": statistics.fmean(found),
                "standard_deviation": statistics.stdev(found)
                if len(found) > 1
                else 0.0,
                "all": found,
            }
            for name, found in values.items()
        },
    }


def _seeds_lines(report: dict) -> list[str]:
    lines = [f"{len(report['seeds'])} seeds"]
    if report["diverged"]:
        shown = ", ".join(map(str, report["diverged"]))
        lines[0] += f"; {len(report['diverged'])} diverged (seed {shown})"
    lines[0] += "".join(f"; {each}" for each in _compared(report))
    for name, found in report["scores"].items():
        lines.append(
            f"{name.replace('_', ' ')}: median {found['median']:.3f}, mean "
            f"{found['mean']:.3f} +- {found['standard_deviation']:.3f} "
            f"({min(found['all']):.3f} to {max(found['all']):.3f})"
        )
    lines += _all_compared(report)
    return [*lines, f"best: seed-{report['best_seed']}"]


def _compared(report: dict) -> list[str]:
    """The scores that stand beside that of the model, with their names."""
    found = []
    if report["baseline"] is not None:
        constant, best = report["constant"], report["best"]
        found.append(f"always {constant}: {best} {report['baseline']:.3f}")
    for name, words in _others(report).items():
        in_a_line_below = ALL_SCORES.format(name) in report
        if report.get(name) is not None and not in_a_line_below:
            found.append(f"{words}: {report[name]:.3f}")
    return found


def _others(report: dict) -> dict[str, str]:
    """What other models are called, by the key of their score."""
    return {
        BAG_OF_WORDS: _of_words(report),
        TEACHER: "the teacher",
        START: "before fine-tuning",
    }


def _all_compared(report: dict) -> list[str]:
    """A line for each other model of which the report has all scores."""
    lines = []
    for name, words in _others(report).items():
        if values := report.get(ALL_SCORES.format(name)):
            lines.append(f"{words}: {_scores_text(values)}")
    return lines


def _scores_text(values: dict[str, float]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.3f}"
        for name, value in values.items()
    )


def _of_words(report: dict) -> str:
    # Reports of older versions do not name it.
    return report.get("of_words") or LearnedTask.of_words


def scores_lines(report: dict, examples: str = "held-out ") -> list[str]:
    """The lines that a user reads about scores and the best constant answer."""
    best, guess = report["best"], report["baseline"]
    known = {"best", "constant", "of_words", "count", "remarks", "epoch"}
    others = [
        name
        for name, value in report.items()
        if name not in known | {best, *COMPARED}
        and isinstance(value, float)
        and not name.startswith("training_")
    ]
    shown = _scores_text({name: report[name] for name in [best, *others]})
    verdict = ""
    linear = report.get(BAG_OF_WORDS)
    if guess is not None and report[best] <= guess:
        verdict = ": no better than guessing"
    elif linear is not None and linear > report[best]:
        verdict = f": {_of_words(report)} is better"
    beside = [*_compared(report), f"{report['count']:,} examples"]
    line = f"{examples}{shown} ({'; '.join(beside)}){verdict}"
    return [line, *_all_compared(report), *report["remarks"]]


def decision_lines(report: dict) -> list[str]:
    """Lines on the temperature and thresholds fitted on the held-out rows."""
    lines = []
    if found := report.get("calibration"):
        lines.append(
            f"calibrated with the temperature {found['temperature']:.3f}: "
            f"expected calibration error {found['error_before']:.3f} before, "
            f"{found['error_after']:.3f} after (each half of the held-out rows "
            "with the temperature of the other half; the model's own "
            "temperature was fitted on all of these rows)"
        )
        if found["error_after"] > found["error_before"]:
            lines.append(
                "the calibration does not help on rows that it was not fitted "
                "on: hold more rows out, or leave --calibrate out"
            )
    if "untuned" in report:
        limits = ", ".join(
            f"{name} {limit:.3f}" for name, limit in report["threshold"].items()
        )
        before = ", ".join(
            f"{name.replace('_', ' ')} {value:.3f}"
            for name, value in report["untuned"].items()
        )
        lines.append(
            f"predicted above a probability of: {limits} (with 0.5: {before}). "
            "This was chosen on the same held-out rows that the scores are "
            "measured on, so they are better than those of new rows will be"
        )
    return lines


def finetuned_lines(report: dict) -> list[str]:
    """The text of the report of a run, or of several seeds."""
    if "seeds" in report:
        lines = _seeds_lines(report)
    elif "best" in report:
        lines = [*scores_lines(report), *decision_lines(report)]
    else:
        examples = "on training rows, not on new ones: "
        lines = [
            f"training loss {report['training_loss']:.3f}; nothing was held "
            "out (--validation)",
            *scores_lines(report[ON_TRAINING_ROWS], examples),
        ]
    if report.get("cost"):  # reports of older versions have none
        lines = [*lines, Cost(**report["cost"]).line()]
    return lines


def labels_text(labels: Sequence[str]) -> str:
    """How many labels there are, and how frequent some of them."""
    counts = collections.Counter(labels)
    most = counts.most_common(SHOWN_LABELS)
    shown = ", ".join(f"{label} {count}" for label, count in most)
    more = ", ..." if len(counts) > SHOWN_LABELS else ""
    return f", {len(counts)} labels ({shown}{more})"


def checked_parts(
    predictor: TaskModel,
    path: Path,
    skip_bad: bool,
    any_text: bool,
    rows_per_part: int,
    file: TextIO | None = None,
) -> Iterator[tuple[Table, Features | None]]:
    """Yields the parts of a table, each with its features.

    A part without a good row has no features. After the last part it prints to
    `file` which rows were left out, and raises AlbertError if the vocabulary
    cannot read the texts, unless `any_text` is true.
    """
    bad, faults = 0, []  # number of bad rows, and messages on the first of them
    read, example = PieceCount(), ""
    for table in predictor.parts(path, skip_bad, rows_per_part):
        features = None
        if len(table):  # making features has checks of its own
            features = predictor.features(table)
            found, text = predictor.unreadable(features, table)
            read, example = read + found, example or text
        bad += len(table.skipped)
        faults = [*faults, *table.skipped][:SHOWN_SKIPPED]
        yield table, features
    print_faults(path, bad, faults, file)
    check_readable(read, example, path, any_text)


def print_skipped(table: Table, file: TextIO | None = None) -> None:
    """Prints how many rows were left out, and the first of them.

    It prints to `file`, by default standard output.
    """
    print_faults(table.path, len(table.skipped), table.skipped, file)


def print_faults(
    path: Path, count: int, faults: Sequence[str], file: TextIO | None = None
) -> None:
    """Prints how many rows of a file were left out, and the first of them."""
    if count:
        print(f"{path}: {count:,} bad rows are left out:", file=file)
        for fault in faults[:SHOWN_SKIPPED]:
            print(f"  {fault}", file=file)
