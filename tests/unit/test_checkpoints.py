"""The name table, sources, and what is said of files that cannot be read."""

import dataclasses
import fnmatch
import shutil
import sys
from unittest.mock import Mock

import keras
import numpy as np
import pytest
from commands import edit_json
from small import EXCHANGED as CONFIG, numpy, randomized, same_weights

import keras_albert as ka
from keras_albert import download as places
from keras_albert.checkpoints import huggingface_config
from keras_albert.checkpoints.load import _architecture
from keras_albert.checkpoints.names import check_groups, name_table
from keras_albert.checkpoints.transfer import (
    encoder_with_pooler,
    exported,
    imported,
    variables,
    weights_of,
)

pytest.importorskip("safetensors", reason="safetensors is not installed")


# Files are read and written as NumPy arrays; test_loading.py and
# test_convert.py do so on every backend.
pytestmark = pytest.mark.on_torch


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    encoder = ka.AlbertBackbone(CONFIG, pooler=False)
    ka.save_huggingface(ka.AlbertForMaskedLM(encoder), folder / "there")
    return folder / "there"


@pytest.fixture
def folder(written, tmp_path):
    """A masked LM of transformers, to be damaged."""
    return shutil.copytree(written, tmp_path / "there")


def folder_of(tmp_path, model):
    """A folder of transformers."""
    ka.save_huggingface(model, tmp_path / "there")
    return tmp_path / "there"


# The table.


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn"])
def test_every_weight_has_a_row(sharing):
    config = CONFIG.replace(
        sharing=sharing, inner_group_num=2, num_hidden_groups=2
    )
    rows = {row.ours for row in name_table(config)}
    encoder = ka.AlbertBackbone(config)
    rows_of_encoder = {
        row for row in rows if "/block_" in row or "_block_" in row
    }
    for model in (
        ka.AlbertForPretraining(encoder),
        ka.AlbertForQuestionAnswering(encoder),
        ka.AlbertForQuestionAnsweringV2(encoder),
        ka.AlbertForSequenceClassification(encoder, num_labels=3),
        ka.AlbertForTokenClassification(encoder, num_labels=3),
        ka.AlbertForMultipleChoice(encoder),
    ):
        assert rows_of_encoder <= variables(model).keys() <= rows


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
    with pytest.raises(ka.AlbertError, match=model):
        check_groups(config, "huggingface")
    with pytest.raises(ka.AlbertError, match="in KerasHub"):
        check_groups(CONFIG.replace(num_hidden_groups=3), "keras_hub")


# Weights in and out.


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_merged_adapters_are_exported(dtype):
    """In float32, whatever the model computes in."""
    plain = ka.AlbertBackbone(CONFIG)
    tuned = ka.AlbertBackbone(CONFIG, dtype=dtype)
    tuned.set_weights(plain.get_weights())
    tuned.enable_lora(2)
    for variable in tuned.variables:
        if "lora_kernel_b" in variable.path:
            variable.assign(np.ones(variable.shape))
    before, after = weights_of(plain), weights_of(tuned)
    assert before.keys() == after.keys()
    name = "encoder/group_0_block_0/attention/query/kernel"
    assert not np.array_equal(before[name], after[name])
    query = tuned.leaves()[name.removesuffix("/kernel")]
    a, b = numpy(query.variables[-2:])
    expected = before[name] + a @ b  # alpha is the rank, so that the scale is 1
    np.testing.assert_allclose(after[name], expected, atol=1e-6)
    name = "embeddings/word_embeddings/embeddings"
    assert np.array_equal(before[name], after[name])
    with pytest.raises(ka.AlbertError, match="before `enable_lora`"):
        imported(tuned, exported(plain, "huggingface"), "huggingface", "x")


def test_exports_are_float32():
    model = randomized(ka.AlbertBackbone(CONFIG, dtype="bfloat16"))
    tensors = exported(model, "huggingface")
    assert {value.dtype.name for value in tensors.values()} == {"float32"}
    name = "encoder/group_0_block_0/feed_forward/intermediate/kernel"
    there = "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    ours = numpy(keras.ops.cast(variables(model)[name], "float32"))
    assert np.array_equal(ours.T, tensors[there])
    again = ka.AlbertBackbone(CONFIG, dtype="bfloat16")
    imported(again, tensors, "huggingface", "there")
    assert same_weights(model, again)


def test_what_is_not_written(tmp_path):
    quantized = ka.AlbertBackbone(CONFIG)
    quantized.quantize("int8")
    relaxed = ka.AlbertBackbone(CONFIG.replace(relaxed_rank=2))
    for model, message in (
        (quantized, "quantized"),
        (relaxed, r"relaxed_rank=0.*relaxed_rank=2"),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            ka.save_huggingface(model, tmp_path / "out")
        assert not list(tmp_path.iterdir())
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ka.AlbertError, match="not empty"):
        ka.save_huggingface(ka.AlbertBackbone(CONFIG), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_pooler_is_added():
    bare = randomized(ka.AlbertBackbone(CONFIG, pooler=False))
    first, second = encoder_with_pooler(bare), encoder_with_pooler(bare)
    assert same_weights(first, second)
    values, before = weights_of(first), weights_of(bare)
    assert values.keys() - before.keys() == {"pooler/kernel", "pooler/bias"}
    assert values["pooler/kernel"].std() > 0
    assert not values["pooler/bias"].any()
    for name, value in before.items():
        assert np.array_equal(value, values[name])
    assert encoder_with_pooler(first) is first


# Sources.


def test_what_is_no_model(tmp_path, folder):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "readme.txt").write_text("hello")
    ka.AlbertBackbone(CONFIG).save(folder / "model.keras")
    for source, options, message in (
        (tmp_path / "nowhere", {}, "no such file"),
        (tmp_path / "text", {}, r"the folder holds readme\.txt"),
        (tmp_path / "text" / "readme.txt", {}, "unknown kind of file"),
        ("s3://bucket/model", {}, "scheme 's3'"),
        (tmp_path, {"gelu": "exact"}, "`gelu` must be one of tanh, erf"),
        (folder, {}, r"more than one.*model\.keras"),
        (folder / "model.keras", {"gelu": "erf"}, r"\.keras file. Leave gelu"),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            ka.load(source, **options)
    assert isinstance(ka.load(folder / "model.keras"), ka.AlbertBackbone)


def test_hugging_face_hub(folder, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="not installed")
    model = ka.load(folder)
    download = Mock(return_value=str(folder))
    monkeypatch.setattr(hub, "snapshot_download", download)
    assert same_weights(ka.load("hf://albert/albert-base-v2@v1.2"), model)
    name, asked = download.call_args_list[0]
    assert (*name, asked["revision"]) == ("albert/albert-base-v2", "v1.2")
    # The .bin of the same weights is not fetched beside model.safetensors.
    assert "*.safetensors" in asked["allow_patterns"]
    assert "*.bin" not in asked["allow_patterns"]
    # A layer of sentence-transformers may be pickled, which the model is not.
    (folder / "2_Dense").mkdir()
    ka.load("hf://albert/albert-base-v2")
    fetched = download.call_args.kwargs["allow_patterns"]
    assert fetched[-1:] == ["2_Dense/*.bin"] and "*.bin" not in fetched
    (folder / "model.safetensors").unlink()
    with pytest.raises(ka.AlbertError, match="no weights"):
        ka.load("hf://albert/albert-base-v2")
    fetched = download.call_args.kwargs["allow_patterns"]
    assert {"*.bin", "*.index", "*.data-*"} <= {*fetched}


def test_kaggle(folder, monkeypatch):
    kaggle = pytest.importorskip("kagglehub", reason="not installed")
    download = Mock(return_value=str(folder))
    monkeypatch.setattr(kaggle, "model_download", download)
    handle = "keras/albert/keras/albert_base_en_uncased/2"
    assert same_weights(ka.load(f"kaggle://{handle}"), ka.load(folder))
    download.assert_called_once_with(handle)


def test_missing_packages(tmp_path, folder, monkeypatch):
    """Importing them fails, although they are installed."""
    pickle, preset = tmp_path / "pickle", tmp_path / "preset"
    for copy in (pickle, preset):
        shutil.copytree(folder, copy)
    (pickle / "model.safetensors").rename(pickle / "pytorch_model.bin")
    edit_json(
        preset / "config.json",
        model_type=None,
        architectures=None,
        registered_name="keras_hub>AlbertBackbone",
        class_name="AlbertBackbone",
    )
    for source, package, extra in (
        (pickle, "torch", "torch"),
        (folder, "safetensors", "huggingface"),
        (preset, "keras_hub", "keras-hub"),
        ("hf://a/b", "huggingface_hub", "huggingface"),
        ("kaggle://a/b/c/d", "kagglehub", "kaggle"),
    ):
        with monkeypatch.context() as patch:
            for name in [*sys.modules]:
                if name.startswith(f"{package}."):
                    patch.delitem(sys.modules, name)
            patch.setitem(sys.modules, package, None)
            message = rf"keras-albert\[{extra}\]"
            with pytest.raises(ka.AlbertError, match=message):
                ka.load(source)
            if package == "safetensors":
                model = ka.AlbertBackbone(CONFIG)
                with pytest.raises(ka.AlbertError, match=message):
                    ka.save_huggingface(model, tmp_path / "out")


# Folders of transformers that cannot be read.


class Runs:
    """Pickled, it would run code when it is read."""

    def __reduce__(self):
        return (print, ("code from a checkpoint was run",))


def test_damaged_weights(folder, capsys):
    torch = pytest.importorskip("torch", reason=".bin files need PyTorch")
    path = folder / "model.safetensors"
    content = path.read_bytes()
    for broken in (b"", content[:100], content[:-10], b"abc" * 99):
        path.write_bytes(broken)
        with pytest.raises(ka.AlbertError, match=r"\.safetensors: damaged"):
            ka.load(folder)
    path.unlink()
    path = folder / "pytorch_model.bin"
    torch.save({"a": torch.ones(1000)}, path)
    content = path.read_bytes()
    halved = content[: len(content) // 2]
    for broken in (b"", halved, b"abc" * 99, [torch.ones(3)], {"a": Runs()}):
        if isinstance(broken, bytes):
            path.write_bytes(broken)
        else:
            torch.save(broken, path)
        with pytest.raises(ka.AlbertError, match=r"_model\.bin: damaged"):
            ka.load(folder)
    assert "was run" not in capsys.readouterr().out
    path.unlink()
    for content, message in (
        ("[1]", "weight_map"),
        ('{"weight_map": 3}', "weight_map"),
        ('{"weight_map": {"a": "../there.safetensors"}}', "weight_map"),
        ('{"weight_map": {"a": "b.safetensors"}}', r"missing: b\.safeten"),
        ("{", "not a JSON file"),
    ):
        (folder / "model.safetensors.index.json").write_text(content)
        with pytest.raises(ka.AlbertError, match=message):
            ka.load(folder)


def classifier(**changes):
    """The config of a classifier of transformers."""
    return {"architectures": ["AlbertForSequenceClassification"], **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_size": None}, "Missing: `embedding_size`"),
        ({"vocab_size": 67}, r"expected \(67, 13\), found \(61, 13\)"),
        ({"hidden_size": 24}, r"expected \(24, 24\), found \(21, 21\)"),
        ({"position_embedding_type": "relative_key"}, "must be 'absolute'"),
        ({"layer_norm_eps": 1e-5}, "`layer_norm_eps` must be 1e-12"),
        ({"hidden_act": "swish"}, "`hidden_act` must be one of.*'swish'"),
        ({"model_type": "bert"}, "`model_type` must be 'albert'.*'bert'"),
        ({"architectures": ["AlbertForVision"]}, "Received: .*ForVision"),
        ({"architectures": "AlbertModel"}, "`architectures` must be"),
        ({"architectures": ["AlbertForMultipleChoice"]}, "missing in"),
        ({"quantization_config": {"bits": 8}}, "`quantization_config`"),
        ({"num_hidden_groups": 2}, r"layer_groups\.1\..*missing in"),
        ({"hidden_dropout_prob": 2}, "`hidden_dropout_prob` must be in"),
        (classifier(id2label=["a"]), "`id2label` must be an object"),
        (classifier(problem_type="ranking"), "`problem_type` must be one of"),
        (classifier(classifier_dropout_prob=2), "`dropout` must be in"),
    ],
)
def test_configs_that_do_not_fit(folder, changes, message):
    edit_json(folder / "config.json", **changes)
    with pytest.raises(ka.AlbertError, match=message):
        ka.load(folder)


def test_weights_that_do_not_fit_are_all_listed(folder):
    from safetensors.numpy import load_file, save_file

    edit_json(  # which harm nothing
        folder / "config.json", down_scale_factor=1, something_new={"a": 1}
    )
    assert isinstance(ka.load(folder), ka.AlbertForMaskedLM)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["predictions.bias"]
    tensors["albert.more"] = np.ones(3, "float32")
    tensors["predictions.dense.bias"] = np.ones(5, "float32")
    save_file(tensors, path)
    with pytest.raises(ka.AlbertError) as caught:
        ka.load(folder)
    for fault in (
        "predictions.bias: missing",
        "predictions.dense.bias: expected (13,), found (5,)",
        "albert.more: in the checkpoint, not in the model",
    ):
        assert fault in str(caught.value)
    tensors["predictions.decoder.weight"] = np.ones((61, 13), "float32")
    save_file(tensors, path)
    with pytest.raises(ka.AlbertError, match=r"decoder\.weight differs"):
        ka.load(folder)
    del tensors["albert.more"]
    save_file(tensors, path)
    assert isinstance(ka.load(folder, backbone=True), ka.AlbertBackbone)
    tensors = {k: v.astype("int8") for k, v in tensors.items()}
    save_file(tensors, path)
    with pytest.raises(ka.AlbertError, match="is int8, expected floating"):
        ka.load(folder)
    torch = pytest.importorskip("torch", reason="not installed")
    path.unlink()
    pickled = {k: torch.tensor(v) for k, v in tensors.items()}
    torch.save(pickled, folder / "pytorch_model.bin")
    with pytest.raises(ka.AlbertError, match="is int8, expected floating"):
        ka.load(folder)


DECODER_BIAS = "predictions.decoder.bias"


@pytest.mark.parametrize("zeros", ["predictions.bias", DECODER_BIAS])
def test_two_biases_of_a_decoder(folder, zeros):
    """Of early versions of transformers, which add both; one is zero."""
    from safetensors.numpy import load_file, save_file

    expected = weights_of(ka.load(folder))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    bias = np.arange(61, dtype="float32")
    tensors |= {"predictions.bias": bias, DECODER_BIAS: bias * 0}
    if zeros == "predictions.bias":
        tensors |= {"predictions.bias": bias * 0, DECODER_BIAS: bias}
    save_file(tensors, path)
    found = weights_of(ka.load(folder))
    changed = [k for k in found if not np.array_equal(found[k], expected[k])]
    (name,) = changed
    np.testing.assert_array_equal(found[name], bias)
    for other in (bias + 1, np.zeros(60, "float32")):
        tensors[zeros] = other
        save_file(tensors, path)
        with pytest.raises(ka.AlbertError, match=r"decoder\.bias differs from"):
            ka.load(folder)


def test_the_name_of_a_head(folder):
    for names, expected in (
        (["AlbertModel"], "AlbertModel"),
        ("AlbertModel", None),
        ([5], None),
        ({"a": 1}, None),
        ([], None),
    ):
        edit_json(folder / "config.json", architectures=names)
        assert _architecture(folder) == expected


def test_vocabularies_that_do_not_fit(tmp_path, tiny_vocab, tokenizer):
    config = CONFIG.replace(vocab_size=tokenizer.vocab_size)
    folder = folder_of(tmp_path, ka.AlbertBackbone(config, tokenizer=tokenizer))
    settings = folder / "tokenizer_config.json"
    edit_json(settings, do_lower_case=False)
    assert ka.load(folder).tokenizer.lower_case is False
    edit_json(settings, do_lower_case=None)
    assert ka.load(folder).tokenizer.lower_case is True
    edit_json(settings, keep_accents=True)
    assert ka.load(folder).tokenizer.keep_accents is True
    for changes, message in (
        ({"keep_accents": 1}, "`keep_accents` must be true or false"),
        ({"keep_accents": False, "do_lower_case": 3}, "must be true or false"),
    ):
        edit_json(settings, **changes)
        with pytest.raises(ka.AlbertError, match=message):
            ka.load(folder)
    settings.unlink()
    assert ka.load(folder).tokenizer.lower_case is True
    (folder / "spiece.model").unlink()
    assert ka.load(folder).tokenizer.lower_case is True  # by tokenizer.json
    (folder / "tokenizer.json").unlink()
    assert ka.load(folder).tokenizer is None
    shutil.rmtree(folder)
    folder = folder_of(tmp_path, ka.AlbertBackbone(CONFIG))  # of 61 pieces
    shutil.copy(tiny_vocab / "spiece.model", folder)
    with pytest.raises(ka.AlbertError, match=r"160 pieces.*vocab_size=61"):
        ka.load(folder)


def test_download_patterns():
    """What a repository of a released model holds, and what is fetched."""

    def fetched(name):
        wanted, unwanted = (
            any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
            for patterns in (places._WANTED, places._UNWANTED)
        )
        return wanted and not unwanted

    wanted = "config.json tokenizer_config.json spiece.model model.keras"
    wanted += " model.safetensors model-00001-of-00002.safetensors"
    wanted += " model.safetensors.index.json model.weights.h5 task.weights.h5"
    wanted += " assets/tokenizer/vocabulary.spm vocab.txt"
    unwanted = "pytorch_model.bin tf_model.h5 flax_model.msgpack rust_model.ot"
    unwanted += " onnx/model.safetensors README.md"
    assert [name for name in wanted.split() if not fetched(name)] == []
    assert [name for name in unwanted.split() if fetched(name)] == []


def test_config_fields_are_all_accounted_for():
    """A new field of AlbertConfig must be thought of here, too."""
    own = {"hidden_act", "sharing", "relaxed_rank", "project_equal_sizes"}
    fields = {field.name for field in dataclasses.fields(ka.AlbertConfig)}
    assert fields == {*huggingface_config.CONFIG_FIELDS, *own}
