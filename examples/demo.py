"""The main job on real text, through the commands a user types.

    python examples/demo.py FOLDER        (or: make demo)

Text: the Python reference and the standard library's docstrings, which every
CPython carries (about 240,000 words). Machine: 2 CPU cores. Time: 5 to 9
minutes after installation. What to expect is in README.md, "The demo".
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import python_corpus

VOCAB_SIZE = 4000
MODEL = {  # a small ALBERT; what is not named is as in ALBERT-base
    "vocab_size": VOCAB_SIZE,
    "embedding_size": 128,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
    "initializer_range": 0.04,  # grows as the hidden size shrinks
}
PRETRAIN = {  # many small steps: a small model learns most per minute so
    "--steps": 1600,
    "--warmup-steps": 160,
    "--batch-size": 32,
    "--validate-every": 200,
    "--optimizer.learning-rate": 0.004,
    "--examples.sequence-length": 64,
}
FINETUNE = {  # the same budget with and without pretraining
    "--sequence-length": 128,
    "--batch-size": 16,
    "--epochs": 6,
    "--learning-rate": 3e-4,
}
QUESTIONS = {  # and the chapter that answers them
    "How do I remove whitespace from both ends of a string?": "string-methods",
    "Which debugger command continues execution until the next breakpoint?": (
        "debugger"
    ),
    "How can I format a number with two digits after the decimal point?": (
        "formatstrings"
    ),
}
# Nothing of the package, only what a server has.
ASK = """
import sys
import tensorflow as tf
import tensorflow_text  # the server's tokenizer operations

questions = sys.argv[2:]
model = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
answers = model(text=tf.constant(questions))
for question, label, score in zip(
    questions, answers["label"].numpy(), answers["score"].numpy()
):
    print(question, label.decode(), f"{score:.2f}", sep="\\t")
assert not any(name.startswith("keras_albert") for name in sys.modules)
"""


def main(folder: Path) -> None:
    """Runs every step and prints the report."""
    started = time.monotonic()
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

    step("Three questions, answered by the SavedModel in a fresh process")
    answers = subprocess.run(
        [sys.executable, "-c", ASK, str(folder / "saved_model" / "1")]
        + [*QUESTIONS],
        capture_output=True,
        text=True,
    )
    if answers.returncode:
        sys.exit(answers.stderr)
    for line in answers.stdout.splitlines():
        question, label, score = line.split("\t")
        print(f"  {question}")
        print(f"    -> {label} ({score}); right: {QUESTIONS[question]}")
    print("  (TensorFlow alone: that process never imported keras_albert)")
    pretrained, finetuned, scratch = (
        json.loads((folder / name / "report.json").read_text())
        for name in ("pretrained", *runs)
    )
    report(pretrained["held_out"], finetuned, scratch)
    print(
        f"{(time.monotonic() - started) / 60:.1f} minutes; everything is in "
        f"{folder}"
    )


def report(held_out: dict, finetuned: dict, scratch: dict) -> None:
    """The numbers, each beside what it must be compared with."""
    step("Report")
    print(
        f"masked-LM, held-out documents        "
        f"{held_out['mlm_accuracy']:.3f}   always the most frequent token "
        f"{held_out['mlm_baseline']:.3f}   ({held_out['mlm_count']:,} tokens)\n"
        f"sentence order, held-out documents   "
        f"{held_out['sop_accuracy']:.3f}   guessing "
        f"{held_out['sop_baseline']:.3f}   ({held_out['sop_count']:,} pairs; "
        "needs more text and time than a demo has)\n"
        f"chapter of a held-out passage        "
        f"{finetuned['accuracy']:.3f}   without pretraining "
        f"{scratch['accuracy']:.3f}, always the most frequent chapter "
        f"{finetuned['baseline']:.3f}   ({finetuned['count']:,} "
        f"passages, {finetuned['labels']} chapters)"
    )


def step(title: str) -> None:
    """A heading."""
    print(f"\n== {title}", flush=True)


def albert(command: str, options: dict, *flags: str) -> None:
    """Runs `keras-albert command --option value ...`, as a user would."""
    arguments = [str(part) for pair in options.items() for part in pair]
    print("$ keras-albert", command, *arguments, *flags, flush=True)
    program = Path(sys.executable).with_name("keras-albert")
    done = subprocess.run([program, command, *arguments, *flags])
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
