"""Text embeddings through the commands: trained, measured, used, exported."""

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from commands import (
    edit_json,
    refused,
    report_of,
    rows_of,
    run,
    training_of,
    write_rows,
)
from scipy import stats
from sklearn.feature_extraction.text import TfidfVectorizer
from small import numpy

import keras_albert as ka
import keras_albert.exports.check as check_module
import keras_albert.exports.check_vectors as check_vectors
import keras_albert.exports.run as exporting
from keras_albert.exports import embed as embedding
from keras_albert.exports.config import CheckRun
from keras_albert.exports.load import load_exported
from keras_albert.finetuning.config import EvaluateRun
from keras_albert.finetuning.evaluate import evaluate
from keras_albert.tasks import vector_scores
from keras_albert.text.special_tokens import CLS_ID, SEP_ID

ANIMALS = ("fox", "dog", "hens", "village", "barn", "London")
LEARNING = ["--batch-size=12", "--epochs=8", "--learning-rate=0.003"]
LEARNING += ["--warmup-share=0.2"]


def near(word, rng):
    """A text about a word."""
    return f"{rng.choice(['the', 'a', 'old'])} {word} {rng.choice('0123')}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pretrained_folder):
    """A model that was never trained, and tables.

    Texts with one word in common belong together; the negatives have others.
    """
    folder = tmp_path_factory.mktemp("embeddings")
    (folder / "pretrained").symlink_to(pretrained_folder)
    rng = random.Random(0)
    for part, count in (("train", 120), ("held", 40)):
        pairs, scored = [], []
        for _ in range(count):
            word, other, third = rng.sample(ANIMALS, 3)
            row = {"a": near(word, rng), "b": near(word, rng)}
            no = {"no": near(other, rng), "no2": near(third, rng)}
            pairs.append(row | no)
            same = rng.random() < 0.5
            pair = near(word if same else other, rng)
            scored.append({"text": row["a"], "pair": pair, "label": 5 * same})
        for name, rows in (("pairs", pairs), ("scored", scored)):
            write_rows(folder / f"{name}.{part}.jsonl", rows)
    return folder


def settings(folder, output, table):
    """What `finetune` and `refused` are told of the model and the table."""
    train = folder / f"{table}.train.jsonl"
    return {"model": folder / "pretrained", "train": train, "output": output}


def finetune(folder, output, table, *options):
    """Fine-tunes, and returns the report."""
    run("finetune", *LEARNING, *options, **settings(folder, output, table))
    return report_of(output)


def held(folder, table):
    return f"--validation={folder / f'{table}.held.jsonl'}"


PAIRS = ("--task=embedding", "--columns.text=a", "--columns.pair=b")


@pytest.mark.on_torch
def test_pairs(folder, tmp_path, capsys):
    """Learned with negatives, in parts, for vectors of several sizes."""
    output = tmp_path / "model"
    report = finetune(
        *(folder, output, "pairs", *PAIRS, held(folder, "pairs")),
        *("--columns.negative", "no", "no2"),
        *("--embedding.projection=8", "--embedding.dimensions", "8", "4"),
        *("--embedding.symmetric", "--embedding.rows-at-once=30"),
    )
    assert report["mrr"] > report["before_fine_tuning"] + 0.1, report
    assert 0 < report["bag_of_words"] < 1
    assert report["mrr_of_8_numbers"] == report["mrr"]  # all of them
    assert 0.1 < report["mrr_of_4_numbers"] < 1
    said = capsys.readouterr().out
    assert f"before fine-tuning: mrr {report['before_fine_tuning']:.3f}" in said
    assert f"TF-IDF vectors: mrr {report['bag_of_words']:.3f}" in said
    found = report["before_fine_tuning_scores"]
    assert (
        f"before fine-tuning: mrr {found['mrr']:.3f}, recall at 1 "
        f"{found['recall_at_1']:.3f}, recall at 10 {found['recall_at_10']:.3f}"
    ) in said
    said = run("evaluate", model=output, data=folder / "pairs.held.jsonl")
    of_words = f"the cosine of TF-IDF vectors: mrr {report['bag_of_words']:.3f}"
    assert of_words in said
    for name in ("mrr", "recall_at_1", "recall_at_10", "ndcg_at_10"):
        assert f"{name.replace('_', ' ')} {report[name]:.3f}" in said
    card = (output / "README.md").read_text()
    assert "| mrr at the start |" in card
    assert "- vectors of 8 numbers, by mean pooling" in card
    assert "| mrr of the cosine of TF-IDF vectors |" in card
    assert 'ka.load("this folder").encode(["a text", "another text"])' in card
    # Vectors, from the command and in Python.
    texts = tmp_path / "texts.txt"
    texts.write_text("the fox\nan old barn\n")
    said = run("predict", "--columns.text=text", model=output, data=texts)
    found = [row["prediction"] for row in rows_of(said)]
    model = ka.load(output)
    vectors = model.encode(["the fox", "an old barn"], normalize=False)
    assert vectors.shape == (2, 8)
    np.testing.assert_allclose(found, vectors, atol=1e-5)
    assert ka.Predictor.load(output).predict([]).shape == (0, 8)
    short = model.encode(["the fox"], dimensions=4)
    expected = vectors[:1, :4] / np.linalg.norm(vectors[0, :4])
    np.testing.assert_allclose(short, expected, atol=1e-5)


@pytest.mark.on_torch
@pytest.mark.parametrize("loss", ["ranking", "regression"])
def test_scores_of_pairs(folder, tmp_path, loss):
    output = tmp_path / "model"
    report = finetune(
        *(folder, output, "scored", "--task=similarity"),
        held(folder, "scored"),
        *(f"--embedding.loss={loss}", "--embedding.score-range", "0", "5"),
    )
    assert report["spearman"] > report["before_fine_tuning"] + 0.1, report
    told = {"model": output, "data": folder / "scored.held.jsonl"}
    start = ka.AlbertForTextEmbedding(
        ka.load(folder / "pretrained", backbone=True)
    )
    rows = rows_of(told["data"].read_text())
    texts, pairs = ([row[name] for row in rows] for name in ("text", "pair"))
    cosines = np.diag(start.similarity(texts, pairs))
    labels = [row["label"] for row in rows]
    assert report["before_fine_tuning_scores"] == pytest.approx(
        {
            "spearman": stats.spearmanr(cosines, labels).statistic,
            "pearson": stats.pearsonr(cosines, labels).statistic,
        },
        abs=1e-4,
    )
    assert report["bag_of_words_scores"]["spearman"] == report["bag_of_words"]
    assert -1 < report["bag_of_words_scores"]["pearson"] < 1
    assert f"spearman {report['spearman']:.3f}" in run("evaluate", **told)
    rows = rows_of(run("predict", **told))
    model = ka.load(output)
    cosines = [
        model.similarity([row["text"]], [row["pair"]]).item() for row in rows
    ]
    np.testing.assert_allclose(
        [row["prediction"] for row in rows], cosines, atol=1e-5
    )
    found = ka.Predictor.load(output).predict(["the fox"], ["a fox"])
    assert found == pytest.approx(model.similarity(["the fox"], ["a fox"])[0])


FORMATS = ("onnx", "saved_model", "litert")


def exported():
    """Models and formats. `make proof` traces further graphs of TensorFlow."""
    for task, pooling, projection, unit, *quick in (
        ("similarity", "max", 7, False, "onnx"),
        ("embedding", "cls", 7, True, "onnx"),
        ("similarity", "mean", None, True, "onnx"),
        ("embedding", "weighted_layers", None, False, "onnx"),
        ("embedding", "idf_first_last", None, False, "onnx", "saved_model"),
    ):
        head = {"pooling": pooling, "projection": projection, "normalize": unit}
        for target in FORMATS:
            marks = () if target in quick else pytest.mark.proof
            name = f"{pooling} {target}"
            told = (task, head, target, "float32")
            yield pytest.param(*told, marks=marks, id=name)
    for target, marks in (("onnx", ()), ("litert", pytest.mark.proof)):
        told = ("similarity", {}, target, "int8")
        yield pytest.param(*told, marks=marks, id=f"int8 {target}")


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="graphs are traced by TensorFlow",
)
@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(("task", "head", "target", "weights"), [*exported()])
def test_exported(
    folder, tmp_path, task, head, target, weights, few_signatures
):
    """`check` compares vectors, and their cosines."""
    few_signatures("serving_default", "token_ids")  # which are compared
    backbone = ka.load(folder / "pretrained", backbone=True)
    two_layers = backbone.config.replace(num_hidden_layers=2)
    backbone = ka.AlbertBackbone(two_layers, tokenizer=backbone.tokenizer)
    model = ka.AlbertForTextEmbedding(backbone, **head)
    if model.layer_weights is not None:
        model.layer_weights.assign([1.0, -1.0])
    if model.pooling == "idf_first_last":
        model.adapt(["the fox", "the barn", "the fox and the hens"])
        # Those of other packages may be below 1.
        model.token_weights.assign(model.token_weights / 100)
    data = folder / "scored.held.jsonl"
    told = {"model": tmp_path / "model", "data": data}
    ka.Predictor(model, task=task).save(tmp_path / "model")
    made = {"output": tmp_path / target, "format": target, "weights": weights}
    run("export", "--force", **told, **made)
    said = run("check", **told, export=tmp_path / target)
    least = "1.0000" if weights == "float32" else r"(0\.9[5-9]|1\.0)\d+"
    assert re.search(f"cosines of at least {least} with the model's", said)
    # `embed` runs the export.
    texts = [row["text"] for row in rows_of(data.read_text())]
    vectors = embed(folder, tmp_path, "b", data, f"--model={tmp_path / target}")
    cosines = np.sum(ka.read_vectors(vectors) * model.encode(texts), axis=1)
    assert cosines.min() > (0.9999 if weights == "float32" else 0.95)
    assert re.search(r"[\d.]{4,5}% of the 10 nearest texts of each", said)
    if target != "saved_model":
        return
    answers = load_exported(tmp_path / target).model.call_signature(
        "serving_default",
        {"text": ["the fox", "a"]}
        | ({"pair": ["a barn", "a"]} if task == "similarity" else {}),
    )
    if task == "embedding":
        expected = model.encode(["the fox", "a"], normalize=False)
        np.testing.assert_allclose(answers["embedding"], expected, atol=1e-5)
        length = np.linalg.norm(expected, axis=1)
        assert np.allclose(length, 1, atol=1e-5) == model.normalize
    else:
        expected = model.similarity(["the fox", "a"], ["a barn", "a"])
        np.testing.assert_allclose(
            answers["score"], np.diag(expected), atol=1e-5
        )


def test_vectors_that_an_export_changes(folder, model, tmp_path, monkeypatch):
    """Texts alone have a perfect score, whatever their vectors are."""
    (tmp_path / "texts.txt").write_text("the fox\na barn\nthe hens\n")
    monkeypatch.setattr(exporting, "least_cosine", lambda *both: 0.94)
    told = folder / "model", tmp_path / "out", "onnx", "int8"
    with pytest.raises(ka.AlbertError, match=r"0\.9400 .* than 0\.95"):
        ka.export(*told, data=tmp_path / "texts.txt")
    assert not (tmp_path / "out").exists()
    ka.export(*told, data=tmp_path / "texts.txt", force=True)
    assert (tmp_path / "out" / "model.onnx").is_file()


@pytest.mark.any_backend
def test_vectors_that_disagree(monkeypatch):
    """Of four texts in a plane: one vector is turned by 90 degrees."""
    angles = np.radians([0, 15, 50, 100])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = vectors * 3  # the length of a vector does not matter
    same = check_vectors.vectors_agree([*vectors], [*found])
    assert same["cosine"] == pytest.approx(1) and same["neighbours"] == 1
    assert same["compared"] == min(10, len(vectors) - 1)
    monkeypatch.setattr(check_vectors, "NEIGHBOURS", 1)
    found[0] = [0, 1]
    turned = check_vectors.vectors_agree([*vectors], [*found])
    # The nearest texts: 1, 0, 1, 2 before; 3, 2, 1, 0 afterwards.
    assert turned["cosine"] == pytest.approx(0, abs=1e-6)
    assert turned["neighbours"] == 1 / 4
    asked = CheckRun(Path("served"), "model", Path("texts.txt"))
    # Whitened vectors of float32 differ by more than other outputs may.
    report = {"largest_difference": 1, "error": 0.009, "same_predictions": 1}
    for weights, cosine, said in (
        ("int8", 0.9494, r"0\.9494 .*than 0\.95\."),
        ("float16", 0.9494, r"0\.9494 .*than 0\.95\."),
        ("float32", 0.9998, r"0\.9998 .*than 0\.9999\."),
    ):
        report |= {"weights": weights, "compute": "float32", "vectors": same}
        check_module._judge(report, 1, asked)
        report["vectors"] = {"cosine": cosine, "neighbours": 1}
        with pytest.raises(ka.AlbertError, match=rf"served: .*{said}"):
            check_module._judge(report, 1, asked)
    report["vectors"] = {"cosine": np.nan, "neighbours": 1}
    with pytest.raises(ka.AlbertError, match="cosine of nan"):
        check_module._judge(report, 1, asked)
    # Lengths count in float32.
    report |= {"vectors": same, "error": 0.011}
    with pytest.raises(ka.AlbertError, match=r"differ by 0\.011 of .*0\.01\."):
        check_module._judge(report, 1, asked)


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_texts_alone(folder, tmp_path, capsys):
    """SimCSE: nothing is held out, and pairs tell afterwards what it is."""
    output = tmp_path / "model"
    told = settings(folder, output, "pairs") | {"task": "embedding", "steps": 2}
    said = refused(capsys, "finetune", "--columns.text=a", **told)
    assert "--dropout 0.1, or name the column" in said
    options = ("--columns.text=a", held(folder, "pairs"))
    said = refused(capsys, "finetune", *options, **told)
    assert "`validation` needs pairs of texts" in said
    assert not output.exists()
    texts = tmp_path / "lines.txt"
    texts.write_bytes(b"\n\n\xff\n")  # without the bad line no text is left
    blank = told | {"train": texts, "dropout": 0.1}
    said = refused(capsys, "finetune", "--skip-bad", **blank)
    assert "lines.txt: all lines are blank. Add texts." in said
    assert not output.exists()
    rows = rows_of((folder / "pairs.train.jsonl").read_text())
    texts.write_text("\n\n".join(row["a"] for row in rows))  # blank lines
    said = run("finetune", **told | {"train": texts, "dropout": 0.1})
    assert f"{len(rows)} examples; 2 steps" in said
    assert "nothing is held out: each text stands alone" in said
    assert "every text is its own partner" in said
    data = folder / "scored.held.jsonl"
    for model in (output, folder / "pretrained"):
        options = ("--task=similarity", "--columns.text=text")
        assert "spearman" in run("evaluate", *options, model=model, data=data)


@pytest.mark.on_torch
def test_the_options_of_the_losses(folder, tmp_path):
    """The loss that a run minimizes is that of its options."""

    def loss(table, *options):
        told = settings(folder, tmp_path / table, table)
        options = "--validation=none", "--steps=1", *options
        training = training_of(lambda: run("finetune", *options, **told))
        return training.content.model.loss.get_config()

    found = loss(
        *("pairs", *PAIRS, "--embedding.temperature=0.5"),
        *("--embedding.symmetric", "--embedding.dimensions", "8", "4"),
    )
    assert (found["temperature"], found["symmetric"]) == (0.5, True)
    assert found["dimensions"] == (8, 4)
    found = loss(
        *("scored", "--task=similarity", "--embedding.loss=regression"),
        *("--embedding.score-range", "0", "5", "--embedding.dimensions=8"),
    )
    assert (found["kind"], found["dimensions"]) == ("regression", (8,))
    assert found["score_range"] == (0, 5)


# By table: options, and what is said of them.
BAD = {
    "scored": {
        "--embedding.score-range 0 4": (
            r"scored.train.jsonl:\d+: the score must be from 0 to 4.*5"
        ),
        "--embedding.score-range 0 5 --validation=outside.jsonl": (
            r"outside.jsonl:2: the score must be from 0 to 5.*5.5"
        ),
        "--embedding.loss=regression": "is for scores of pairs, .*their range",
        "--embedding.loss=regression --embedding.temperature=1": (
            "`embedding.temperature` is for rankings. Received: 1"
        ),
        "--embedding.symmetric": (
            "`embedding.symmetric` is for embedding.*task='similarity'"
        ),
        "--columns.negative=no": "`columns.negative` has no meaning",
        "--batch-size=1": "one example has a single pair",
        "--train=equal.tsv": "both texts of every pair are equal",
    },
    "pairs": {
        "--embedding.dimensions 8 400": (
            "`embedding.dimensions` must be at most .*Received: 400"
        ),
        "--embedding.score-range 5 0": "lowest and the highest score.*5",
        "--embedding.score-range 0 5": (
            "is for similarity.*task='embedding'.*--embedding.score-range"
        ),
        "--task=pairs --embedding.pooling=max": (
            "`embedding.pooling` is for embedding, similarity"
        ),
        "--classifier-dropout=0.2": (
            "`classifier_dropout` is for classification, .*task='embedding'"
        ),
        "--batch-size=1": "a batch of one example has no negatives",
        "--train=same.tsv": "all partners are equal",
        "--train=case.tsv --dropout=0": "every text is its own partner",
    },
}


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("table", "options"),
    [(table, each) for table in BAD for each in BAD[table]],
)
def test_bad_input(folder, tmp_path, capsys, monkeypatch, table, options):
    monkeypatch.chdir(tmp_path)
    scores = [{"text": "a", "pair": "b", "label": x} for x in (5, 5.5)]
    write_rows(Path("outside.jsonl"), scores)
    equal = [f"the fox\tthe fox\t{x % 6}\n" for x in range(60)]
    Path("equal.tsv").write_text("text\tpair\tlabel\n" + "".join(equal))
    Path("same.tsv").write_text("a\tb\n" + "the fox\tthe fox\n" * 60)
    Path("case.tsv").write_text("a\tb\n" + "the fox\tThe Fox\na\tA\n" * 60)
    told = settings(folder, tmp_path / "model", table)
    of_task = PAIRS if table == "pairs" else ["--task=similarity"]
    given = *LEARNING, *of_task, *options.split()
    said = refused(capsys, "finetune", *given, **told)
    assert re.search(BAD[table][options], said), said
    assert not (tmp_path / "model").exists()


@pytest.mark.on_torch
def test_vectors_are_trained_further(folder, tmp_path, capsys):
    """Pooling, projection and length stay; the start is measured with them."""
    first, second = tmp_path / "first", tmp_path / "second"
    options = (*PAIRS, held(folder, "pairs"), "--steps=3")
    head = ("--embedding.pooling=max", "--embedding.projection=7")
    before = finetune(
        folder, first, "pairs", *options, *head, "--sequence-length=16"
    )
    again = (f"--model={first}", "--learning-rate=1e-30", "--steps=1")
    report = finetune(folder, second, "pairs", *options, *again)
    assert "(max pooling, projection to 7)" in capsys.readouterr().out
    assert report["before_fine_tuning"] == pytest.approx(before["mrr"])
    assert report["mrr"] == pytest.approx(before["mrr"])
    one, other = (ka.load(path) for path in (first, second))
    assert (other.pooling, other.size, other.max_tokens) == ("max", 7, 16)
    texts = ["the fox 1", "an old barn"]
    np.testing.assert_allclose(one.encode(texts), other.encode(texts), 0, 1e-5)


@pytest.mark.on_torch
def test_weights_of_rare_pieces(folder, tmp_path):
    """They come from the training texts, and stay when trained further."""
    first, second = tmp_path / "first", tmp_path / "second"
    held_out = held(folder, "scored")
    options = ("--task=similarity", "--embedding.pooling=idf", "--steps=1")
    finetune(folder, first, "scored", *options, held_out)
    rows = rows_of((folder / "scored.train.jsonl").read_text())
    texts = [row[name] for row in rows for name in ("text", "pair")]
    model = ka.load(first)
    count = len(texts)
    known = [set(model.tokenizer.encode(text)) for text in texts]
    the, dog = (model.tokenizer.encode(word)[0] for word in ("the", "dog"))
    weights = numpy(model.token_weights)
    for piece in (the, dog):
        found = sum(piece in each for each in known)
        expected = np.log((1 + count) / (1 + found)) + 1
        np.testing.assert_allclose(weights[piece], expected, 1e-6)
    assert weights.max() > 2
    assert weights[CLS_ID] == weights[SEP_ID] == 1
    again = (f"--model={first}", "--task=embedding", "--steps=1")
    finetune(folder, second, "pairs", *PAIRS, *again)
    other = ka.load(second)
    np.testing.assert_array_equal(numpy(other.token_weights), weights)
    other.adapt(texts)
    np.testing.assert_allclose(numpy(other.token_weights), weights, 1e-6)
    with pytest.raises(ka.AlbertError, match=r"'idf'.*Received: 'mean'\."):
        ka.AlbertForTextEmbedding(other.backbone).adapt(texts)
    with pytest.raises(ka.AlbertError, match="texts` must be a list of texts"):
        other.adapt("a text")
    with pytest.raises(ka.AlbertError, match="`text` must be a list of texts"):
        ka.Predictor.load(second).predict("a text")
    with pytest.raises(ka.AlbertError, match="the model itself"):
        ka.Predictor.load(other)
    bare = ka.AlbertForTextEmbedding(ka.AlbertBackbone(other.config), "idf")
    with pytest.raises(ka.AlbertError, match="this model has none"):
        bare.adapt(texts)


def by_hand(model, rows, more, size=None):
    """All scores of the partners of pairs among all texts."""
    texts = {row[name] for row in rows for name in ("b", "no", "no2")}
    texts = sorted(texts | {*more})
    found = model.encode(texts, dimensions=size)
    vectors = dict(zip(texts, found, strict=True))
    ranks = []
    for row in rows:
        (text,) = model.encode([row["a"]], dimensions=size)
        right = {other["b"] for other in rows if other["a"] == row["a"]}
        wrong = [x for x in texts if x not in {*right, row["a"]}]
        cosines = np.array([text @ vectors[each] for each in wrong])
        gaps = cosines - text @ vectors[row["b"]]
        equal = np.abs(gaps) < 1e-6  # texts of the same tokens
        closer = np.sum(gaps[~equal] > 0)
        ranks.append(np.arange(closer, closer + np.sum(equal) + 1))

    def mean(gain):
        return np.mean([np.mean(gain(possible)) for possible in ranks])

    return {
        "mrr": mean(lambda rank: 1 / (1 + rank)),
        "recall_at_1": mean(lambda rank: rank == 0),
        "recall_at_10": mean(lambda rank: rank < 10),
        "ndcg_at_10": mean(lambda rank: (rank < 10) / np.log2(2 + rank)),
    }


class OfWords:
    """TF-IDF vectors of words and pairs of words, in place of a model."""

    def __init__(self, texts):
        pattern = {"token_pattern": r"\b\w+\b", "sublinear_tf": True}
        self.words = TfidfVectorizer(ngram_range=(1, 2), **pattern).fit(texts)

    def encode(self, texts, dimensions=None):
        return self.words.transform(texts).toarray()


@pytest.mark.on_torch
def test_evaluated_beside_others(folder, model, tmp_path, monkeypatch):
    """Among further texts, in several sizes, beside the model before."""
    monkeypatch.setattr(vector_scores, "RANKED_AT_ONCE", 3)
    data = folder / "pairs.held.jsonl"
    rows = rows_of(data.read_text())
    columns = ka.TableColumns("a", "b", ("no", "no2"))
    more = [f"{near(word, random.Random(1))} sold" for word in ANIMALS * 5]
    corpus = tmp_path / "corpus.jsonl"
    write_rows(corpus, [{"c": text} for text in [*more, rows[0]["b"]]])
    asked = EvaluateRun(
        str(folder / "model"), data, task="embedding", columns=columns
    )
    report = evaluate(
        dataclasses.replace(
            asked,
            corpus=corpus,
            corpus_column="c",
            dimensions=(16, 4),
            start=str(folder / "pretrained"),
        )
    )
    assert report["corpus"] == len({*more})
    start = ka.AlbertForTextEmbedding(model.backbone)
    texts = [row[name] for row in rows for name in ("a", "b", "no", "no2")]
    expected = by_hand(model, rows, more)
    found = {name: report[name] for name in expected}
    assert found == pytest.approx(expected, abs=1e-4)
    assert report["mrr_of_16_numbers"] == report["mrr"]
    shorter = by_hand(model, rows, more, 4)["mrr"]
    assert report["mrr_of_4_numbers"] == pytest.approx(shorter, abs=1e-4)
    for name, other in (
        ("before_fine_tuning", start),
        ("bag_of_words", OfWords([*texts, *dict.fromkeys(more)])),
    ):
        expected = by_hand(other, rows, more)
        found = report[f"{name}_scores"]
        assert found == pytest.approx(expected, abs=1e-4), name
        assert report[name] == found["mrr"]
    lines = tmp_path / "corpus.txt"
    lines.write_text("\n\n".join(more))
    bad = write_rows(tmp_path / "bad.jsonl", [{"c": None}, {"c": "hens"}])
    for corpus, column, size in ((lines, None, len({*more})), (bad, "c", 1)):
        one = {"corpus": corpus, "corpus_column": column, "skip_bad": True}
        assert evaluate(dataclasses.replace(asked, **one))["corpus"] == size
    for wrong, words in (
        ({"dimensions": (17,)}, "at most 16.*Received: 17"),
        ({"corpus_column": "c"}, "`corpus_column` is a column of `corpus`"),
        ({"corpus": corpus}, "no column `a`"),
    ):
        with pytest.raises(ka.AlbertError, match=words):
            evaluate(dataclasses.replace(asked, **wrong))


# The command `embed`.


@pytest.fixture(scope="module")
def model(folder):
    """A model whose texts have 12 tokens at most, in a folder."""
    backbone = ka.load(folder / "pretrained").backbone
    made = ka.AlbertForTextEmbedding(backbone, projection=16, max_tokens=12)
    ka.Predictor(made).save(folder / "model")
    return made


TEXTS = ["the fox", "", "an old barn near London " * 9, "two hens"]


def embed(folder, tmp_path, output="vectors", data=None, *options):
    """Runs the command; returns the folder of the vectors."""
    if data is None:
        data = tmp_path / "texts.txt"
        data.write_text("\n".join(TEXTS))
    told = {"model": folder / "model", "output": tmp_path / output}
    run("embed", *options, data=data, **told)
    return tmp_path / output


def windows(model, text):
    """The mean over the windows of a text, with the weights of their tokens."""
    ids = model.tokenizer.encode(text)
    parts = [ids[i : i + 10] for i in range(0, len(ids), 10)] or [[]]
    packed = [np.array([model.tokenizer.pack(part)[0]]) for part in parts]
    vectors = [numpy(model({"token_ids": ids}))[0] for ids in packed]
    weights = [len(part) + 2 for part in parts]
    return np.average(vectors, axis=0, weights=weights)


@pytest.mark.on_torch
def test_vectors_of_a_file(folder, model, tmp_path):
    expected = np.array([windows(model, text) for text in TEXTS])
    cut = model.encode(TEXTS, normalize=False)
    assert np.abs(expected - cut)[2].max() > 1e-3
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    found = ka.read_vectors(embed(folder, tmp_path))
    assert found.dtype == "float32" and isinstance(found, np.memmap)
    np.testing.assert_allclose(found, unit, atol=1e-5)
    short = expected[:, :4]
    short = short / np.linalg.norm(short, axis=1, keepdims=True)
    for name, options, values in (
        ("plain", ["--no-normalize"], expected),
        ("cut", ["--long-texts=cut", "--no-normalize"], cut),
        ("short", ["--dimensions=4"], short),
    ):
        found = ka.read_vectors(embed(folder, tmp_path, name, None, *options))
        np.testing.assert_allclose(found, values, atol=1e-5)


@pytest.mark.on_torch
def test_numbers_and_files(folder, model, tmp_path, monkeypatch, capsys):
    """int8 keeps cosines to a hundredth, bits the sign of each number."""
    unit = ka.read_vectors(embed(folder, tmp_path))
    half = embed(folder, tmp_path, "half", None, "--numbers=float16")
    np.testing.assert_allclose(ka.read_vectors(half), unit, atol=1e-3)
    small = embed(folder, tmp_path, "small", None, "--numbers=int8")
    small = ka.read_vectors(small).astype("float32")
    assert (np.abs(small).max(axis=1) == 127).all()
    small /= np.linalg.norm(small, axis=1, keepdims=True)
    np.testing.assert_allclose(small @ small.T, unit @ unit.T, atol=1e-2)
    bits = embed(folder, tmp_path, "bits", None, "--numbers=binary")
    bits = ka.read_vectors(bits)
    assert bits.shape == (4, 2) and bits.dtype == "uint8"
    assert (np.unpackbits(bits, axis=1) == (unit > 0)).all()
    # With the rows of a table.
    data = write_rows(
        tmp_path / "rows.jsonl",
        [
            {"id": i, "t": text or "a", "more": [float("nan")]}
            for i, text in enumerate(TEXTS)
        ],
    )
    made = embed(folder, tmp_path, "l", data, "--to=jsonl", "--column=t")
    lines = (made / "vectors.jsonl").read_text().splitlines()
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [row["id"] for row in found] == [0, 1, 2, 3]
    with pytest.raises(ka.AlbertError, match=r"in vectors\.jsonl\. Read that"):
        ka.read_vectors(made)
    same = [0, 2, 3]  # the blank text has become another one
    vectors = np.array([row["vector"] for row in found])
    np.testing.assert_allclose(vectors[same], unit[same], atol=1e-5)
    options = "--to=jsonl", "--column=t", "--numbers=int8"
    made = embed(folder, tmp_path, "i", data, *options)
    found = rows_of((made / "vectors.jsonl").read_text())
    assert {type(n) for row in found for n in row["vector"]} == {int}
    # Columns of a later part: a new one, one without values before, fractions.
    from pyarrow import parquet

    monkeypatch.setattr(embedding, "ROWS_AT_ONCE", 2)
    rows = rows_of(data.read_text())
    for number, row in enumerate(rows):
        row["sparse"] = None if number < 2 else "x"
        row["size"] = 1 if number < 2 else 0.5
    rows[3]["new"] = True
    write_rows(data, rows)
    made = embed(folder, tmp_path, "p", data, "--to=parquet", "--column=t")
    table = parquet.read_table(made / "vectors")
    assert table.column_names == [*rows[3], "vector"]
    assert table["sparse"].to_pylist() == [None, None, "x", "x"]
    assert table["size"].to_pylist() == [1, 1, 0.5, 0.5]
    assert table["new"].to_pylist() == [None, None, None, True]
    # No float is equal to this integer; and Parquet has no empty objects.
    for name, value in (("size", 2**60 + 1), ("none", {})):
        write_rows(data, [{**rows[0], name: value}, *rows[1:]])
        told = {"model": folder / "model", "output": tmp_path / name}
        options = "embed", "--to=parquet", "--column=t"
        said = refused(capsys, *options, data=data, **told)
        assert "values of one type" in said and "Write --to jsonl" in said
    vectors = np.array(table["vector"].to_pylist())
    np.testing.assert_allclose(vectors[same], unit[same], atol=1e-5)


@pytest.mark.parametrize("to", ["npy", "jsonl", "parquet"])
@pytest.mark.parametrize(("copies", "late"), [(0.25, 0), (0.25, 1), (2, 0)])
def test_a_file_that_changes_while_it_is_read(
    folder, model, tmp_path, monkeypatch, capsys, to, copies, late
):
    """Rows are removed or added before or after the vectors are computed."""
    rows = [{"text": text or "a", "id": i} for i, text in enumerate(TEXTS)]
    changed = (rows * 2)[: int(copies * len(rows))]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    write_all = embedding._write_all

    def write(*given):
        for step in range(2):
            if step == late:
                write_rows(data, changed)
            else:
                write_all(*given)

    monkeypatch.setattr(embedding, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(embedding, "_write_all", write)
    told = {"model": folder / "model", "output": tmp_path / "out"}
    told |= {"data": data, "to": to}
    assert "changed while it was read" in refused(capsys, "embed", **told)
    monkeypatch.setattr(embedding, "_write_all", write_all)
    run("embed", **told)
    report = report_of(tmp_path / "out")
    assert report["texts"] == len(changed)
    assert {"run.json", "report.json", *report["files"]} >= {
        path.relative_to(tmp_path / "out").as_posix()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.on_torch
@pytest.mark.parametrize("to", ["npy", "jsonl", "parquet"])
def test_an_interrupted_run_goes_on(
    folder, model, tmp_path, monkeypatch, capsys, to
):
    """Parts that are written are not computed again, and none is lost."""
    monkeypatch.setattr(embedding, "ROWS_AT_ONCE", 2)
    texts = [f"the fox {number}" for number in range(7)]
    rows = [{"text": text} for text in texts]
    data = write_rows(tmp_path / "texts.jsonl", rows)
    whole = embed(folder, tmp_path, "whole", data, f"--to={to}")
    compute, done = embedding._vectors, []

    def broken(predictor, run, table, title):
        done.append(table.values["text"][0])
        if len(done) == 3:
            raise KeyboardInterrupt
        return compute(predictor, run, table, title)

    monkeypatch.setattr(embedding, "_vectors", broken)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        embed(folder, tmp_path, "parts", data, f"--to={to}")
    with pytest.raises(ka.AlbertError, match=r"no finished vectors\.npy"):
        ka.read_vectors(tmp_path / "parts")
    check_that_lost_files_are_named(capsys, folder, tmp_path, data, to)
    progress = tmp_path / "parts" / "progress.json"
    stored = progress.read_text()
    edit_json(progress, files=None)  # of an older version
    told = {"model": folder / "model", "output": tmp_path / "parts"}
    said = refused(capsys, "embed", f"--to={to}", data=data, **told)
    assert "an older version of keras-albert began" in said
    progress.write_text(stored)
    parts = embed(folder, tmp_path, "parts", data, f"--to={to}")
    assert done == [texts[i] for i in (0, 2, 4, 4, 6)]
    names = [p.relative_to(whole) for p in whole.rglob("*") if p.is_file()]
    assert {*names} >= {Path("report.json")}
    for name in names:
        if name.name not in ("run.json", ".lock"):
            same = (parts / name).read_bytes() == (whole / name).read_bytes()
            assert same, name
    # Finished: nothing is computed.
    embed(folder, tmp_path, "parts", data, f"--to={to}")
    check_that_lost_files_are_named(capsys, folder, tmp_path, data, to)
    assert len(done) == 5


def check_that_lost_files_are_named(capsys, folder, tmp_path, data, to):
    """The command takes no vectors for written that are not there any more."""
    (file, *_) = (tmp_path / "parts").rglob(f"*.{to}")
    content = file.read_bytes()
    for left, words in ((None, "is missing"), (content[:-1], "was cut")):
        file.unlink() if left is None else file.write_bytes(left)
        told = {"model": folder / "model", "output": tmp_path / "parts"}
        said = refused(capsys, "embed", f"--to={to}", data=data, **told)
        assert re.search(rf"{file.name} {words}.*Remove the folder", said)
    file.write_bytes(content)


def interrupted(folder, tmp_path, **changes):
    """A run of which no vector is written yet."""
    made = embed(folder, tmp_path)
    progress = json.loads((made / "report.json").read_text())
    progress |= {"done": 0, "bytes": 0, **changes}
    (made / "progress.json").write_text(json.dumps(progress))
    (made / "report.json").unlink()
    return made


@pytest.mark.on_torch
def test_another_model_does_not_go_on(folder, model, tmp_path, capsys):
    """The file would have vectors of two models."""
    made = interrupted(folder, tmp_path, model="that of before")
    told = {"model": folder / "model", "data": tmp_path / "texts.txt"}
    said = refused(capsys, "embed", output=made, **told)
    assert "has vectors of another model than" in said


@pytest.mark.on_torch
def test_finished_by_another_process(folder, model, tmp_path, monkeypatch):
    """Between reading the table and locking the folder."""
    made = interrupted(folder, tmp_path)
    check, written = embedding._checked_rows, []

    def meanwhile(*arguments):
        monkeypatch.setattr(embedding, "_checked_rows", check)
        embed(folder, tmp_path)
        written.append((made / "vectors.npy").stat().st_mtime_ns)
        return check(*arguments)

    monkeypatch.setattr(embedding, "_checked_rows", meanwhile)
    embed(folder, tmp_path)
    assert written == [(made / "vectors.npy").stat().st_mtime_ns]
    assert ka.read_vectors(made).any()


KILLED = """
import os, signal, sys
from keras_albert import cli
from keras_albert.exports import embed

embed.ROWS_AT_ONCE, write, calls = 2, embed.write_json, []

def write_or_die(path, content):
    calls.append(path)
    if len(calls) == 2:  # the vectors are there, and the progress is not
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, content)

embed.write_json = write_or_die
cli.main(sys.argv[1:])
"""


@pytest.mark.on_torch
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_run_goes_on(folder, model, tmp_path, monkeypatch):
    """A part whose progress was not written is computed and written again."""
    monkeypatch.setattr(embedding, "ROWS_AT_ONCE", 2)
    rows = [{"text": f"the fox {number}"} for number in range(5)]
    data = write_rows(tmp_path / "texts.jsonl", rows)
    whole = embed(folder, tmp_path, "whole", data, "--to=jsonl")
    options = ["--model", folder / "model", "--data", data, "--to=jsonl"]
    options += ["--output", tmp_path / "parts"]
    child = subprocess.run(
        [sys.executable, "-c", KILLED, "embed", *map(str, options)], timeout=300
    )
    assert child.returncode == -signal.SIGKILL
    left = tmp_path / "parts" / "vectors.jsonl"
    assert len(left.read_text().splitlines()) == 4
    assert json.loads((left.parent / "progress.json").read_text())["done"] == 2
    embed(folder, tmp_path, "parts", data, "--to=jsonl")
    # Another process may round otherwise: it rewrites its graphs.
    both = [
        [json.loads(line) for line in path.open()]
        for path in (left, whole / "vectors.jsonl")
    ]
    found, expected = (
        np.array([row.pop("vector") for row in each], "float32")
        for each in both
    )
    assert both[0] == both[1] == rows
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # The same float32, bit for bit, as without text between.
    array = ka.read_vectors(embed(folder, tmp_path, "array", data))
    np.testing.assert_array_equal(expected, array)


@pytest.mark.on_torch
def test_other_vectors_than_before(folder, model, tmp_path, capsys):
    """What has changed is named, and the vectors stay as they are."""
    made = embed(folder, tmp_path)
    before = (made / "vectors.npy").read_bytes()
    other = tmp_path / "others.txt"
    other.write_text("a barn\n")
    (tmp_path / "texts.txt").write_text("a barn\n")

    def check(output, data, *options, words):
        told = {"model": folder / "model", "output": tmp_path / output}
        said = refused(capsys, "embed", *options, data=data, **told)
        assert re.search(words, said), said
        assert (made / "vectors.npy").read_bytes() == before

    texts = tmp_path / "texts.txt"
    check("vectors", texts, words="has vectors of another data")
    check("vectors", other, words="data=.*there")
    check("vectors", texts, "--numbers=int8", words="numbers='float32' there")
    check("new", other, "--dimensions=17", words="at most 16.*Received: 17")
    check("new", tmp_path / "none.txt", words="none.txt")
    assert not (tmp_path / "new").exists()
    row = write_rows(tmp_path / "row.jsonl", [{"text": "a", "vector": 1}])
    check("new", row, "--to=jsonl", words="column `vector`")
    assert not (tmp_path / "new").exists()
