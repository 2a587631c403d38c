"""Runs of `finetune` that train adapters (LoRA), or only a part of a model.

What peft makes of the adapters is in tests/parity/test_peft.py.
"""

import json
import shutil
import signal
from unittest.mock import Mock

import keras
import numpy as np
import pytest
from commands import edit_json, read_json, refused, report_of, run, write_rows
from small import TEXT_CONFIG, marked, randomized, signalled

import keras_albert as ka
from keras_albert.checkpoints import lora
from keras_albert.checkpoints.load import head_name
from keras_albert.checkpoints.transfer import weights_of

pytestmark = pytest.mark.usefixtures("eagerly")
# A resumed run rounds in another way on PyTorch.
TOLERANCE = 1e-6 if keras.backend.backend() == "torch" else 0
ROWS = [
    {"text": f"the {word} near London", "label": label}
    for word, label in (("fox", "animal"), ("barn", "place"))
] * 8
QUESTIONS = [
    {"context": "The fox sold hens.", "question": "Who?", "answers": ["fox"]},
    {"context": "A dog found nothing.", "question": "Where?", "answers": []},
] * 4
PAIRS = [
    {"text": "a fox", "pair": pair, "label": label}
    for pair, label in (("two hens", 0.2), ("a dog", 0.7))
] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_vocab):
    """A model of two layers with random weights, and tables."""
    folder = tmp_path_factory.mktemp("adapters")
    tokenizer = ka.Tokenizer(tiny_vocab)
    config = TEXT_CONFIG.replace(
        vocab_size=tokenizer.vocab_size, num_hidden_layers=2
    )
    base = ka.AlbertBackbone(config, tokenizer=tokenizer)
    randomized(base, 0.2).save_to_preset(folder / "base")
    for name, rows in (
        ("classification", ROWS),
        ("qa", QUESTIONS),
        ("similarity", PAIRS),
    ):
        write_rows(folder / f"{name}.jsonl", rows)
    return folder


def told(folder, output, task="classification", **settings):
    table = folder / f"{task}.jsonl"
    return {
        **{"model": folder / "base", "train": table, "output": output},
        **{"task": task, "validation": table, "batch_size": 8, "steps": 2},
        **{"warmup_share": 0, "learning_rate": 0.01, **settings},
    }


def changed(folder, output):
    """The weights of the encoder that a run has changed, and by how much."""
    before = weights_of(ka.load(folder / "base"))
    after = weights_of(ka.load(output, backbone=True))
    differences = {name: after[name] - before[name] for name in before}
    return {k: v for k, v in differences.items() if v.any()}


@pytest.mark.parametrize(
    ("freeze", "parts"),
    [
        ("encoder", {"pooler"}),
        *marked(
            "on_torch",
            ("embeddings", {"encoder", "pooler"}),
            ("backbone", set()),
        ),
    ],
)
def test_frozen_weights_stay(folder, tmp_path, freeze, parts):
    output = tmp_path / "model"
    run("finetune", **told(folder, output, freeze=freeze))
    found = {name.split("/")[0] for name in changed(folder, output)}
    assert found == parts
    model = ka.load(output)
    assert len(model.trainable_variables) == len(model.weights)
    assert not (output / "adapter").exists()
    assert f"- `--freeze {freeze}` left" in (output / "README.md").read_text()


@pytest.mark.on_torch
def test_an_adapter_is_merged_and_stands_beside(folder, tmp_path):
    output, adapter = tmp_path / "model", tmp_path / "model" / "adapter"
    table = write_rows(tmp_path / "a.jsonl", [*ROWS, {"text": "unlabelled"}])
    settings = told(folder, output, lora_rank=3, train=table)
    run("finetune", "--skip-bad", **settings)
    differences = changed(folder, output)
    block = "encoder/group_0_block_0/attention/"
    for name in ("query", "value"):
        kernel = differences.pop(f"{block}{name}/kernel")
        values = np.linalg.svd(kernel, compute_uv=False)
        assert values[2] > 0 and values[3] < 1e-5 * values[0]
    assert differences.keys() == {"pooler/kernel", "pooler/bias"}
    model = ka.load(output)
    assert not any("lora" in each.path for each in model.variables)
    card = (output / "README.md").read_text()
    assert f"- {model.count_params():,} parameters: " in card
    assert "- only adapters (LoRA) of rank 3, the pooler and the head" in card
    assert "- 1 bad rows were left out" in card
    assert len(model.trainable_variables) == len(model.weights)
    assert {each.name for each in adapter.iterdir()} == {
        *("adapter_config.json", "adapter_model.safetensors", "task.json"),
        "keras_albert.json",
    }
    # Every command reads the adapter as it reads the model.
    again = ka.load(adapter)
    assert type(again) is type(model) and again.labels == ("animal", "place")
    assert head_name(adapter) == type(model).__name__
    assert_close(again, model)
    whole, alone = ka.Predictor.load(output), ka.Predictor.load(adapter)
    assert alone.settings() == whole.settings()
    texts = [row["text"] for row in ROWS[:2]]
    assert alone.predict(texts) == whole.predict(texts)
    table = folder / "classification.jsonl"
    said = run("evaluate", model=adapter, data=table)
    assert f"{report_of(output)['accuracy']:.3f}" in said
    run("convert", input=adapter, output=tmp_path / "merged")
    assert_close(ka.load(tmp_path / "merged"), model)
    old = as_older_versions_wrote(adapter, tmp_path / "old")
    assert type(ka.load(old)) is type(model)
    assert_close(ka.load(old), model)
    again = told(folder, tmp_path / "again", model=adapter, lora_rank=2)
    run("finetune", **again)
    stored = read_json(tmp_path / "again" / "adapter" / "adapter_config.json")
    assert stored["base_model_name_or_path"] == str(adapter)
    assert_close(
        ka.load(tmp_path / "again" / "adapter"), ka.load(tmp_path / "again")
    )


def as_older_versions_wrote(adapter, folder):
    """A copy of an adapter with all settings in one file."""
    shutil.copytree(adapter, folder)
    path, added = (
        folder / f"{name}.json" for name in ("adapter_config", "keras_albert")
    )
    edit_json(path, keras_albert=read_json(added))
    added.unlink()
    return folder


def assert_close(one, other):
    one, other = weights_of(one), weights_of(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], atol=1e-6)


@pytest.mark.on_torch
@pytest.mark.parametrize("options", [{}, {"exits": "own"}])
def test_an_adapter_is_calibrated(folder, tmp_path, options, monkeypatch):
    output = tmp_path / "model"
    settings = {"lora_rank": 2, "steps": 1, **options}
    flags = ["--calibrate", "--tune-threshold"]
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        # Killed at its very end, the run divides by the temperature once.
        stop = Mock(side_effect=KeyboardInterrupt)
        patch.setattr("keras_albert.finetuning.run.write_report", stop)
        run("finetune", *flags, **told(folder, output, **settings))
    assert ended.value.code == 130 and stop.called
    run("finetune", *flags, **told(folder, output, **settings))
    temperature = report_of(output)["calibration"]["temperature"]
    assert abs(temperature - 1) > 1e-3
    read, merged = map(ka.Predictor.load, (output / "adapter", output))
    assert read.settings() == merged.settings() and read.threshold
    assert_close(read.model, merged.model)


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("qa", {}),
        ("similarity", {"embedding.projection": 5}),
        ("similarity", {"embedding.pooling": "idf"}),
        ("classification", {"exits": "own"}),
    ],
)
def test_heads_that_only_this_package_has(folder, tmp_path, task, options):
    output = tmp_path / "model"
    run("finetune", **told(folder, output, task, lora_rank=2, **options))
    stored = read_json(output / "adapter" / "adapter_config.json")
    assert stored["task_type"] is stored["modules_to_save"] is None
    read = ka.Predictor.load(output / "adapter")
    assert read.settings() == ka.Predictor.load(output).settings()
    assert_close(read.model, ka.load(output))


@pytest.mark.on_torch
def test_an_adapter_learned_in_bfloat16(folder, tmp_path):
    output, precision = tmp_path / "model", "mixed_bfloat16"
    run("finetune", **told(folder, output, lora_rank=2, precision=precision))
    run("finetune", **told(folder, tmp_path / "float32", lora_rank=2))
    kernels = {
        f"encoder/group_0_block_0/attention/{n}" for n in ("query", "value")
    }
    parts = {name.rpartition("/")[0] for name in changed(folder, output)}
    assert parts == {*kernels, "pooler"}
    assert_close(ka.load(output / "adapter"), ka.load(output))
    # Rounded in every product: near what float32 learns, and not the same.
    exact = changed(folder, tmp_path / "float32")
    for name, found in changed(folder, output).items():
        difference = np.linalg.norm(found - exact[name])
        assert 1e-4 < difference / np.linalg.norm(exact[name]) < 1


@pytest.mark.on_torch
def test_an_interrupted_run_goes_on(folder, tmp_path):
    outputs = tmp_path / "whole", tmp_path / "interrupted"
    settings = told(folder, outputs[0], lora_rank=2, validate_every=2, steps=6)
    run("finetune", **settings)
    settings["output"] = outputs[1]
    with signalled(signal.SIGTERM, step=3), pytest.raises(SystemExit) as stop:
        run("finetune", **settings)
    assert stop.value.code == 0
    assert "from step 3 of 6" in run("finetune", **settings)
    for names in (".", "adapter"):
        one, other = (weights_of(ka.load(each / names)) for each in outputs)
        for name, value in one.items():
            np.testing.assert_allclose(value, other[name], atol=TOLERANCE)
    reports = [report_of(each) for each in outputs]
    assert reports[0]["step"] == reports[1]["step"]


@pytest.fixture(scope="module")
def adapter(folder):
    """A folder with an adapter whose numbers are all 0.25."""
    from safetensors.numpy import save_file

    adapter, prefix = folder / "by_hand", "base_model.model.albert.encoder."
    adapter.mkdir()
    module = f"{prefix}albert_layer_groups.0.albert_layers.0.ffn"
    width, inner = TEXT_CONFIG.hidden_size, TEXT_CONFIG.intermediate_size
    tensors = {
        f"{module}.lora_A.weight": np.full((4, width), 0.25, "float32"),
        f"{module}.lora_B.weight": np.full((inner, 4), 0.25, "float32"),
    }
    save_file(tensors, adapter / "adapter_model.safetensors")
    content = {"peft_type": "LORA", "r": 4, "lora_alpha": 6}
    content["base_model_name_or_path"] = str(folder / "base")
    (adapter / "adapter_config.json").write_text(json.dumps(content))
    return adapter


@pytest.mark.on_torch
@pytest.mark.parametrize(("stabilized", "scale"), [(False, 1.5), (True, 3)])
def test_an_adapter_by_hand(folder, adapter, tmp_path, stabilized, scale):
    """Every number of B A is 4 / 16, times alpha / r or alpha / sqrt(r)."""
    copy = changed_copy(adapter, tmp_path, use_rslora=stabilized)
    ((name, difference),) = changed(folder, copy).items()
    assert name == "encoder/group_0_block_0/feed_forward/intermediate/kernel"
    np.testing.assert_allclose(difference, scale / 4, atol=1e-6)


@pytest.mark.on_torch
@pytest.mark.parametrize(
    "base", ["hf://a/b", "hf://a/b@v1", "kaggle://a/b/c/d"]
)
def test_names_of_base_models(base):
    """peft knows models of the Hub without `hf://`."""
    entries = lora._base_entries(base)
    assert lora._base_of(entries) == base
    assert entries[BASE] == ("a/b" if "hf" in base else base)


def changed_copy(adapter, tmp_path, **changes):
    copy = tmp_path / "copy"
    shutil.copytree(adapter, copy)
    edit_json(copy / "adapter_config.json", **changes)
    return copy


@pytest.mark.on_torch
def test_an_adapter_that_is_pickled(adapter, tmp_path):
    """No other copy has what is missing; peft can make it."""
    copy = changed_copy(adapter, tmp_path)
    (copy / "adapter_model.safetensors").unlink()
    with pytest.raises(ka.AlbertError, match="Use another copy"):
        ka.load(copy)
    (copy / "adapter_model.bin").touch()
    with pytest.raises(ka.AlbertError, match="peft makes it of the adapter_mo"):
        ka.load(copy)


BASE = "base_model_name_or_path"
OWN = {"base_config": "0", "head": "AlbertForMultipleChoice", "arguments": {}}
HUGE = {
    "base_config": "of the base",
    "head": "AlbertForTokenClassification",
    "arguments": {"num_labels": 10**12},
}


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({BASE: "/moved"}, f"/moved cannot be loaded: .* moved, edit `{BASE}`"),
        ({BASE: ""}, f"`{BASE}` must be the path or name .* Received: ''"),
        ({"keras_albert": OWN}, "trained on a model with another config"),
        ({"keras_albert": 3}, "`keras_albert` is not what `finetune` writes"),
        ({"keras_albert": {}}, "`keras_albert` is not what `finetune` writes"),
        ({"peft_type": "IA3"}, "must be 'LORA' .* Received: 'IA3'. Merge"),
        ({"alpha_pattern": {"query": 3}}, "`alpha_pattern` must be {}"),
        ({"fan_in_fan_out": True}, "`fan_in_fan_out` must be False"),
        ({"use_dora": True}, "`use_dora` must be False .* Received: True"),
        ({"init_lora_weights": "pissa"}, "Received: 'pissa'. Merge"),
        ({"lora_alpha": 0}, "`lora_alpha` must be a positive number.*: 0"),
        ({"task_type": "SEQ_CLS"}, "classifier/bias: missing; classifier/k"),
        ({"keras_albert": HUGE}, "the sizes do not belong to these weights"),
    ],
)
def test_what_an_adapter_cannot_be(
    adapter, tmp_path, monkeypatch, changes, message
):
    monkeypatch.setattr(lora, "_checksum", lambda config: "of the base")
    copy = changed_copy(adapter, tmp_path, **changes)
    with pytest.raises(ka.AlbertError, match=message):
        ka.load(copy)
    if "keras_albert" in changes:  # the same in a file of its own
        added = json.dumps(changes["keras_albert"])
        (copy / "keras_albert.json").write_text(added)
        shutil.copy(adapter / "adapter_config.json", copy)
        with pytest.raises(ka.AlbertError, match=message):
            ka.load(copy)


@pytest.mark.on_torch
def test_an_adapter_of_itself(adapter, tmp_path):
    copy = changed_copy(adapter, tmp_path, **{BASE: "?"})
    edit_json(copy / "adapter_config.json", **{BASE: str(copy)})
    with pytest.raises(ka.AlbertError, match="names this adapter itself"):
        ka.load(copy)


@pytest.mark.on_torch
def test_tensors_that_do_not_fit(folder, adapter, tmp_path):
    from safetensors.numpy import load_file, save_file

    copy = changed_copy(adapter, tmp_path)
    path = copy / "adapter_model.safetensors"
    good = load_file(path)
    (name, *_) = good
    cut = {**good, name: good[name][:, :3].copy()}
    more = {**good, f"{name}.lora_magnitude_vector": np.ones(3, "float32")}
    for tensors, message in (
        (cut, r"ffn: expected lora_A \[R, 26\] and lora_B \[37, R\]"),
        (more, "neither LoRA nor weights of the model: .*magnitude"),
        ({"query": np.ones(3)}, "expected names that begin with base_model"),
    ):
        save_file(tensors, path)
        with pytest.raises(ka.AlbertError, match=message):
            ka.load(copy)
    path.write_bytes(b"{")
    with pytest.raises(ka.AlbertError, match="safetensors: damaged"):
        ka.load(copy)
    path.unlink()
    with pytest.raises(ka.AlbertError, match="safetensors: no such file"):
        ka.load(copy)


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--lora-rank=0", "lora_rank=0"),
        ("--lora-rank=27", "must be at most 26, the hidden size of the model"),
        ("--lora-rank=2 --freeze=encoder", "freeze='encoder'. Leave --freeze"),
        ("--lora-rank=2 --from-scratch", "from_scratch=True. Leave --from-sc"),
        ("--lora-rank=2 --depth=3", "lora_rank=2, depth=3. Leave --depth or"),
        ("--freeze=encoder --task=similarity", "freeze='encoder', task='sim"),
        ("--freeze=encoder --from-scratch", "from_scratch=True and freeze="),
        (
            "--freeze=pooler",
            "embeddings, encoder, backbone. Received: 'pooler'",
        ),
    ],
)
def test_nothing_is_left_of_a_mistake(
    folder, tmp_path, capsys, options, message
):
    settings = told(folder, tmp_path / "model")
    if "similarity" in options:
        settings["train"] = settings["validation"] = folder / "similarity.jsonl"
        del settings["task"]
    said = refused(capsys, "finetune", *options.split(), **settings)
    assert message in said
    assert not (tmp_path / "model").exists()
