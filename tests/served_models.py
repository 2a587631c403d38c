"""Random models of every kind of task, and what is to be served of them.

Imports TensorFlow no more than Keras does: the package alone says what the
answers are.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import special
from small import TEXT_CONFIG, add_noise

import keras_albert as ka
from keras_albert.exports.config import ExportRun
from keras_albert.exports.run import export_run
from keras_albert.tasks.config import HeadOptions
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    WindowConfig,
)
from keras_albert.tasks.question_answering.task import (
    NAMES,
    NO_CANDIDATE,
    predictions_of,
)
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.text.normalization import to_text

LONGEST = 23
READING = ka.ReadingConfig(
    WindowConfig(sequence_length=LONGEST, stride=5, query_length=7),
    AnswerConfig(n_best=6, answer_length=9),
)
ABC, AB = ("a", "b", "ç"), ("no", "yes")
# What is served: the task, its labels, its columns.
KINDS = {
    "classification": ("classification", ABC, {}),
    "pairs": ("pairs", AB, {"pair": "pair"}),
    "regression": ("STS-B", None, {"pair": "pair"}),
    "multilabel": ("multilabel", ABC, {}),
    "choice": ("choice", None, {}),
    "question and choice": ("RACE", None, {}),
    "tokens": ("tokens", ABC, {}),
    "answer": ("SQuAD-1.1", None, {}),
    "answer or none": ("SQuAD-2.0", NAMES, {}),
    "early exit": ("classification", ABC, {}),
    "ensemble": ("classification", ABC, {}),
}
# These have thresholds, which half of the texts PLAIN exceed.
TUNED = ("pairs", "multilabel")
PLAIN = [
    "The fox",
    "sold two hens",
    "a letter in London",
    "nothing",
    "",
    "7 of",
]
_EVERYWHERE = {"serving_default", "token_ids", "embed", "tokenize"}
_MORE = {
    "classification": {"classify"},
    "early exit": {"classify"},
    "ensemble": {"classify"},
    "pairs": {"pair"},
    "regression": {"pair"},
}
SIGNATURES = {kind: _EVERYWHERE | _MORE.get(kind, set()) for kind in KINDS}
NO_WORD = {"words": "", "labels": "", "scores": 0, "start": -1, "end": -1}
READS_PAIRS = {name for name, each in KINDS.items() if each[2]} | {
    "choice",
    "question and choice",
    "answer",
    "answer or none",
}

Row = dict[str, object]
softmax = functools.partial(special.softmax, axis=-1)


def random_predictor(tokenizer, kind, reading=READING):
    task, names, columns = KINDS[kind]
    # Wider than the vocabulary, as released models may be.
    config = TEXT_CONFIG.replace(vocab_size=tokenizer.vocab_size + 3)
    options, rule = HeadOptions(), None
    if kind == "early exit":
        config = config.replace(num_hidden_layers=3)
        options, rule = HeadOptions(exits="own"), ka.EarlyExit(patience=1)
    model = ALL_TASKS[task].head(ka.AlbertBackbone(config), names, options)
    if kind == "ensemble":
        other = ALL_TASKS[task].head(ka.AlbertBackbone(config), names, options)
        model = ka.AlbertEnsemble([model, other])
    # Op by op: no time goes into tracing for each batch size.
    model.compile(run_eagerly=True, jit_compile=False)
    reads = "context" in ALL_TASKS[task].inputs(ka.TableColumns())
    longest = reading.windows.sequence_length if reads else LONGEST
    predictor = ka.Predictor(
        model=add_noise(model),
        tokenizer=tokenizer,
        task=task,
        labels=names,
        lengths=(16, longest),
        columns=ka.TableColumns(**columns),
        reading=reading if reads else None,
        early_exit=rule,
    )
    if kind not in TUNED:
        return predictor
    logits, _ = expected(predictor, **inputs_of(kind, PLAIN))
    probabilities = (
        softmax(logits)[:, 1:] if kind == "pairs" else special.expit(logits)
    )
    return predictor.with_threshold(np.median(probabilities, axis=0).tolist())


def exporter(served, models, tokenizer, export_format, **options):
    """Returns what gives the predictor and the export of a kind of task.

    Args:
        served: folder of the exports, each in a folder of its kind's name.
        models: folder of the model folders.
    """

    def of(kind):
        predictor = random_predictor(tokenizer, kind)
        if predictor.reading is None:
            # An odd number of pieces: it matters which text of a pair is cut.
            predictor = dataclasses.replace(predictor, lengths=(16, 24))
        out = served / kind.replace(" ", "_")
        if not out.exists():
            predictor.save(models / out.name)
            export_run(
                ExportRun(models / out.name, out, export_format, **options)
            )
        return predictor, out

    return of


def inputs_of(kind, texts):
    """Inputs of `serving_default`: each text, and the one after it."""
    others = texts[1:] + texts[:1]
    if "answer" in kind:
        return {"question": others, "context": texts}
    inputs = {"text": texts}
    if kind in ("pairs", "regression"):
        inputs["pair"] = others
    if "choice" in kind:
        inputs["choices"] = [[other, "two hens"] for other in others]
    if "question" in kind:
        blanks = ["who?", "_ is _"] * len(texts)
        inputs["question"] = blanks[: len(texts)]
    return inputs


def texts_of(inputs):
    """Replaces bytes by the texts that the package makes of them."""
    return {
        name: [
            [*map(to_text, x)] if isinstance(x, list) else to_text(x)
            for x in value
        ]
        for name, value in inputs.items()
    }


def expected(predictor, **inputs):
    """The model's outputs, and what Predictor decodes of them."""
    features = predictor._features_of(texts_of(inputs))
    outputs = predictor.outputs(features)
    return outputs, predictor.decode(outputs, features)


def answers_of(predictor: ka.Predictor, **inputs: Sequence) -> list[Row]:
    """What `serving_default` gives for each example, by Predictor."""
    inputs = texts_of(inputs)
    if predictor.task == "tokens":
        return _word_answers(predictor, inputs["text"])
    features = predictor._features_of(inputs)
    outputs = predictor.outputs(features)
    decoded = predictor.decode(outputs, features)
    if predictor.reading is not None:
        against = [p.no_answer for p in predictions_of(outputs, features)]
        return [
            {
                "answer": row["prediction"],
                "score": row["score"],
                "start": -1 if row["start"] is None else row["start"],
                "end": -1 if row["end"] is None else row["end"],
                "no_answer": min(score, NO_CANDIDATE),
            }
            for row, score in zip(decoded, against, strict=True)
        ]
    if predictor.task == "multilabel":
        return [
            {
                "probabilities": probabilities,
                "labels": [*predictor.labels],
                "chosen": [name in row["prediction"] for name in ABC],
            }
            for probabilities, row in zip(
                special.expit(outputs), decoded, strict=True
            )
        ]
    if predictor.labels is None and "choices" not in inputs:
        return [{"score": row["prediction"]} for row in decoded]
    probabilities = softmax(outputs)
    if "choices" in inputs:
        return [
            {"choice": int(row.argmax()), "probabilities": row}
            for row in probabilities
        ]
    return [
        {
            "label": row["prediction"],
            "score": row["score"],
            "probabilities": each,
            "labels": [*predictor.labels],
        }
        for each, row in zip(probabilities, decoded, strict=True)
    ]


def _word_answers(predictor, texts):
    places = [[*re.finditer(r"\S+", text)] for text in texts]
    words = [[word[0] for word in row] for row in places]
    features = predictor._features_of({"text": words})
    outputs = predictor.outputs(features)
    decoded = predictor.decode(outputs, features)
    # In the order of the words; a long text has several rows.
    scores = itertools.chain.from_iterable(
        softmax(logits[target >= 0]).max(-1)
        for logits, target in zip(outputs, features.token_target, strict=True)
    )
    return [
        {
            "words": row,
            "labels": answer["prediction"],
            "scores": [*itertools.islice(scores, len(row))],
            "start": [word.start() for word in found],
            "end": [word.end() for word in found],
        }
        for row, found, answer in zip(words, places, decoded, strict=True)
    ]


def embeddings_of(predictor: ka.Predictor, texts: Sequence) -> list[Row]:
    """What the signature `embed` gives."""
    packed = predictor.tokenizer(
        [*map(to_text, texts)], max_length=predictor.sequence_length
    )
    vectors = ka.AlbertForTextEmbedding(predictor.model.backbone)(packed)
    return [{"embedding": row} for row in np.asarray(vectors)]


def ids_of(predictor: ka.Predictor, *columns: Sequence) -> list[list[int]]:
    """The rows of texts, or of pairs of texts, without padding."""
    encode, pack = predictor.tokenizer.encode_batch, predictor.tokenizer.pack
    encoded = [encode(map(to_text, texts)) for texts in columns]
    rows = zip(*encoded, strict=True)
    return [pack(*x, max_length=predictor.sequence_length)[0] for x in rows]


def outputs_of(
    predictor: ka.Predictor,
    tokens: list[int],
    segments: list[int],
    padding: int = 0,
) -> dict[str, np.ndarray]:
    """What `token_ids` gives for a row with as much padding, [1, ...]."""
    x = {
        "token_ids": tokens + [0] * padding,
        "segment_ids": segments + [0] * padding,
        "padding_mask": [1] * len(tokens) + [0] * padding,
    }
    x = {name: np.array([row], "int32") for name, row in x.items()}
    if "choices" in ALL_TASKS[predictor.task].inputs(predictor.columns):
        x = {name: row[:, None] for name, row in x.items()}
    if predictor.early_exit is None:
        outputs = predictor.model(x)
    else:
        outputs = predictor.layer_by_layer.with_layers(predictor.model, x)
    if not isinstance(outputs, dict):
        outputs = {"logits": outputs}
    return {name: np.asarray(value) for name, value in outputs.items()}


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


def check_rows(outputs: dict[str, np.ndarray], wanted: list[Row], signature):
    """Compares what a signature gives, of which all texts are bytes."""
    assert {len(column) for column in outputs.values()} == {len(wanted)}
    as_text = np.vectorize(bytes.decode, otypes=[object])
    outputs = {
        name: as_text(column) if column.dtype == object else column
        for name, column in outputs.items()
    }
    for i, row in enumerate(wanted):
        assert outputs.keys() == row.keys()
        for name, value in row.items():
            try:
                _check_value(name, outputs[name][i], value)
            except AssertionError as error:
                raise AssertionError((signature, name, i)) from error


def _check_value(name, found, wanted):
    """Shorter rows of words than the longest one are filled up."""
    found = np.asarray(found)
    # NumPy's own strings lose NULs.
    wanted = np.asarray(wanted, object if found.dtype == object else None)
    if found.ndim == 1:
        rest = found[len(wanted) :].tolist()
        assert all(value == NO_WORD[name] for value in rest), rest
        found = found[: len(wanted)]
    if found.dtype.kind == "f":
        close(found, wanted)
    else:
        assert found.tolist() == wanted.tolist()


def operations(version):
    """What a server links, of TensorFlow and tensorflow-text `version`."""
    path = Path(__file__).parent / "data" / "serving_ops.txt"
    rows = map(str.split, path.read_text().splitlines())
    return {name for name, *only in rows if only in ([], [version])}


def used(graph):
    """The operations of a graph and of all functions in its library."""
    functions = graph.library.function
    names = {function.signature.name for function in functions}
    ops = {node.op for node in graph.node}
    ops |= {node.op for function in functions for node in function.node_def}
    return ops - names
