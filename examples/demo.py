"""The main job on real text, through the commands a user types.

    python examples/demo.py FOLDER        (or: make demo)

Text: the Python reference and the standard library's docstrings, which every
CPython carries (about 247,000 words). Machine: 2 CPU cores. Time: about 6
minutes after installation. What to expect is in
docs/getting-started.md, "The demo".
"""

import contextlib
import json
import math
import random
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import python_corpus

VOCAB_SIZE = 4000
MODEL = {  # a small ALBERT; what is not named is as in ALBERT-base
    "vocab_size": VOCAB_SIZE,
    "embedding_size": 128,
    "hidden_size": 128,
    "num_hidden_layers": 2,  # more steps teach more than more layers
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
    "initializer_range": 0.04,  # grows as the hidden size shrinks
}
PRETRAIN = {  # many small steps: a small model learns most per minute so
    "--steps": 800,
    "--warmup-steps": 80,
    "--batch-size": 32,
    "--validate-every": 200,
    "--optimizer.optimizer": "muon",
    "--optimizer.learning-rate": 0.003,
    "--examples.sequence-length": 64,
}
FINETUNE = {"--epochs": 10}  # the rest as `finetune` chooses it
SHOWN_PASSAGES = 3  # of all held-out ones, drawn with a fixed seed
# Nothing of the package, only what a server has: a SavedModel that is given
# strings. Writes its answer to every row of a table of texts and labels.
ASK = """
import sys
import tensorflow as tf
import tensorflow_text  # the server's tokenizer operations

model, table, output = sys.argv[1:]
answer = tf.saved_model.load(model).signatures["serving_default"]
lines = open(table, encoding="utf-8").read().splitlines()
rows = [line.split("\\t") for line in lines[1:]]
with open(output, "w", encoding="utf-8") as file:
    print("text", "label", "prediction", "score", sep="\\t", file=file)
    for start in range(0, len(rows), 32):
        batch = rows[start : start + 32]
        found = answer(text=tf.constant([text for text, _ in batch]))
        for row, prediction, score in zip(
            batch, found["label"].numpy(), found["score"].numpy()
        ):
            columns = *row, prediction.decode(), f"{score:.2f}"
            print(*columns, sep="\\t", file=file)
assert not any(name.startswith("keras_albert") for name in sys.modules)
"""
STARTED = time.monotonic()


def main(folder: Path) -> None:
    """Runs every step and prints the report."""
    mark = folder / ".keras_albert_demo"
    if mark.is_file():
        print(f"Removing the results of an earlier demo in {folder}")
        shutil.rmtree(folder)
    elif folder.exists():
        sys.exit(f"{folder} exists and is not of a demo: choose another.")
    folder.mkdir(parents=True)
    mark.touch()
    text = folder / "text"
    step("Text from this Python's own documentation")
    python_corpus.main(text)

    step("Vocabulary")
    albert(
        "vocab",
        {
            "--input": text / "train.txt",
            "--output": folder / "vocab",
            "--vocab-size": VOCAB_SIZE,
        },
    )
    step("Token shards")
    for part in ("train", "held_out"):
        albert(
            "prepare",
            {
                "--input": text / f"{part}.txt",
                "--vocab": folder / "vocab",
                "--output": folder / f"shards-{part}",
            },
        )
    step("Pretraining")
    config = folder / "albert_config.json"
    config.write_text(json.dumps(MODEL, indent=2) + "\n")
    albert(
        "pretrain",
        {
            "--data": folder / "shards-train",
            "--validation": folder / "shards-held_out",
            "--config": config,
            "--output": folder / "pretrained",
            **PRETRAIN,
        },
    )
    runs = {
        "finetuned": "Fine-tuning",
        "from-scratch": "The same without pretraining",
    }
    for name, title in runs.items():
        step(title)
        albert(
            "finetune",
            {
                "--model": folder / "pretrained",
                "--train": text / "chapters.train.tsv",
                "--validation": text / "chapters.test.tsv",
                "--output": folder / name,
                **FINETUNE,
            },
            *(["--from-scratch"] if name == "from-scratch" else []),
        )
    step("Export")
    albert(
        "export",
        {"--model": folder / "finetuned", "--output": folder / "saved_model"},
    )

    step("The held-out passages, answered by the SavedModel in a new process")
    answers = ask(folder)
    held_out, finetuned, scratch = (
        json.loads((folder / name / "report.json").read_text())
        for name in ("pretrained", *runs)
    )
    report(held_out["held_out"], finetuned, scratch, answers)
    what_next(folder)


def ask(folder: Path) -> list[dict[str, str]]:
    """The exported model's answer to each held-out passage; shows a few."""
    answers_file = folder / "answers.tsv"
    asked = subprocess.run(
        [sys.executable, "-c", ASK]
        + [str(folder / "saved_model" / "1")]
        + [str(folder / "text" / "chapters.test.tsv"), str(answers_file)],
        capture_output=True,
        text=True,
    )
    if asked.returncode:
        sys.exit(asked.stderr)
    header, *rows = answers_file.read_text(encoding="utf-8").splitlines()
    columns = header.split("\t")
    answers = [dict(zip(columns, row.split("\t"), strict=True)) for row in rows]
    chance = random.Random(python_corpus.SEED)
    for row in chance.sample(answers, SHOWN_PASSAGES):
        passage = textwrap.fill(textwrap.shorten(row["text"], 290), 76)
        print(textwrap.indent(passage, "  "))
        judged = "right" if is_right(row) else f"wrong: it is {row['label']}"
        print(f"    -> {row['prediction']} ({row['score']}), {judged}")
    print(
        "  Drawn by chance. That process has TensorFlow alone: it never "
        "imported\n  keras_albert."
    )
    return answers


def is_right(row: dict[str, str]) -> bool:
    """Whether the served model named the chapter of a passage."""
    return row["prediction"] == row["label"]


def report(
    held_out: dict, finetuned: dict, scratch: dict, answers: list[dict]
) -> None:
    """The numbers, each beside what it must be compared with."""
    step("Report, of documents that were held out")
    right = sum(map(is_right, answers))
    rows = (
        ("", "here", "baseline", "which is", "of"),
        (
            "masked word",
            held_out["mlm_accuracy"],
            held_out["mlm_baseline"],
            "always the most frequent token",
            f"{held_out['mlm_count']:,} tokens",
        ),
        (
            "order of two segments",
            held_out["sop_accuracy"],
            held_out["sop_baseline"],
            "guessing (needs more text, time)",
            f"{held_out['sop_count']:,} pairs",
        ),
        (
            "chapter of a passage",
            finetuned["accuracy"],
            finetuned["baseline"],
            "always the most frequent chapter",
            f"{finetuned['count']:,} passages",
        ),
        ("", "", scratch["accuracy"], "the same without pretraining", ""),
        ("", "", finetuned["bag_of_words"], "a linear model of words", ""),
        (
            "the same, from the SavedModel",
            right / len(answers),
            "",
            f"{right} of {len(answers)} right",
            "",
        ),
    )
    for name, *numbers, meaning, count in rows:
        shown = (x if isinstance(x, str) else f"{x:.3f}" for x in numbers)
        here, baseline = (f"{x:>10}" for x in shown)
        print(f"{name:30}{here}{baseline}  {meaning:33} {count}".rstrip())
    print(
        "(The best of the passes over the training passages is chosen by the\n"
        "held-out ones: both scores of chapters are a little too high.)"
    )
    print(f"\n{verdict(finetuned, scratch)}")


def verdict(finetuned: dict, scratch: dict) -> str:
    """What the chapters say of the pretraining, with the standard error."""
    scores = finetuned["accuracy"], scratch["accuracy"]
    difference = scores[0] - scores[1]
    error = math.sqrt(sum(p * (1 - p) for p in scores) / finetuned["count"])
    if difference > 2 * error:
        meaning = "pretraining helped."
    else:
        meaning = (
            "so little pretraining does not show\nin this task; "
            "examples/novels has an hour and a half of it."
        )
    return (
        f"Pretraining changes the chapters by {difference:+.3f} (standard "
        f"error {error:.3f}): {meaning}"
    )


def what_next(folder: Path) -> None:
    """Where everything is, and the next command."""
    minutes = (time.monotonic() - STARTED) / 60
    program = Path(sys.executable).with_name("keras-albert")
    with contextlib.suppress(ValueError):
        program = program.relative_to(Path.cwd())
    print(
        f"""
{folder / "pretrained" / "curves.png"}: the learning curves of pretraining
{folder / "finetuned" / "confusion.png"}: which chapters are taken for others
{folder / "answers.tsv"}: all answers of the SavedModel
{folder / "saved_model"}: what a server loads
{folder / "finetuned"}: the same model, for any backend
{minutes:.1f} minutes. Next, ask it something of your own:

  echo "Which command sets a breakpoint?" > mine.txt
  {program} predict --model {folder / "finetuned"} --data mine.txt"""
    )


def step(title: str) -> None:
    """A heading, with the minutes and seconds since the start."""
    minutes, seconds = divmod(round(time.monotonic() - STARTED), 60)
    print(f"\n== {minutes}:{seconds:02}  {title}", flush=True)


def albert(command: str, options: dict, *flags: str) -> None:
    """Runs `keras-albert command --option value ...`, as a user would."""
    arguments = [str(part) for pair in options.items() for part in pair]
    print("$ keras-albert", command, *arguments, *flags, flush=True)
    program = Path(sys.executable).with_name("keras-albert")
    done = subprocess.run([program, command, *arguments, *flags])
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
