"""What pretraining gives: GLUE tasks with it and from scratch.

    python glue.py --model pretrained --glue GLUE_FOLDER --output glue.csv

Both start from the same architecture, vocabulary, order of examples, budget
and learning rate; 3 seeds each. GLUE_FOLDER has CoLA, SST-2, MRPC, RTE and
STS-B with train.tsv and dev.tsv as the benchmark's; the score is on dev.tsv.
A run that is in the output already is not repeated.
"""

import argparse
import collections
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from scipy import stats
from sklearn import metrics

import keras_albert as ka

SEEDS = 3
BATCH_SIZE = 32
LEARNING_RATE = 3e-4
WARMUP_SHARE = 0.1
FIELDS = ("task", "start", "seed", "metric", "score", "seconds")


class Task(NamedTuple):
    """Where a task's texts and labels are, and how it is scored."""

    steps: int
    length: int
    """tokens; no position above 64 was pretrained"""
    texts: tuple[int, ...]
    """columns"""
    label: int
    metric: str
    score: Callable
    header: bool = True


TASKS = {
    "CoLA": Task(
        300, 32, (3,), 1, "Matthews", metrics.matthews_corrcoef, header=False
    ),
    "SST-2": Task(300, 64, (0,), 1, "accuracy", metrics.accuracy_score),
    "MRPC": Task(230, 64, (3, 4), 0, "F1", metrics.f1_score),
    "RTE": Task(230, 64, (1, 2), 3, "accuracy", metrics.accuracy_score),
    "STS-B": Task(
        300,
        64,
        (7, 8),
        9,
        "Pearson",
        lambda a, b: stats.pearsonr(a, b).statistic,
    ),
}


def main() -> None:
    """Makes every run that is missing, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--starts",
        nargs="*",
        default=["scratch", "pretrained"],
        choices=["scratch", "pretrained"],
    )
    arguments = parser.parse_args()
    if not arguments.output.exists():
        append(arguments.output, FIELDS)
    done = {
        (row["task"], row["start"], int(row["seed"]))
        for row in rows(arguments.output)
    }
    for start in arguments.starts:
        for seed in range(SEEDS):
            for name in TASKS:
                if (name, start, seed) not in done:
                    result = run(name, start, seed, arguments)
                    append(arguments.output, result)
    print(table(rows(arguments.output)))


def run(name: str, start: str, seed: int, arguments) -> tuple:
    """Fine-tunes and scores one model."""
    task = TASKS[name]
    texts, labels = read(arguments.glue / name / "train.tsv", task)
    held_out, expected = read(arguments.glue / name / "dev.tsv", task)
    started = time.monotonic()
    keras.utils.set_random_seed(seed)
    backbone, tokenizer = ka.load_pretrained(arguments.model)
    if start == "scratch":
        backbone = ka.AlbertBackbone(backbone.config)
    regression = labels.dtype.kind == "f"
    model = ka.AlbertForSequenceClassification(
        backbone,
        num_labels=1 if regression else 2,
        problem="regression" if regression else "single_label",
    )
    model.compile(
        optimizer=ka.Lamb(
            ka.WarmupPolynomialDecay(
                LEARNING_RATE, task.steps, int(WARMUP_SHARE * task.steps)
            ),
            layer_adaptation=False,  # AdamW
        ),
        loss="mse"
        if regression
        else keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    def ids(chosen: list[tuple[str, ...]]) -> dict:
        return tokenizer(
            *zip(*chosen, strict=True),
            max_length=task.length,
            pad_to=task.length,
        )

    rng = np.random.default_rng(seed)
    order = np.concatenate(
        [
            rng.permutation(len(texts))
            for _ in range(task.steps * BATCH_SIZE // len(texts) + 1)
        ]
    )
    for step in range(task.steps):
        batch = order[step * BATCH_SIZE :][:BATCH_SIZE]
        model.train_on_batch(ids([texts[i] for i in batch]), labels[batch])
    outputs = model.predict(ids(held_out), batch_size=BATCH_SIZE, verbose=0)
    found = outputs.ravel() if regression else outputs.argmax(-1)
    score = task.score(expected, found)
    seconds = time.monotonic() - started
    print(f"{name} {start} {seed}: {task.metric} {score:.3f}", flush=True)
    return name, start, seed, task.metric, f"{score:.4f}", f"{seconds:.0f}"


def read(path: Path, task: Task) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Texts and labels of a file; quotes mean nothing in it."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()[task.header :]
    cells = [line.split("\t") for line in lines]
    texts = [tuple(row[column] for column in task.texts) for row in cells]
    labels = [row[task.label] for row in cells]
    if task.metric == "Pearson":
        return texts, np.array(labels, "float32")
    names = sorted(set(labels))
    return texts, np.array([names.index(label) for label in labels], "int32")


def append(path: Path, row: tuple) -> None:
    """Adds a line to a CSV file."""
    with open(path, "a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(row)


def rows(path: Path) -> list[dict[str, str]]:
    """The runs in a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(runs: list[dict[str, str]]) -> str:
    """Mean and standard deviation over seeds, as Markdown."""
    scores = collections.defaultdict(list)
    for each in runs:
        scores[each["task"], each["start"]].append(100 * float(each["score"]))
    lines = [
        "| task | score | from scratch | pretrained |",
        "|---|---|---|---|",
    ]
    for name, task in TASKS.items():
        shown = [
            f"{statistics.mean(found):.1f} +- {statistics.stdev(found):.1f}"
            if len(found := scores[name, start]) > 1
            else "-"
            for start in ("scratch", "pretrained")
        ]
        lines.append(f"| {name} | {task.metric} | {shown[0]} | {shown[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
