"""Text embeddings through the commands: trained, measured, used, exported."""

import json
import random
import re

import keras
import numpy as np
import pytest

import keras_albert as ka
from keras_albert.cli import main
from keras_albert.errors import AlbertError
from keras_albert.exports.load import load_exported
from keras_albert.finetuning.config import EvaluateRun
from keras_albert.finetuning.evaluate import evaluate

ANIMALS = ("fox", "dog", "hens", "village", "barn", "London")
LEARNING = [
    "--batch-size=12",
    "--epochs=8",
    "--learning-rate=0.003",
    "--warmup-share=0.2",
]


def near(word, rng):
    """A text about a word."""
    return f"{rng.choice(['the', 'a', 'old'])} {word} {rng.choice('0123')}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pretrained_folder):
    """A model that was never trained, and tables.

    Texts with one word in common belong together; the negative has another.
    """
    folder = tmp_path_factory.mktemp("embeddings")
    (folder / "pretrained").symlink_to(pretrained_folder)
    rng = random.Random(0)
    for part, count in (("train", 120), ("held", 40)):
        pairs, scored = [], []
        for _ in range(count):
            word, other = rng.sample(ANIMALS, 2)
            row = {"a": near(word, rng), "b": near(word, rng)}
            pairs.append(row | {"no": near(other, rng)})
            same = rng.random() < 0.5
            pair = near(word if same else other, rng)
            scored.append({"text": row["a"], "pair": pair, "label": 5 * same})
        for name, rows in (("pairs", pairs), ("scored", scored)):
            lines = "\n".join(map(json.dumps, rows))
            (folder / f"{name}.{part}.jsonl").write_text(lines)
    return folder


def finetune(folder, output, table, *options):
    """Fine-tunes, and returns the report."""
    main(
        ["finetune", "--model", str(folder / "pretrained")]
        + ["--train", str(folder / f"{table}.train.jsonl")]
        + ["--output", str(output), *LEARNING, *options]
    )
    return json.loads((output / "report.json").read_text())


def held(folder, table):
    return f"--validation={folder / f'{table}.held.jsonl'}"


PAIRS = ("--task=embedding", "--columns.text=a", "--columns.pair=b")


def test_pairs(folder, tmp_path, capsys):
    """Learned with negatives, in parts, for vectors of several sizes."""
    output = tmp_path / "model"
    report = finetune(
        folder,
        output,
        "pairs",
        *PAIRS,
        held(folder, "pairs"),
        "--columns.negative=no",
        "--embedding.projection=8",
        "--embedding.dimensions",
        *("8", "4"),
        "--embedding.symmetric",
        "--embedding.rows-at-once=9",
    )
    assert report["mrr"] > report["before_fine_tuning"] + 0.1, report
    assert 0 < report["bag_of_words"] < 1
    said = capsys.readouterr().out
    assert f"before fine-tuning: {report['before_fine_tuning']:.3f}" in said
    assert f"TF-IDF vectors: {report['bag_of_words']:.3f}" in said
    main(
        ["evaluate", "--model", str(output)]
        + ["--data", str(folder / "pairs.held.jsonl")]
    )
    said = capsys.readouterr().out
    for name in ("mrr", "recall_at_1", "recall_at_10", "ndcg_at_10"):
        assert f"{name.replace('_', ' ')} {report[name]:.3f}" in said
    card = (output / "README.md").read_text()
    assert "| mrr at the start |" in card
    # Vectors, from the command and in Python.
    (tmp_path / "texts.txt").write_text("the fox\nan old barn\n")
    main(
        ["predict", "--model", str(output), "--columns.text=text"]
        + ["--data", str(tmp_path / "texts.txt")]
    )
    rows = map(json.loads, capsys.readouterr().out.splitlines())
    found = [row["prediction"] for row in rows]
    model = ka.load(output)
    vectors = model.encode(["the fox", "an old barn"], normalize=False)
    assert vectors.shape == (2, 8)
    np.testing.assert_allclose(found, vectors, atol=1e-5)
    short = model.encode(["the fox"], dimensions=4)
    expected = vectors[:1, :4] / np.linalg.norm(vectors[0, :4])
    np.testing.assert_allclose(short, expected, atol=1e-5)


@pytest.mark.parametrize("loss", ["ranking", "regression"])
def test_scores_of_pairs(folder, tmp_path, capsys, loss):
    output = tmp_path / "model"
    report = finetune(
        folder,
        output,
        "scored",
        "--task=similarity",
        held(folder, "scored"),
        f"--embedding.loss={loss}",
        "--embedding.score-range",
        *("0", "5"),
    )
    assert report["spearman"] > report["before_fine_tuning"] + 0.1, report
    data = folder / "scored.held.jsonl"
    capsys.readouterr()
    main(["evaluate", "--model", str(output), "--data", str(data)])
    assert f"spearman {report['spearman']:.3f}" in capsys.readouterr().out
    main(["predict", "--model", str(output), "--data", str(data)])
    rows = [*map(json.loads, capsys.readouterr().out.splitlines())]
    model = ka.load(output)
    cosines = [
        model.similarity([row["text"]], [row["pair"]]).item() for row in rows
    ]
    np.testing.assert_allclose(
        [row["prediction"] for row in rows], cosines, atol=1e-5
    )
    predictor = ka.Predictor.load(output)
    found = predictor.predict(["the fox"], ["a fox"])
    assert found == pytest.approx(model.similarity(["the fox"], ["a fox"])[0])


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="graphs are traced by TensorFlow",
)
@pytest.mark.parametrize(
    ("task", "pooling", "projection"),
    [
        ("similarity", "max", 7),
        ("embedding", "cls", 7),
        ("similarity", "mean", None),
    ],
)
def test_exported(folder, tmp_path, capsys, task, pooling, projection):
    """`check` compares vectors, and their cosines, in each format."""
    backbone = ka.load(folder / "pretrained").backbone
    model = ka.AlbertForTextEmbedding(backbone, pooling, projection)
    saved, data = tmp_path / "model", str(folder / "scored.held.jsonl")
    ka.Predictor(model, task=task).save(saved)
    for target in ("saved_model", "litert", "onnx"):
        output = str(tmp_path / target)
        names = ["--model", str(saved), "--data", data]
        main(["export", *names, "--output", output, "--format", target])
        main(["check", *names, "--export", output])
        said = capsys.readouterr().out
        assert "100" in said, said
    exported = load_exported(tmp_path / "saved_model")
    answers = exported.model.ask(
        "serving_default",
        {"text": ["the fox", "a"]}
        | ({"pair": ["a barn", "a"]} if task == "similarity" else {}),
    )
    if task == "embedding":
        expected = model.encode(["the fox", "a"], normalize=False)
        np.testing.assert_allclose(answers["embedding"], expected, atol=1e-5)
    else:
        expected = model.similarity(["the fox", "a"], ["a barn", "a"])
        np.testing.assert_allclose(
            answers["score"], np.diag(expected), atol=1e-5
        )


@pytest.mark.any_backend
@pytest.mark.usefixtures("eagerly")
def test_texts_alone(folder, tmp_path, capsys):
    """SimCSE: nothing is held out, and pairs tell afterwards what it is."""
    output = tmp_path / "model"
    options = ("--task=embedding", "--columns.text=a", "--steps=2")
    with pytest.raises(SystemExit):
        finetune(folder, output, "pairs", *options)
    assert "--dropout 0.1, or name the column" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        finetune(folder, output, "pairs", *options, held(folder, "pairs"))
    assert "`validation` needs pairs of texts" in capsys.readouterr().err
    assert not output.exists()
    finetune(folder, output, "pairs", *options, "--dropout=0.1")
    said = capsys.readouterr().out
    assert "nothing is held out: each text stands alone" in said
    assert "every text is its own partner" in said
    data = str(folder / "scored.held.jsonl")
    for model in (output, folder / "pretrained"):
        main(
            ["evaluate", "--model", str(model), "--data", data]
            + ["--task=similarity", "--columns.text=text"]
        )
        assert "spearman" in capsys.readouterr().out


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        (
            "scored",
            ["--task=similarity", "--embedding.score-range", "0", "4"],
            r"scored.train.jsonl:\d+: the score must be from 0 to 4.*5",
        ),
        (
            "scored",
            ["--task=similarity", "--embedding.loss=regression"],
            "needs the range of the scores",
        ),
        (
            "pairs",
            [*PAIRS, "--embedding.dimensions", "8", "400"],
            "`embedding.dimensions` must be at most .*Received: 400",
        ),
        (
            "pairs",
            [*PAIRS, "--embedding.score-range", "5", "0"],
            "lowest and the highest score.*5",
        ),
        (
            "pairs",
            ["--task=pairs", "--embedding.pooling=max"],
            "`embedding` options are for embedding, similarity",
        ),
        (
            "pairs",
            ["--task=similarity", "--columns.negative=no"],
            "`columns.negative` has no meaning",
        ),
        (
            "pairs",
            [*PAIRS, "--batch-size=1"],
            "a batch of one example has no negatives",
        ),
    ],
)
def test_bad_input(folder, tmp_path, capsys, table, options, words):
    with pytest.raises(SystemExit):
        finetune(folder, tmp_path / "model", table, *options)
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(words, said), said
    assert not (tmp_path / "model").exists()


@pytest.mark.any_backend
def test_equal_texts(folder, tmp_path, capsys):
    (tmp_path / "same.tsv").write_text("a\tb\n" + "the fox\tthe fox\n" * 60)
    with pytest.raises(SystemExit):
        main(
            ["finetune", "--model", str(folder / "pretrained"), *PAIRS]
            + ["--train", str(tmp_path / "same.tsv")]
            + ["--output", str(tmp_path / "model")]
        )
    assert "all texts are equal" in " ".join(capsys.readouterr().err.split())


@pytest.mark.any_backend
def test_vectors_need_a_task_to_be_measured(folder):
    """A pretrained model is measured on token shards, if nothing is said."""
    data = folder / "scored.held.jsonl"
    with pytest.raises(AlbertError, match=r"folder of token shards"):
        evaluate(EvaluateRun(model=str(folder / "pretrained"), data=data))
