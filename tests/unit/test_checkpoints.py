"""The name table, sources, and what is said of files that cannot be read."""

import dataclasses
import json
import shutil
import sys
import types

import keras
import numpy as np
import pytest
from small import EXCHANGED as CONFIG, randomized, same_weights

from keras_albert.checkpoints import download as places, huggingface
from keras_albert.checkpoints.huggingface import save_huggingface
from keras_albert.checkpoints.load import load, load_pretrained
from keras_albert.checkpoints.names import (
    DIALECTS,
    FORMS,
    check_groups,
    name_table,
)
from keras_albert.checkpoints.transfer import (
    exported,
    imported,
    plain_encoder,
    variables,
    weights_of,
)
from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.modeling.question_answering import (
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.text.tokenizer import Tokenizer

pytest.importorskip("safetensors", reason="safetensors is not installed")


def folder_of(tmp_path, model=None):
    """A folder of transformers."""
    model = model or AlbertForMaskedLM(AlbertBackbone(CONFIG, pooler=False))
    save_huggingface(model, tmp_path / "there")
    return tmp_path / "there"


def edit_json(path, **changes):
    content = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del content[key]
        else:
            content[key] = value
    path.write_text(json.dumps(content))


# The table.


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
def test_every_weight_has_a_row(sharing):
    config = CONFIG.replace(
        sharing=sharing, inner_group_num=2, num_hidden_groups=2
    )
    rows = {row.ours for row in name_table(config)}
    encoder = AlbertBackbone(config)
    for model in (
        AlbertForPretraining(encoder),
        AlbertForQuestionAnswering(encoder),
        AlbertForQuestionAnsweringV2(encoder),
        AlbertForSequenceClassification(encoder, num_labels=3),
        AlbertForTokenClassification(encoder, num_labels=3),
        AlbertForMultipleChoice(encoder),
    ):
        assert variables(model).keys() <= rows
        rows_of_heads = {
            row for row in rows if "/block_" not in row and "_block_" not in row
        }
        assert rows - rows_of_heads <= variables(model).keys()


def test_no_name_stands_for_two_weights():
    for sharing in ("all", "attention", "none"):
        rows = name_table(CONFIG.replace(sharing=sharing))
        for dialect in DIALECTS:
            names = [getattr(row, dialect) for row in rows]
            names = [name for name in names if name is not None]
            assert len(names) == len(set(names))
        assert all(row.form in FORMS for row in rows)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_forms_are_inverse(dialect):
    model = randomized(AlbertBackbone(CONFIG))
    values = weights_of(model)
    for row in name_table(CONFIG):
        if row.ours not in values:
            continue
        value = values[row.ours]
        there = row.there(value, dialect, CONFIG.num_attention_heads)
        assert there.shape == row.shape_there(
            value.shape, dialect, CONFIG.num_attention_heads
        )
        assert np.array_equal(row.here(there, dialect, value.shape), value)


def test_forms_by_hand():
    rows = {row.ours: row for row in name_table(CONFIG)}
    query = rows["encoder/group_0_block_0/attention/query/kernel"]
    kernel = np.arange(36).reshape(6, 6)  # 3 heads of 2
    assert query.there(kernel, "tf1", 3) is kernel
    assert query.there(kernel, "huggingface", 3)[4, 1] == kernel[1, 4]
    assert query.there(kernel, "keras_hub", 3)[1, 2, 0] == kernel[1, 4]
    output = rows["encoder/group_0_block_0/attention/output/kernel"]
    assert output.there(kernel, "keras_hub", 3)[2, 1, 3] == kernel[5, 3]
    span = rows["span/kernel"]
    assert span.there(kernel[:, :2], "tf1", 3)[1, 5] == kernel[5, 1]


def test_groups_are_compared():
    check_groups(CONFIG.replace(num_hidden_groups=3), "huggingface")
    config = CONFIG.replace(num_hidden_layers=18, num_hidden_groups=14)
    model = "layer 9 .* is in group 7 here, in 6 in transformers"
    with pytest.raises(AlbertError, match=model):
        check_groups(config, "huggingface")
    with pytest.raises(AlbertError, match="in KerasHub"):
        check_groups(CONFIG.replace(num_hidden_groups=3), "keras_hub")


# Weights in and out.


def test_merged_adapters_are_exported():
    plain = AlbertBackbone(CONFIG)
    tuned = AlbertBackbone(CONFIG)
    tuned.set_weights(plain.get_weights())
    tuned.enable_lora(2)
    for layer in tuned.leaves().values():
        if layer.lora_enabled:
            layer.lora_kernel_b.assign(
                np.ones(layer.lora_kernel_b.shape, "float32")
            )
    before, after = weights_of(plain), weights_of(tuned)
    assert before.keys() == after.keys()
    name = "encoder/group_0_block_0/attention/query/kernel"
    assert not np.array_equal(before[name], after[name])
    query = tuned.leaves()[name.removesuffix("/kernel")]
    assert np.array_equal(after[name], keras.ops.convert_to_numpy(query.kernel))
    name = "embeddings/word_embeddings/embeddings"
    assert np.array_equal(before[name], after[name])
    with pytest.raises(AlbertError, match="before `enable_lora`"):
        imported(tuned, exported(plain, "huggingface"), "huggingface", "x")


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_exports_are_float32(policy):
    model = randomized(AlbertBackbone(CONFIG, dtype=policy))
    tensors = exported(model, "huggingface")
    assert {value.dtype.name for value in tensors.values()} == {"float32"}
    name = "encoder/group_0_block_0/feed_forward/intermediate/kernel"
    there = "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    ours = keras.ops.convert_to_numpy(
        keras.ops.cast(variables(model)[name], "float32")
    )
    assert np.array_equal(ours.T, tensors[there])
    again = AlbertBackbone(CONFIG, dtype=policy)
    imported(again, tensors, "huggingface", "there")
    assert same_weights(model, again)


def test_quantized_models_are_refused(tmp_path):
    model = AlbertBackbone(CONFIG)
    model.quantize("int8")
    with pytest.raises(AlbertError, match="quantized"):
        save_huggingface(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_relaxed_layers_are_refused(tmp_path):
    model = AlbertBackbone(CONFIG.replace(relaxed_rank=2))
    with pytest.raises(AlbertError, match=r"relaxed_rank=0.*relaxed_rank=2"):
        save_huggingface(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(AlbertError, match="not empty"):
        save_huggingface(AlbertBackbone(CONFIG), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_half_written_folders_vanish(tmp_path, monkeypatch):
    def stop(*_):
        raise OSError("no space left")

    monkeypatch.setattr(huggingface, "write_json", stop)
    with pytest.raises(OSError, match="no space"):
        save_huggingface(AlbertBackbone(CONFIG), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_pooler_is_added():
    bare = randomized(AlbertBackbone(CONFIG, pooler=False))
    first, second = plain_encoder(bare), plain_encoder(bare)
    assert same_weights(first, second)
    values = weights_of(first)
    assert values.pop("pooler/kernel").std() > 0
    assert not values.pop("pooler/bias").any()
    for name, value in weights_of(bare).items():
        assert np.array_equal(value, values.pop(name))
    assert not values
    assert plain_encoder(first) is first


# Sources.


def test_what_is_no_model(tmp_path):
    with pytest.raises(AlbertError, match="no such file"):
        load(tmp_path / "nowhere")
    (tmp_path / "readme.txt").write_text("hello")
    with pytest.raises(AlbertError, match=r"the folder holds readme\.txt"):
        load(tmp_path)
    with pytest.raises(AlbertError, match="unknown kind of file"):
        load(tmp_path / "readme.txt")
    with pytest.raises(AlbertError, match="scheme 's3'"):
        load("s3://bucket/model")
    with pytest.raises(AlbertError, match="`gelu` must be one of tanh, erf"):
        load(tmp_path, gelu="exact")


def test_more_than_one_model(tmp_path):
    folder = folder_of(tmp_path)
    AlbertBackbone(CONFIG).save(folder / "model.keras")
    with pytest.raises(AlbertError, match=r"more than one.*model\.keras"):
        load(folder)
    assert isinstance(load(folder / "model.keras"), AlbertBackbone)


def test_keras_file_with_a_vocabulary(tmp_path, tiny_vocab):
    tokenizer = Tokenizer(tiny_vocab)
    config = CONFIG.replace(vocab_size=tokenizer.vocab_size)
    model = randomized(
        AlbertForMaskedLM(AlbertBackbone(config, tokenizer=tokenizer))
    )
    model.save(tmp_path / "mine.keras")
    again = load(tmp_path / "mine.keras")
    assert isinstance(again, AlbertForMaskedLM)
    assert same_weights(again, model)
    assert again.tokenizer.model_bytes == tokenizer.model_bytes
    encoder = load(tmp_path / "mine.keras", backbone=True)
    assert isinstance(encoder, AlbertBackbone)
    with pytest.raises(AlbertError, match=r"a \.keras file. Leave gelu='erf'"):
        load(tmp_path / "mine.keras", gelu="erf")


def test_hugging_face_hub(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="not installed")
    model = randomized(AlbertForMaskedLM(AlbertBackbone(CONFIG, pooler=False)))
    folder = folder_of(tmp_path, model)
    asked = []

    def snapshot_download(repo_id, *, revision, allow_patterns, **_):
        asked.append((repo_id, revision, allow_patterns))
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    assert same_weights(load("hf://albert/albert-base-v2"), model)
    assert same_weights(load("hf://albert/tiny@v1.2"), model)
    assert [call[:2] for call in asked] == [
        ("albert/albert-base-v2", None),
        ("albert/tiny", "v1.2"),
    ]
    # The .bin of the same weights is not fetched beside model.safetensors.
    assert "*.safetensors" in asked[0][2]
    assert "*.bin" not in asked[0][2]
    (folder / "model.safetensors").unlink()
    with pytest.raises(AlbertError, match="no weights"):
        load("hf://albert/albert-base-v2")
    assert "*.bin" in asked[-1][2]


def test_kaggle(tmp_path, monkeypatch):
    kaggle = pytest.importorskip("kagglehub", reason="not installed")
    model = randomized(AlbertForMaskedLM(AlbertBackbone(CONFIG, pooler=False)))
    folder = folder_of(tmp_path, model)
    asked = []

    def model_download(handle):
        asked.append(handle)
        return str(folder)

    monkeypatch.setattr(kaggle, "model_download", model_download)
    handle = "keras/albert/keras/albert_base_en_uncased/2"
    assert same_weights(load(f"kaggle://{handle}"), model)
    assert asked == [handle]


def test_failed_downloads(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("name not resolved\nand a long trace")

    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = fail
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    message = r"hf://a/b: cannot be downloaded \(name not resolved\)"
    with pytest.raises(AlbertError, match=message):
        load("hf://a/b")


@pytest.mark.parametrize(
    ("source", "package", "extra"),
    [
        ("hf://a/b", "huggingface_hub", "huggingface"),
        ("kaggle://a/b/c/d", "kagglehub", "kaggle"),
    ],
)
def test_missing_downloaders(monkeypatch, source, package, extra):
    without(monkeypatch, package)
    with pytest.raises(AlbertError, match=rf"keras-albert\[{extra}\]"):
        load(source)


def without(monkeypatch, package):
    """Importing the package fails, although it is installed."""
    for name in [*sys.modules]:
        if name.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


def test_missing_packages(tmp_path, monkeypatch):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with monkeypatch.context() as patch:
        without(patch, "torch")
        with pytest.raises(AlbertError, match=r"keras-albert\[torch\]"):
            load(folder)
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    with monkeypatch.context() as patch:
        without(patch, "safetensors")
        with pytest.raises(AlbertError, match=r"keras-albert\[huggingface\]"):
            load(folder)
        with pytest.raises(AlbertError, match=r"keras-albert\[huggingface\]"):
            save_huggingface(AlbertBackbone(CONFIG), tmp_path / "out")
    edit_json(folder / "config.json", model_type=None, architectures=None)
    edit_json(
        folder / "config.json",
        registered_name="keras_hub>AlbertBackbone",
        class_name="AlbertBackbone",
    )
    without(monkeypatch, "keras_hub")
    with pytest.raises(AlbertError, match=r"keras-albert\[keras-hub\]"):
        load(folder)


# Folders of transformers that cannot be read.


def test_damaged_safetensors(tmp_path):
    folder = folder_of(tmp_path)
    path = folder / "model.safetensors"
    content = path.read_bytes()
    for broken in (b"", content[:100], content[:-10], b"abc" * 99):
        path.write_bytes(broken)
        with pytest.raises(AlbertError, match=r"model\.safetensors: damaged"):
            load(folder)


def test_damaged_pickles(tmp_path):
    torch = pytest.importorskip("torch", reason=".bin files need PyTorch")
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save({"a": torch.ones(1000)}, path)
    content = path.read_bytes()
    for broken in (b"", content[: len(content) // 2], b"abc" * 99):
        path.write_bytes(broken)
        with pytest.raises(AlbertError, match=r"pytorch_model\.bin: damaged"):
            load(folder)
    torch.save([torch.ones(3)], path)
    with pytest.raises(AlbertError, match=r"pytorch_model\.bin: damaged"):
        load(folder)


class Runs:
    """Pickled, it would run code when it is read."""

    def __reduce__(self):
        return (print, ("code from a checkpoint was run",))


def test_pickles_run_no_code(tmp_path, capsys):
    torch = pytest.importorskip("torch", reason=".bin files need PyTorch")
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({"a": Runs()}, folder / "pytorch_model.bin")
    with pytest.raises(AlbertError, match=r"pytorch_model\.bin: damaged"):
        load(folder)
    assert "was run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "weight_map"),
        ('{"weight_map": 3}', "weight_map"),
        ('{"weight_map": {"a": "../there.safetensors"}}', "weight_map"),
        ('{"weight_map": {"a": "b.safetensors"}}', r"missing: b\.safetensors"),
        ("{", "not a JSON file"),
    ],
)
def test_damaged_index(tmp_path, content, message):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(AlbertError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_size": None}, "Missing: `embedding_size`"),
        ({"vocab_size": 67}, r"expected \(67, 13\), found \(61, 13\)"),
        ({"hidden_size": 24}, r"expected \(24, 24\), found \(21, 21\)"),
        ({"layer_norm_eps": 1e-5}, "`layer_norm_eps` must be 1e-12"),
        ({"hidden_act": "swish"}, "`hidden_act` must be one of.*'swish'"),
        ({"model_type": "bert"}, "`model_type` must be 'albert'.*'bert'"),
        ({"architectures": ["AlbertForVision"]}, "Received: .*ForVision"),
        ({"architectures": "AlbertModel"}, "`architectures` must be"),
        ({"architectures": ["AlbertForMultipleChoice"]}, "missing in"),
        ({"quantization_config": {"bits": 8}}, "`quantization_config`"),
        ({"num_hidden_groups": 2}, r"layer_groups\.1\..*missing in"),
        ({"hidden_dropout_prob": 2}, "`hidden_dropout_prob` must be in"),
    ],
)
def test_configs_that_do_not_fit(tmp_path, changes, message):
    folder = folder_of(tmp_path)
    edit_json(folder / "config.json", **changes)
    with pytest.raises(AlbertError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": ["a"]}, "`id2label` must be an object"),
        ({"id2label": {"a": "b"}}, "`id2label` must be an object"),
        ({"problem_type": "ranking"}, "`problem_type` must be one of"),
        ({"classifier_dropout_prob": 2}, "`dropout` must be in"),
    ],
)
def test_heads_that_do_not_fit(tmp_path, changes, message):
    model = AlbertForSequenceClassification(AlbertBackbone(CONFIG), 3)
    folder = folder_of(tmp_path, model)
    edit_json(folder / "config.json", **changes)
    with pytest.raises(AlbertError, match=message):
        load(folder)


def test_harmless_fields_are_ignored(tmp_path):
    folder = folder_of(tmp_path)
    edit_json(
        folder / "config.json",
        down_scale_factor=1,
        use_cache=True,
        something_new={"a": 1},
        architectures=["AlbertForMaskedLM"],
    )
    assert isinstance(load(folder), AlbertForMaskedLM)


def test_weights_that_do_not_fit_are_all_listed(tmp_path):
    from safetensors.numpy import load_file, save_file

    folder = folder_of(tmp_path)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["predictions.bias"]
    tensors["albert.more"] = np.ones(3, "float32")
    tensors["predictions.dense.bias"] = np.ones(5, "float32")
    save_file(tensors, path)
    with pytest.raises(AlbertError) as caught:
        load(folder)
    message = str(caught.value)
    assert "predictions.bias: missing" in message
    assert "predictions.dense.bias: expected (13,), found (5,)" in message
    assert "albert.more: in the checkpoint, not in the model" in message
    tensors["predictions.decoder.weight"] = np.ones((61, 13), "float32")
    save_file(tensors, path)
    with pytest.raises(AlbertError, match=r"decoder\.weight differs"):
        load(folder)
    tensors = {k: v.astype("int8") for k, v in tensors.items()}
    save_file(tensors, path)
    with pytest.raises(AlbertError, match="is int8, expected floating"):
        load(folder)


def test_vocabularies_that_do_not_fit(tmp_path, tiny_vocab):
    tokenizer = Tokenizer(tiny_vocab)
    config = CONFIG.replace(vocab_size=tokenizer.vocab_size)
    folder = folder_of(tmp_path, AlbertBackbone(config, tokenizer=tokenizer))
    settings = folder / "tokenizer_config.json"
    edit_json(settings, do_lower_case=False)
    assert load(folder).tokenizer.lower_case is False
    edit_json(settings, do_lower_case=None)
    assert load(folder).tokenizer.lower_case is True
    edit_json(settings, keep_accents=True)
    assert load(folder).tokenizer.keep_accents is True
    for changes, message in (
        ({"keep_accents": 1}, "`keep_accents` must be true or false"),
        ({"keep_accents": False, "do_lower_case": 3}, "must be true or false"),
    ):
        edit_json(settings, **changes)
        with pytest.raises(AlbertError, match=message):
            load(folder)
    settings.unlink()
    assert load(folder).tokenizer.lower_case is True
    (folder / "spiece.model").unlink()
    assert load(folder).tokenizer is None
    with pytest.raises(AlbertError, match="no vocabulary"):
        load_pretrained(folder)
    shutil.rmtree(folder)
    folder = folder_of(tmp_path, AlbertBackbone(CONFIG))  # of 61 pieces
    shutil.copy(tiny_vocab / "spiece.model", folder)
    with pytest.raises(AlbertError, match=r"160 pieces.*vocab_size=61"):
        load(folder)


def test_identity_projection(tmp_path):
    """Sizes are equal here, and need a projection there."""
    config = CONFIG.replace(embedding_size=21)
    for project in (False, True):
        model = randomized(
            AlbertBackbone(config.replace(project_equal_sizes=project))
        )
        save_huggingface(model, tmp_path / str(project))
        again = load(tmp_path / str(project))
        assert again.config.project_equal_sizes == project
        assert same_weights(again, model)


def test_download_patterns():
    """What a repository of a released model holds, and what is fetched."""
    import fnmatch

    def fetched(name):
        return any(fnmatch.fnmatch(name, p) for p in places._WANTED) and not (
            any(fnmatch.fnmatch(name, p) for p in places._UNWANTED)
        )

    for name in (
        "config.json",
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "spiece.model",
        "tokenizer_config.json",
        "model.weights.h5",
        "task.weights.h5",
        "assets/tokenizer/vocabulary.spm",
        "model.keras",
    ):
        assert fetched(name), name
    for name in (
        "pytorch_model.bin",
        "tf_model.h5",
        "flax_model.msgpack",
        "rust_model.ot",
        "onnx/model.safetensors",
        "README.md",
    ):
        assert not fetched(name), name


def test_config_fields_are_all_accounted_for():
    """A new field of AlbertConfig must be thought of here, too."""
    own = {"hidden_act", "sharing", "relaxed_rank", "project_equal_sizes"}
    fields = {field.name for field in dataclasses.fields(AlbertConfig)}
    assert fields == {*huggingface._FIELDS, *own}
