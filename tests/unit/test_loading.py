"""What a user meets first: loading, import order, errors, `repr`."""

import contextlib
import shutil
import sys

import keras
import numpy as np
import pytest
from commands import output_of, rows_of, run
from small import (
    CONFIG,
    EXCHANGED,
    add_noise,
    inputs,
    marked,
    numpy,
    same_weights,
)

import keras_albert as ka
from keras_albert.tasks.task_file import task_of
from keras_albert.training.model_folder import ModelFolder

BFLOAT16 = "mixed_bfloat16"


@contextlib.contextmanager
def global_policy(name):
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


def form_of(model):
    backbone = getattr(model, "backbone", model)
    parts = model, backbone, backbone.encoder
    (policy,) = {part.dtype_policy.name for part in parts}
    return policy, backbone.encoder.loop, backbone.encoder.remat


@pytest.fixture(scope="module")
def sources(tmp_path_factory, pretrained_folder):
    """A source of each format, of this package's first."""
    folder = tmp_path_factory.mktemp("sources")
    keras.utils.set_random_seed(3)
    model = add_noise(
        ka.AlbertForSequenceClassification(ka.AlbertBackbone(EXCHANGED), 3)
    )
    sources = {name: folder / name for name in ("model.keras", "huggingface")}
    model.save(sources["model.keras"])
    ka.save_huggingface(model, sources["huggingface"])
    return {"folder": pretrained_folder, **sources}


@pytest.mark.parametrize(
    "kind",
    ["model.keras", *marked("on_torch", "folder", "huggingface")],
)
def test_dtype_loop_and_remat(sources, kind):
    """Given, they count; else the global policy; else float32."""
    source = sources[kind]
    plain = ka.load(source)
    assert form_of(plain) == ("float32", "unrolled", False)
    asked = ka.load(source, dtype=BFLOAT16, loop="scan", remat=True)
    assert form_of(asked) == (BFLOAT16, "scan", True)
    with global_policy(BFLOAT16):
        by_policy = ka.load(source)
        again = ka.load(source, dtype="float32", backbone=True)
    assert form_of(by_policy) == (BFLOAT16, "unrolled", False)
    assert form_of(again) == ("float32", "unrolled", False)
    for model in (asked, by_policy):
        assert type(model) is type(plain) and same_weights(model, plain)
        assert {w.dtype for w in model.weights} == {"float32"}
    assert same_weights(again, plain.backbone)


@pytest.mark.on_torch
def test_of_every_loader(sources, tmp_path):
    folder, file = sources["folder"], sources["model.keras"]
    with global_policy(BFLOAT16):
        backbone, tokenizer = ka.load_pretrained(folder)
        assert form_of(backbone) == (BFLOAT16, "unrolled", False)
        assert form_of(ka.load_model(file)) == (BFLOAT16, "unrolled", False)
        # What the commands read and write is float32 whatever the policy.
        kept = ModelFolder.load(folder)
        assert form_of(kept.model)[0] == "float32"
        ModelFolder(backbone, tokenizer, {"task": "weights"}).save(tmp_path)
    backbone, _ = ka.load_pretrained(folder, dtype=BFLOAT16, remat=True)
    assert form_of(backbone) == (BFLOAT16, "unrolled", True)
    assert form_of(ka.load_model(file, loop="scan"))[1] == "scan"
    assert form_of(ka.load(tmp_path))[0] == "float32"
    assert backbone.tokenizer.vocab_size == tokenizer.vocab_size
    # Where `load_pretrained` has to make another encoder, with a pooler.
    bare = ka.AlbertBackbone(backbone.config, pooler=False, tokenizer=tokenizer)
    bare.save(tmp_path / "bare.keras")
    form = {"dtype": BFLOAT16, "loop": "scan", "remat": True}
    found, _ = ka.load_pretrained(tmp_path / "bare.keras", **form)
    assert found.pooler is not None
    assert form_of(found) == (BFLOAT16, "scan", True)


@pytest.mark.on_torch
def test_in_the_users_own_folder(sources, tmp_path, monkeypatch):
    """ "~" is the same place for what writes and for what reads."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = sources["folder"]
    model = ka.load(sources["model.keras"])
    model.save("~/file.keras")
    model.save_to_preset("~/folder")
    ka.save_huggingface(model, "~/transformers")
    model.config.to_json("~/sizes.json")
    assert ka.AlbertConfig.from_json("~/sizes.json") == model.config
    names = {"file.keras", "folder", "transformers"}
    assert {path.name for path in tmp_path.iterdir()} == names | {"sizes.json"}
    for name in names:
        assert same_weights(ka.load(f"~/{name}"), model)
    assert same_weights(ka.load_model("~/file.keras"), model)
    vocabulary = ka.Tokenizer(folder)
    vocabulary.save("~/vocabulary")
    assert ka.Tokenizer("~/vocabulary").settings == vocabulary.settings
    predictor = ka.Predictor(ka.load(folder), tokenizer=vocabulary)
    predictor.save("~/predictor")
    assert ka.Predictor.load("~/predictor").task == predictor.task
    assert task_of("~/predictor") == predictor.task


@pytest.mark.on_torch
def test_a_vocabulary_beside_a_keras_file(tmp_path, tiny_vocab):
    size = ka.Tokenizer(tiny_vocab).vocab_size
    file, data = tmp_path / "mine.keras", tmp_path / "data.txt"
    data.write_text("the fox\n")
    encoder = ka.AlbertBackbone(CONFIG.replace(vocab_size=size))
    ka.AlbertForSequenceClassification(encoder, 2).save(file)
    with pytest.raises(ka.AlbertError, match=r"Put it beside .* spiece\.model"):
        ka.Predictor.load(file)
    shutil.copy(tiny_vocab / "spiece.model", tmp_path)
    assert ka.load(file).tokenizer.vocab_size == size
    (row,) = rows_of(run("predict", model=file, data=data))
    assert row["text"] == "the fox" and "prediction" in row
    ka.AlbertBackbone(CONFIG.replace(vocab_size=size - 1)).save(file)
    with pytest.raises(
        ka.AlbertError, match=f"spiece.model, .*{size} pieces.*={size - 1}"
    ):
        ka.load(file)


@pytest.mark.any_backend
def test_names_of_the_hub_need_their_scheme():
    with pytest.raises(ka.AlbertError, match=r"hf://albert/albert-base-v2\.$"):
        ka.load("albert/albert-base-v2")
    for source in ("albert/base.keras", "../base", "a/b/c", "/a/b"):
        with pytest.raises(ka.AlbertError) as caught:
            ka.load(source)
        assert "hf://" not in str(caught.value)


def test_quantized_file_keeps_its_policy(tmp_path):
    def pooled(model):
        return numpy(model(inputs())["pooled_output"]).astype("float32")

    path = tmp_path / "small.keras"
    model = add_noise(ka.AlbertBackbone(CONFIG))
    model.quantize("int8")
    model.save(path)
    with global_policy(BFLOAT16):
        kept = ka.load(path)
    assert form_of(kept)[0] == "float32"
    np.testing.assert_allclose(pooled(kept), pooled(model), atol=1e-5)
    asked = ka.load(path, dtype=BFLOAT16)
    assert form_of(asked)[0] == BFLOAT16
    attention = asked.encoder.shared[0][0].parts["attention"]
    assert attention.query.kernel.dtype == "int8"
    assert np.abs(pooled(asked) - pooled(model)).mean() < 0.05


def test_functional_model_around_a_backbone(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    pooled = ka.AlbertBackbone(CONFIG)({"token_ids": ids})["pooled_output"]
    model = add_noise(keras.Model(ids, keras.layers.Dense(2)(pooled)))
    path = tmp_path / "functional.keras"
    model.save(path)
    again = ka.load_model(path)
    x = inputs()["token_ids"]
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))
    with pytest.raises(ka.AlbertError, match="expected a model of this pack"):
        ka.load(path)
    with pytest.raises(ka.AlbertError, match="`loop` is for models of this"):
        ka.load_model(path, loop="scan")


@pytest.mark.on_torch
@pytest.mark.parametrize(
    "imports",
    [
        "import keras_albert; keras_albert.AlbertConfig; import keras",
        *marked(
            "proof",
            "import keras, keras_albert",
            # Keras is imported in the middle of these.
            "import keras_albert; keras_albert.GraphTokenizer",
            "import keras_albert.distribution.devices; keras_albert.load",
        ),
    ],
)
def test_import_order(sources, imports):
    code = (
        f"{imports}\nimport keras\n"
        f"model = keras.models.load_model({str(sources['model.keras'])!r})\n"
        "print(type(model).__name__)\n"
        "print('keras_albert>Lamb' in keras.saving.get_custom_objects())\n"
    )
    shown = output_of(sys.executable, "-c", code).split()
    assert shown == ["AlbertForSequenceClassification", "True"]


class AlbertBackbone:
    """Stands for KerasHub's."""

    save_to_preset = None


AlbertBackbone.__module__ = "keras_hub.src.models.albert.albert_backbone"


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: ka.AlbertConfg, AttributeError, "Did you mean 'AlbertConfig'"),
        (lambda: ka.VARIANTS["base-v2"], KeyError, "^VARIANTS.*mean 'base_v2'"),
        (lambda: ka.VARIANTS[3], ka.AlbertError, "Received: 3.$"),
        (
            lambda: ka.AlbertBackbone(CONFIG, pool=False),
            TypeError,
            "no argument `pool`. Did you mean `pooler`",
        ),
        (
            lambda: ka.EncoderBlock(CONFIG, colour=2),
            TypeError,
            "no argument `colour`. It takes `config`",
        ),
        (
            lambda: ka.load(AlbertBackbone()),
            ka.AlbertError,
            "AlbertBackbone of keras_hub. Use keras_albert.from_keras_hub",
        ),
        (lambda: ka.load(3), ka.AlbertError, "a path.*Received: int"),
        (lambda: ka.load("x", dtype="half"), ka.AlbertError, "dtype='half'"),
        (lambda: ka.load_model("x", loop=1), ka.AlbertError, "loop=1"),
        (lambda: ka.load_pretrained("x", remat=1), ka.AlbertError, "remat=1"),
    ],
)
def test_errors_say_what_was_meant(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.on_torch
@pytest.mark.parametrize("place", ["", "assets.extra", "1/assets.extra"])
@pytest.mark.parametrize("load", [ka.load, ka.Predictor.load])
def test_an_export_is_no_model(tmp_path, sources, place, load):
    """Of LiteRT and ONNX; a version of a SavedModel; the folder of these."""
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("task.json", "spiece.model", "spiece.json"):
        shutil.copy(sources["folder"] / name, folder)
    (folder / "export.json").write_text("{}")
    with pytest.raises(ka.AlbertError, match="an exported model"):
        load(tmp_path)


@pytest.mark.any_backend
def test_repr_says_what_it_is(sources):
    model = ka.AlbertForSequenceClassification(
        ka.AlbertBackbone(CONFIG), 2, labels=("no", "yes"), name="mine"
    )
    count = f"{model.count_params():,}"
    assert repr(model) == (
        "<AlbertForSequenceClassification name=mine, layers=5, "
        f"hidden_size=26, sharing=all, parameters={count}, "
        "vocabulary=97 pieces, ids only, labels=('no', 'yes')>"
    )
    backbone, tokenizer = ka.load_pretrained(sources["folder"])
    assert repr(tokenizer) == (
        "<Tokenizer pieces=160, lower_case=True, keep_accents=False>"
    )
    assert repr(backbone).endswith("vocabulary=160 pieces>")
    config = CONFIG.replace(sharing="attention")
    assert eval(repr(config), {"AlbertConfig": ka.AlbertConfig}) == config
    assert "type_vocab_size" not in repr(config)
