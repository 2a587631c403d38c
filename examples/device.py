"""Answers texts on a device: reads lines, writes JSON, without Keras.

    keras-albert export --model classifier --output device --format litert \
        --weights int8 --data test.tsv
    python examples/device.py device < texts.txt

The device needs the exported folder and `pip install ai-edge-litert numpy
sentencepiece`, then `pip install --no-deps` of this package, of which only the
tokenizer and the windows of contexts are loaded. Tabs separate texts in a line:

    text                             one label, several labels, a number, labels
                                     of the words, or a vector
    text, second text                the same for models of pairs; or how
                                     similar both are
    context, question                the part of the context that answers it
    text, [question,] choice, ...    the right one of the choices

The answers are those that `keras-albert predict` writes.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from keras_albert.tasks.names import EMBEDDING, READING_TASKS, SIMILARITY
from keras_albert.tasks.question_answering.config import ReadingConfig
from keras_albert.tasks.question_answering.decoding import (
    decode_beam,
    decode_logits,
)
from keras_albert.tasks.question_answering.squad import Question
from keras_albert.tasks.question_answering.windows import make_windows
from keras_albert.text.model_inputs import choice_rows, text_rows, word_rows
from keras_albert.text.tokenizer import Tokenizer

# function of the texts of a line to its answer
Answer = Callable[..., dict]


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
    interpreter = Interpreter(str(model), num_threads=options.threads)
    signature = interpreter.get_signature_runner()

    def run(ids: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs of one row, which has no padding: it would cost time."""
        outputs = signature(token_ids=ids[None])
        return {name: value[0] for name, value in outputs.items()}

    answer, fewest, most = answering(
        Tokenizer(options.folder), settings, made, run
    )
    # As a SavedModel does, a line is read without what is no UTF-8 in it.
    sys.stdin.reconfigure(encoding="utf-8", errors="ignore")
    sys.stdout.reconfigure(encoding="utf-8")
    for number, line in enumerate(sys.stdin, start=1):
        start = time.perf_counter()
        texts = line.rstrip("\n").split("\t", most - 1)
        if len(texts) < fewest:
            sys.exit(
                f"line {number}: expected {fewest} texts or more, separated "
                f"by tabs, for {settings['task']}. Received: {len(texts)}. "
                "See the top of examples/device.py."
            )
        found = answer(*texts)
        found["ms"] = round(1000 * (time.perf_counter() - start), 1)
        print(json.dumps(found, ensure_ascii=False), flush=True)


def answering(
    tokenizer: Tokenizer, settings: dict, made: dict, run: Callable
) -> tuple[Answer, int, int]:
    """What answers a line, and its fewest and most texts (0: any number).

    `settings` and `made` are the content of task.json and export.json.
    """
    task, labels = settings["task"], settings["labels"]
    longest = max(settings["lengths"])
    limits = settings.get("threshold")  # those that were tuned

    def of_text(text: str, pair: str | None = None) -> dict:
        pairs = None if pair is None else [pair]
        (row,) = text_rows(tokenizer, [text], pairs, longest)
        outputs = run(row.token_ids)
        if task == EMBEDDING:
            return {"prediction": rounded(outputs["embedding"])}
        logits = outputs["logits"]
        if labels is None:
            return {"prediction": rounded(logits[0])}
        if task == "multilabel":
            odds = 1 / (1 + np.exp(-logits))
            return {
                "prediction": [
                    labels[i] for i in np.flatnonzero(odds > (limits or 0.5))
                ],
                "score": dict(zip(labels, rounded(odds), strict=True)),
            }
        odds = softmax(logits)
        best = int(odds[1] > limits[0] if limits else odds.argmax())
        return {"prediction": labels[best], "score": rounded(odds[best])}

    def of_both(text: str, other: str) -> dict:
        first, second = (
            run(row.token_ids)["embedding"].astype("float64")
            for row in text_rows(tokenizer, [text, other], None, longest)
        )
        size = np.linalg.norm(first) * np.linalg.norm(second)
        return {"prediction": rounded(first @ second / max(size, 1e-12))}

    def of_words(text: str) -> dict:
        found = []
        for row, starts in word_rows(tokenizer, text.split(), longest):
            best = run(row.token_ids)["logits"].argmax(-1)
            found += [labels[i] for i in best[starts]]
        return {"prediction": found}

    def of_choices(text: str, *others: str) -> dict:
        question, *choices = others if has_question else ("", *others)
        rows = choice_rows(tokenizer, [text], [question], [choices], longest)
        odds = softmax(
            np.array([run(row.token_ids)["logits"][0] for row in rows])
        )
        best = int(odds.argmax())
        return {"prediction": best, "score": rounded(odds[best])}

    def of_context(context: str, question: str) -> dict:
        asked = [Question("", question, context, (), False)]
        windows = make_windows(tokenizer, asked, reading.windows)
        rows = [run(window.token_ids) for window in windows]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        decode = decode_beam if labels else decode_logits
        given = [columns] if labels else [columns["start"], columns["end"]]
        (found,) = decode(asked, windows, *given, reading.answers)
        limit = math.inf if reading.threshold is None else reading.threshold
        text = found.text(limit if labels else math.inf)
        if not text:
            score = 0.5 + 0.5 * math.tanh(found.no_answer / 2)
            return {"prediction": "", "score": rounded(score)}
        best = next(each for each in found.candidates if each.text)
        return {
            "prediction": text,
            "score": rounded(best.probability),
            "start": best.start,
            "end": best.end,
        }

    if task in READING_TASKS:
        reading = ReadingConfig.from_dict(settings["reading"])
        return of_context, 2, 2
    if task in ("choice", "RACE"):
        question = settings["columns"]["question"]
        has_question = task == "RACE" or question is not None
        return of_choices, 3 + has_question, 0
    if task == "tokens":
        return of_words, 1, 1
    if task == SIMILARITY:
        return of_both, 2, 2
    return of_text, 1, 1 + made["reads_pairs"]


def softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max())
    return odds / odds.sum()


def rounded(values):
    return np.round(np.asarray(values, "float64"), 6).tolist()


if __name__ == "__main__":
    main()
