"""Text embeddings of exports and other libraries' models; kinds of tables."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import refused, report_of, run, write_rows

import keras_albert as ka
from keras_albert.exports import embed as embedding
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.python_api import _checksum
from keras_albert.tasks.config import EmbeddingOptions
from keras_albert.tasks.registry import ALL_TASKS

TEXTS = ["the fox", "an old barn near London " * 9, "two hens"]
PAIRS = {
    "a": ["the fox 1", "the hens 2", "a barn 3", "London"],
    "b": ["a fox", "two hens", "the barn", "in London"],
}


@pytest.fixture(scope="module")
def model(pretrained_folder):
    """A model whose texts have 12 tokens at most."""
    backbone = ka.load(pretrained_folder, backbone=True)
    return ka.AlbertForTextEmbedding(backbone, projection=16, max_tokens=12)


@pytest.fixture
def source(model, tmp_path):
    """The folder of the model."""
    ka.Predictor(model).save(tmp_path / "model")
    return tmp_path / "model"


def embed(source, output, *options):
    """Runs the command; returns the folder of the vectors."""
    data = output.parent / "texts.txt"
    data.write_text("\n".join(TEXTS))
    run("embed", *options, model=source, data=data, output=output)
    return output


def export(model, folder, weights, **settings):
    return ka.export(model, folder, "onnx", weights, force=True, **settings)


@pytest.mark.on_torch
@pytest.mark.parametrize("options", [(), ("--long-texts=cut",)])
def test_vectors_of_an_export(source, tmp_path, capsys, options):
    """An ONNX file of 8 bits also reads windows, and shortens vectors."""
    served = export(source, tmp_path / "served", "int8")
    options = (*options, "--dimensions=15")
    expected = ka.read_vectors(embed(source, tmp_path / "a", *options))
    found = ka.read_vectors(embed(served, tmp_path / "b", *options), served)
    assert found.shape == (3, 15)
    assert (found * expected).sum(axis=1).min() >= 0.98
    assert not np.array_equal(found, expected)
    assert ka.read_vectors(tmp_path / "b", served).shape == (3, 15)
    with pytest.raises(ka.AlbertError, match="b has vectors of another model"):
        ka.read_vectors(tmp_path / "b", source)
    told = {"model": served, "data": tmp_path / "texts.txt"}
    said = refused(
        capsys, "embed", "--dimensions=17", **told, output=tmp_path / "c"
    )
    assert "at most 16, the size of the vectors. Received: 17" in said
    # The same path has another export.
    shutil.rmtree(served)
    export(source, served, "float32")
    said = refused(capsys, "embed", *options, **told, output=tmp_path / "b")
    assert "b has vectors of another model" in said


@pytest.mark.on_torch
def test_a_model_of_scores_exported_for_vectors(model, tmp_path):
    """`check` takes the task of the export; a single text has no neighbours."""
    ka.Predictor(model, task="similarity").save(tmp_path / "model")
    export(tmp_path / "model", tmp_path / "out", "float32", task="embedding")
    data = write_rows(tmp_path / "r.jsonl", [{"text": text} for text in TEXTS])
    for rows, said in ((1, ""), (3, ", and 100.0% of the 2 nearest texts")):
        told = run(
            "check", tmp_path / "out", tmp_path / "model", data, rows=rows
        )
        assert f"cosines of at least 1.0000 with the model's{said}" in told
        assert ("nearest" in told) == bool(said)


@pytest.mark.on_torch
def test_without_room(source, tmp_path, monkeypatch, capsys):
    """A map of a file that the disk has no room for would end the process."""
    usage = shutil.disk_usage(tmp_path)._replace(free=64 * 3 - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(TEXTS))
    told = {"model": source, "data": data, "output": tmp_path / "vectors"}
    said = refused(capsys, "embed", **told)
    assert "vectors.npy: cannot be written (0.0 MB are needed" in said


@pytest.mark.on_torch
def test_an_export_without_vectors(model, tmp_path, capsys):
    classifier = ka.AlbertForSequenceClassification(model.backbone, 2)
    told = {"output": tmp_path / "vectors", "data": tmp_path / "texts.txt"}
    told["data"].write_text("the fox\n")
    served = export(classifier, tmp_path / "served", "float32")
    said = refused(capsys, "embed", model=served, **told)
    assert "for the task classification, and makes no vectors" in said
    assert not told["output"].exists()


@pytest.mark.on_torch
def test_vectors_of_another_model(source, model, tmp_path, capsys):
    """Who reads vectors, or continues to compute them, names their model."""
    made = embed(source, tmp_path / "vectors")
    plain = ka.read_vectors(made)
    for same in (source, str(source), model, ka.Predictor.load(source)):
        np.testing.assert_array_equal(ka.read_vectors(made, same), plain)
    other = ka.AlbertForTextEmbedding(model.backbone, "mean", 16, 12)
    encoder = ka.AlbertForTextEmbedding(model.backbone)
    # The same weights, which are pooled in another way.
    largest = model.with_projection(
        model.projection.get_weights(), model.normalize, "max"
    )
    # The same weights and pieces, of which other ones are chosen.
    pieces = ka.Tokenizer.from_bytes(
        model.tokenizer.model_bytes, keep_accents=True
    )
    ka.Predictor(model).save(tmp_path / "accents")
    accents = ka.load(tmp_path / "accents")
    accents.tokenizer = pieces
    assert _checksum(accents) != _checksum(model)
    vectors, scores = (
        ka.Predictor(model, task=task) for task in ("embedding", "similarity")
    )
    assert _checksum(vectors) != _checksum(scores)
    for wrong in (other, encoder, model.backbone, largest, accents):
        with pytest.raises(ka.AlbertError, match="of another model than the"):
            ka.read_vectors(made, wrong)
    shutil.rmtree(source)
    ka.Predictor(other).save(source)
    told = {"model": source, "data": tmp_path / "texts.txt", "output": made}
    said = refused(capsys, "embed", **told)
    assert f"has vectors of another model than {source} is now" in said
    np.testing.assert_array_equal(ka.read_vectors(made), plain)


@pytest.mark.on_torch
def test_bad_rows_are_counted(source, tmp_path, monkeypatch):
    """The first three of all parts are printed."""
    monkeypatch.setattr(embedding, "ROWS_AT_ONCE", 2)
    rows = [{"text": "the fox" if n == 1 else None} for n in range(7)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    told = {"model": source, "data": data, "output": tmp_path / "vectors"}
    said = run("embed", "--skip-bad", **told)
    assert "rows.jsonl: 6 bad rows are left out:" in said
    for line in range(1, 8):
        assert (f"rows.jsonl:{line}: " in said) == (line in (1, 3, 4))
    assert ka.read_vectors(tmp_path / "vectors").shape == (1, 16)


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("writer", "pooling"),
    [("save_huggingface", "mean"), ("save_sentence_transformers", "cls")],
)
def test_models_of_other_libraries(model, tmp_path, writer, pooling):
    """`ka.finetune` starts from their folders, with a table in memory."""
    start = ka.AlbertForTextEmbedding(model.backbone, pooling)
    is_encoder = writer == "save_huggingface"
    given = start.backbone if is_encoder else start
    getattr(ka, writer)(given, tmp_path / "theirs")
    trained = ka.finetune(
        tmp_path / "theirs",
        PAIRS,
        tmp_path / "model",
        validation=PAIRS,
        task="embedding",
        columns={"text": "a", "pair": "b"},
        learning_rate=1e-30,
        batch_size=4,
        steps=1,
    )
    found = trained.predictor.model
    assert found.pooling == pooling
    np.testing.assert_allclose(
        found.encode(TEXTS), start.encode(TEXTS), atol=1e-5
    )
    report = report_of(tmp_path / "model")
    assert report["mrr"] == pytest.approx(report["before_fine_tuning"])
    for name, of_best in (
        ("before_fine_tuning_scores", report["before_fine_tuning"]),
        ("bag_of_words_scores", report["bag_of_words"]),
    ):
        assert report[name]["mrr"] == of_best
        assert {*report[name]} == {
            *("mrr", "recall_at_1", "recall_at_10", "ndcg_at_10")
        }


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_of_pairs(tmp_path, kind):
    path = tmp_path / f"pairs.{kind}"
    row = {"text": "the fox, 1", "b": 'a "fox"', "no": "hens", "label": 2.5}
    if kind == "csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([row, row.values()])
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    for task, named, expected in (
        (
            "embedding",
            ka.TableColumns(pair="b", negative=("no",)),
            {"text": "the fox, 1", "pair": 'a "fox"', "negative": "hens"},
        ),
        (
            "similarity",
            ka.TableColumns(pair="b"),
            {"text": "the fox, 1", "pair": 'a "fox"', "label": 2.5},
        ),
    ):
        table = ALL_TASKS[task].read(path, named, labelled=True)
        assert {name: x for name, (x,) in table.values.items()} == expected


@pytest.mark.any_backend
def test_a_pair_alone():
    """Ranking compares pairs of a batch; regression learns from each."""
    told = {"task": "similarity", "batch_size": 1}
    given = ("pretrained", Path("pairs.tsv"), Path("output"))
    with pytest.raises(ka.AlbertError, match=r"has a single pair.*Raise"):
        FinetuneRun(*given, **told)
    options = EmbeddingOptions(loss="regression", score_range=(0, 5))
    assert FinetuneRun(*given, **told, embedding=options).batch_size == 1


@pytest.mark.on_torch
def test_vectors_of_a_model_that_reads_fewer_tokens(source, model, tmp_path):
    """It has the same weights."""
    made = embed(source, tmp_path / "vectors")
    shorter = ka.AlbertForTextEmbedding(
        model.backbone, projection=16, max_tokens=6
    )
    shorter.projection.set_weights(model.projection.get_weights())
    assert ka.read_vectors(made, model).shape == (3, 16)
    with pytest.raises(ka.AlbertError, match="of another model than the"):
        ka.read_vectors(made, shorter)
