"""`keras-albert convert`: from any format to any other, and on to use."""

import contextlib
import shutil

import numpy as np
import pytest
from commands import read_json, refused, run
from small import EXCHANGED, randomized, same_weights

import keras_albert as ka
from keras_albert.checkpoints.transfer import weights_of
from keras_albert.finetuning.config import ConvertRun, EvaluateRun
from keras_albert.finetuning.convert import convert
from keras_albert.finetuning.evaluate import evaluate
from keras_albert.storage import write_json
from keras_albert.tasks.task_file import load_with_task
from keras_albert.training.model_folder import ModelFolder

# Files are read and written as NumPy arrays.
pytestmark = pytest.mark.on_torch
pytest.importorskip("safetensors", reason="safetensors is not installed")


CONFIG = EXCHANGED.replace(vocab_size=160, num_hidden_layers=1)


@pytest.fixture
def masked_lm(tokenizer):
    encoder = ka.AlbertBackbone(CONFIG, tokenizer=tokenizer)
    return randomized(ka.AlbertForMaskedLM(encoder), scale=0.3)


def converted(source, output, to="keras-albert", **options):
    convert(ConvertRun(input=str(source), output=output, to=to, **options))
    return ka.load(output)


def test_round_the_formats(tmp_path, masked_lm, capsys):
    pytest.importorskip("keras_hub", reason="keras-hub is not installed")
    masked_lm.save(tmp_path / "mine.keras")
    source = tmp_path / "mine.keras"
    for step, to in enumerate(("keras-albert", "kerashub", "keras-albert")):
        output = tmp_path / str(step) / to
        model = converted(source, output, to)
        assert same_weights(model, masked_lm)
        assert model.tokenizer.lower_case
        assert f"-> {output}" in capsys.readouterr().out
        source = output
    # transformers' masked LM has no pooler.
    model = converted(source, tmp_path / "there", "huggingface")
    assert model.backbone.pooler is None
    again = converted(tmp_path / "there", tmp_path / "here")
    assert same_weights(model, again)


def test_a_folder_of_ours(tmp_path, masked_lm):
    ka.save_huggingface(masked_lm, tmp_path / "there")
    converted(tmp_path / "there", tmp_path / "here")
    files = {path.name for path in (tmp_path / "here").iterdir()}
    assert files == {
        "model.keras",
        "albert_config.json",
        "spiece.model",
        "spiece.json",
        "task.json",
    }
    loaded = ModelFolder.load(tmp_path / "here")
    assert loaded.task == {"task": "weights"}
    backbone, tokenizer = ka.load_pretrained(tmp_path / "here")
    assert tokenizer.model_bytes == masked_lm.tokenizer.model_bytes
    assert backbone.pooler is not None  # added, for a head that wants it
    assert backbone.config.hidden_act == "gelu_new"
    assert backbone.config.replace(hidden_act=CONFIG.hidden_act) == CONFIG


def test_what_is_asked_for(tmp_path):
    """The form of GELU, the encoder alone; a vocabulary is not needed."""
    bare = ka.AlbertBackbone(CONFIG.replace(hidden_act="gelu_erf"))
    ka.save_huggingface(bare, tmp_path / "there")
    assert ka.load(tmp_path / "there").config == bare.config
    config = read_json(tmp_path / "there" / "config.json")
    del config["keras_albert"]  # as those that others wrote
    write_json(tmp_path / "there" / "config.json", config)
    tanh = converted(tmp_path / "there", tmp_path / "tanh")
    assert tanh.config.hidden_act == "gelu"
    assert tanh.tokenizer is None
    erf = converted(tmp_path / "there", tmp_path / "erf", gelu="erf")
    assert erf.config.hidden_act == "gelu_erf"
    model = ka.AlbertForQuestionAnsweringV2(ka.AlbertBackbone(CONFIG))
    model.save(tmp_path / "mine.keras")
    source, output = tmp_path / "mine.keras", tmp_path / "out"
    encoder = converted(source, output, "huggingface", backbone=True)
    assert isinstance(encoder, ka.AlbertBackbone)


def test_vocabularies_of_wordpiece(tmp_path, capsys):
    """What takes texts says that they are not read; `convert` what it loses."""
    folder = tmp_path / "there"
    ka.save_huggingface(ka.AlbertForMaskedLM(ka.AlbertBackbone(CONFIG)), folder)
    (folder / "vocab.txt").write_text("[PAD]\n")
    model = ka.load(folder)
    words = r"WordPiece \(vocab\.txt\).*ids that transformers\.BertTokenizer"
    for read in (
        lambda: model.predict(["a text"]),
        lambda: model.fill_mask(["a [MASK]"]),
        lambda: ka.Predictor.load(folder),
        lambda: ka.save_sentence_transformers(model, tmp_path / "vectors"),
    ):
        with pytest.raises(ka.AlbertError, match=words) as caught:
            read()
        assert "spiece.model" not in str(caught.value)
    for to in ("huggingface", "keras-albert"):
        converted(folder, tmp_path / to, to)
        assert "note: vocab.txt was left out" in capsys.readouterr().out
    ka.push("hf://a/b", folder, to="huggingface", dry_run=True)
    assert "note: vocab.txt was left out" in capsys.readouterr().out


def test_what_a_preset_does_not_hold(tmp_path, tokenizer, capsys):
    """Names of labels, and how long texts are read."""
    pytest.importorskip("keras_hub", reason="keras-hub is not installed")
    encoder = ka.AlbertBackbone(CONFIG, tokenizer=tokenizer)
    model = ka.AlbertForSequenceClassification(encoder, 2)
    options = {"labels": ("dog", "cat"), "long_texts": "mean"}
    ka.Predictor(model, **options).save(tmp_path / "mine")
    converted(tmp_path / "mine", tmp_path / "there", "kerashub")
    said = capsys.readouterr().out
    assert "were left out. Give them with --labels dog cat\n" in said
    assert "kerashub has no windows: long texts are cut in it" in said


def test_nothing_is_left_of_a_failure(tmp_path):
    model = ka.AlbertForQuestionAnsweringV2(ka.AlbertBackbone(CONFIG))
    model.save(tmp_path / "mine.keras")
    with pytest.raises(ka.AlbertError, match=r"has no class.*--backbone"):
        converted(tmp_path / "mine.keras", tmp_path / "out", "huggingface")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.keras"]


def test_command_line(tmp_path, masked_lm, capsys):
    source, output = tmp_path / "mine.keras", tmp_path / "there"
    masked_lm.save(source)
    run("convert", input=source, output=output, to="huggingface")
    assert "AlbertForMaskedLM" in capsys.readouterr().out
    content = read_json(output / "config.json")
    assert content["architectures"] == ["AlbertForMaskedLM"]
    told = {"input": source, "output": output}
    assert "not empty" in refused(capsys, "convert", **told)
    vectors = {"output": tmp_path / "vectors", "to": "sentence-transformers"}
    said = run("convert", input=source, **vectors)
    assert "cannot store the head of AlbertForMaskedLM: only its" in said
    encoder = {"input": source, "output": tmp_path / "x", "task": "pairs"}
    error = refused(capsys, "convert", "--backbone", **encoder)
    assert "an encoder has no task and no labels. Received --backbone" in error
    told = {"input": "s3://a/b", "output": tmp_path / "x"}
    error = refused(capsys, "convert", **told)
    assert "s3://a/b: expected a path, hf://" in error


def test_a_full_disk(tmp_path, masked_lm, monkeypatch, capsys, small_disk):
    """One line that names the file or folder, and nothing is left."""
    source, output = tmp_path / "mine.keras", tmp_path / "out"
    masked_lm.save(source)
    limits = contextlib.ExitStack()

    def loaded(*arguments, **options):  # Keras unpacks the file to read it
        model = load_with_task(*arguments, **options)
        limits.enter_context(small_disk(10_000))
        return model

    monkeypatch.setattr(
        "keras_albert.finetuning.convert.load_with_task", loaded
    )
    told = {"input": source, "output": output}
    with limits:
        error = refused(capsys, "convert", **told)
    assert error.startswith(f"error: {output}")
    assert "cannot be written (File too large). Make room" in error
    assert list(tmp_path.iterdir()) == [source]
    pytest.importorskip("keras_hub", reason="keras-hub is not installed")
    # Found before anything is written, as HDF5 ends a process without room.
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    message = r"out: .*MB are needed, 0\.1 MB free"
    with pytest.raises(ka.AlbertError, match=message):
        converted(source, output, "kerashub")
    assert not output.exists()


def test_evaluate_has_no_examples_of_converted_weights(tmp_path, masked_lm):
    masked_lm.save(tmp_path / "mine.keras")
    converted(tmp_path / "mine.keras", tmp_path / "ours")
    evaluation = EvaluateRun(model=tmp_path / "ours", data=tmp_path)
    with pytest.raises(ka.AlbertError, match=r"has no head.*finetune"):
        evaluate(evaluation)


def test_adapters_are_merged_for_finetuning(tmp_path, masked_lm):
    masked_lm.backbone.enable_lora(2)
    rng = np.random.default_rng(3)
    for variable in masked_lm.backbone.trainable_variables:
        variable.assign(rng.normal(scale=0.3, size=variable.shape))
    merged = weights_of(masked_lm)
    masked_lm.save(tmp_path / "adapted.keras")
    backbone, _ = ka.load_pretrained(tmp_path / "adapted.keras")
    assert not any("lora" in v.path for v in backbone.variables)
    for name, value in weights_of(backbone).items():
        assert np.allclose(value, merged[name], atol=1e-6)


def test_int8_is_refused_before_anything_is_written(
    tmp_path, masked_lm, capsys
):
    masked_lm.quantize("int8")
    masked_lm.save(tmp_path / "int8.keras")
    table = tmp_path / "train.tsv"
    table.write_text("text\tlabel\na fox\tfox\na dog\tdog\n")
    told = {"model": tmp_path / "int8.keras", "output": tmp_path / "out"}
    for options in ([], ["--lora-rank=2"]):
        error = refused(capsys, "finetune", *options, train=table, **told)
        assert "quantized" in error and "int8 in" in error
    assert not (tmp_path / "out").exists()
