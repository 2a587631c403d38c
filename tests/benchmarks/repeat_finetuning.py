"""Fine-tunes again and again in fresh processes, and counts those that die.

    python tests/benchmarks/repeat_finetuning.py --runs 60

Each run is `keras-albert finetune` on TensorFlow with oneDNN switched on, which
is where memory was corrupted once (see tests/onednn_collision.py): a classifier
of the demo's size with random weights, 14 labels, 30 steps, lengths around the
size of an attention head.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

LABELS, ROWS, HEAD_SIZE = 14, 480, 32
WORDS = "the a fox dog hen barn letter river tea London painted sold of in"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_ENABLE_ONEDNN_OPTS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder)
        make_table(folder / "train.tsv")
        lost = 0
        for number in range(options.runs):
            status = finetune(folder, number, options.steps)
            lost += status != 0
            print(f"run {number}: status {status}", flush=True)
    print(f"{lost} of {options.runs} runs were lost")
    sys.exit(bool(lost))


def make_table(path: Path) -> None:
    rng = random.Random(0)
    rows = ["text\tlabel"]
    for number in range(ROWS):
        words = rng.choices(WORDS.split(), k=rng.randrange(4, 60))
        rows.append(f"{' '.join(words)}\tlabel {number % LABELS}")
    path.write_text("\n".join(rows) + "\n")


def make_model(folder: Path) -> None:
    """A vocabulary and a model folder with random weights, in a process."""
    (folder / "corpus.txt").write_text(f"{WORDS}.\n" * 40)
    program = f"""
import keras_albert as ka
from keras_albert.corpus.config import VocabRun
from keras_albert.corpus.vocabulary import train_vocabulary
train_vocabulary(VocabRun(input=("corpus.txt",), output="vocab", vocab_size=36))
tokenizer = ka.Tokenizer("vocab")
config = ka.AlbertConfig(
    vocab_size=tokenizer.vocab_size, embedding_size=64,
    hidden_size={4 * HEAD_SIZE}, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=512, max_position_embeddings=128,
)
ka.AlbertBackbone(config, tokenizer=tokenizer).save_to_preset("model")
"""
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)


def finetune(folder: Path, number: int, steps: int) -> int:
    """The status of the process: 0, or minus the signal that ended it."""
    done = subprocess.run(
        [sys.executable, "-m", "keras_albert.cli", "finetune"]
        + ["--model", "model", "--train", "train.tsv"]
        + ["--validation", "train.tsv", "--output", f"run-{number}"]
        + ["--steps", str(steps), "--batch-size", "16"]
        + ["--seed", str(number)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    main()
