"""The report of a pretraining run: losses and accuracies, as data and text."""

import math

import numpy as np

from keras_albert.training.cost import Cost

# Names of the sentence tasks in the text of a report.
SENTENCE_TASK_NAMES = {"sop": "sentence-order", "nsp": "next-sentence"}


def held_out_report(measured: dict, batches) -> dict:
    """Losses and accuracies on held-out examples, for each task.

    The baseline is the accuracy of always predicting the most frequent label.
    `measured` is the result of `evaluate` on `batches`.
    """
    labels: dict[str, list[np.ndarray]] = {}
    for _, y, weight in batches.as_numpy_iterator():
        for task in y:
            labels.setdefault(task, []).append(y[task][weight[task] > 0])
    report = {}
    for task, parts in labels.items():
        counted = np.concatenate(parts)
        count = len(counted)
        report |= {
            f"{task}_loss": measured[f"{task}_cross_entropy"],
            f"{task}_accuracy": measured[f"{task}_accuracy"],
            f"{task}_baseline": float(np.bincount(counted).max() / count)
            if count
            else 0.0,
            f"{task}_count": count,
        }
    return report


def report_lines(report: dict, examples: str = "held-out ") -> list[str]:
    """The lines of a report's text; `examples` begins the names of scores."""
    if "held_out" not in report:
        return [
            f"training loss {report['training_loss']:.3f}; nothing was held "
            "out (--validation)",
            *_cost(report),
        ]
    held_out = report["held_out"]
    lines = [
        f"{examples}masked-LM accuracy      {held_out['mlm_accuracy']:.3f}  "
        f"(always the most frequent token: {held_out['mlm_baseline']:.3f}; "
        f"{held_out['mlm_count']:,} predictions)"
    ]
    for task, name in SENTENCE_TASK_NAMES.items():
        count = held_out.get(f"{task}_count")
        if count == 0:
            lines.append(f"{examples}{name}: no document has a pair")
        elif count:
            accuracy, guessing = (
                held_out[f"{task}_{each}"] for each in ("accuracy", "baseline")
            )
            chance = 1.96 * math.sqrt(guessing * (1 - guessing) / count)
            lines.append(
                f"{examples}{name} accuracy {accuracy:.3f}  (always the more "
                f"frequent answer: {guessing:.3f}, 95 % interval of guessing "
                f"+-{chance:.3f}; {count:,} pairs)"
            )
    steps = report.get("steps")  # absent in reports of `evaluate`
    # Reports of older versions, which kept the last model, lack `kept_step`.
    kept = report.get("kept_step", steps)
    if kept != steps:
        lines.append(
            f"all of it at step {kept:,} of "
            f"{steps:,}, whose held-out loss is the lowest: that "
            "model is kept"
        )
    return lines + _cost(report)


def _cost(report: dict) -> list[str]:
    """The line with the cost of the run, if the report has it.

    Reports of `evaluate` and of older versions do not have it.
    """
    cost = report.get("cost")
    return [Cost(**cost).line()] if cost else []
