"""A device's loop: a text a line in, its label a line out, without Keras.

    keras-albert export --model classifier --output device --format litert \
        --weights int8 --data test.tsv
    python examples/device.py device < texts.txt

The device needs the exported folder and `pip install ai-edge-litert numpy
sentencepiece`, then `pip install --no-deps` of this package, of which only the
tokenizer is loaded. A tab parts the two texts of a pair.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from keras_albert.text.tokenizer import Tokenizer

OTHERS = "tokens", "multilabel", "qa", "SQuAD-2.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="an export for LiteRT")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    model = options.folder / "model.tflite"
    if not model.is_file():
        sys.exit(
            f"{options.folder}: no {model.name}. Give the output folder of "
            "keras-albert export --format litert."
        )
    settings, made = (
        json.loads((options.folder / name).read_text("utf-8"))
        for name in ("task.json", "export.json")
    )
    labels, longest = settings["labels"], max(settings["lengths"])
    if labels is None or settings["task"] in OTHERS:
        sys.exit(f"This loop is for a label a text, not {settings['task']}.")
    tokenizer = Tokenizer(options.folder)
    interpreter = Interpreter(str(model), num_threads=options.threads)
    run = interpreter.get_signature_runner()

    # As a SavedModel does, a line is read without what is no UTF-8 in it.
    sys.stdin.reconfigure(encoding="utf-8", errors="ignore")
    for line in sys.stdin:
        start = time.perf_counter()
        text, *pair = line.rstrip("\n").split("\t", made["reads_pairs"])
        # One row, as long as it is: padding would be computed, too.
        row = tokenizer([text], pair or None, max_length=longest)
        logits = run(token_ids=row["token_ids"])["logits"][0]
        odds = np.exp(logits - logits.max())
        odds /= odds.sum()
        milliseconds = 1000 * (time.perf_counter() - start)
        best = int(odds.argmax())
        print(
            f"{labels[best]}\t{odds[best]:.3f}\t{milliseconds:.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
