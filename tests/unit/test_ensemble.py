"""Several models as one."""

import dataclasses

import keras
import numpy as np
import pytest
from commands import refused, rows_of, run, write_rows
from keras import ops
from scipy import special
from small import CONFIG, inputs, marked, numpy

import keras_albert as ka
from keras_albert import AlbertError
from keras_albert.exports.load import load_exported
from keras_albert.modeling.ensemble import AlbertEnsemble, mean_weights
from keras_albert.modeling.weight_checks import check_not_quantized
from keras_albert.storage import write_json
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.training.model_folder import ModelFolder

LABELS = ("a", "b", "c")


def member(seed, head=ka.AlbertForSequenceClassification, **options):
    keras.utils.set_random_seed(seed)
    config = CONFIG.replace(
        **{"num_hidden_layers": 2, **options.pop("config", {})}
    )
    if head is not ka.AlbertForMultipleChoice:
        options.setdefault("num_labels", 3)
    return head(ka.AlbertBackbone(config), **options)


def close(found, expected, atol=1e-6):
    np.testing.assert_allclose(found, expected, atol=atol)


def both(ensemble, x):
    """The outputs of the ensemble, and of its members, as arrays."""
    return numpy(ensemble(x)), [numpy(each(x)) for each in ensemble.members]


@pytest.mark.parametrize(
    "head",
    [
        ka.AlbertForSequenceClassification,
        *marked("any_backend", ka.AlbertForTokenClassification),
    ],
)
def test_mean_of_probabilities(head):
    """The members may have different sizes."""
    other = {"hidden_size": 39, "num_hidden_layers": 3}
    ensemble = AlbertEnsemble([member(1, head), member(2, head, config=other)])
    found, each = both(ensemble, inputs())
    expected = np.mean([special.softmax(x, axis=-1) for x in each], axis=0)
    close(np.exp(found), expected)


def test_mean_of_several_labels_and_of_numbers():
    ensemble = AlbertEnsemble(
        [member(s, problem="multi_label") for s in (1, 2)]
    )
    found, each = both(ensemble, inputs())
    close(special.expit(found), np.mean(special.expit(each), axis=0))
    numbers = [member(s, problem="regression", num_labels=1) for s in (1, 2, 3)]
    found, each = both(AlbertEnsemble(numbers), inputs())
    close(found, np.mean(each, axis=0))
    choices = [member(s, ka.AlbertForMultipleChoice) for s in (1, 2)]
    x = {name: value[None] for name, value in inputs().items()}
    found, each = both(AlbertEnsemble(choices), x)
    close(found, np.mean(each, axis=0))


def test_mean_of_weights():
    """Of equal models it is that model; of others, the mean by hand."""
    models = [member(seed) for seed in (1, 2, 3)]
    expected = [
        np.mean(weights, axis=0)
        for weights in zip(*(m.get_weights() for m in models), strict=True)
    ]
    found = mean_weights(models)
    assert found is models[0]
    for weight, mean in zip(found.get_weights(), expected, strict=True):
        close(weight, mean)
    # What was left out in training does not matter.
    mean_weights([member(1), member(2, config={"hidden_dropout_prob": 0.1})])
    int8, adapted = member(1), member(1)
    int8.quantize("int8")
    adapted.backbone.enable_lora(2)
    for model, words in (
        (member(1, config={"hidden_size": 39}), "same architecture.*model 2"),
        (member(1, exits="own"), "same architecture.*model 2"),
        (int8, "quantized"),
        (adapted, "LoRA"),
    ):
        with pytest.raises(AlbertError, match=words):
            mean_weights([member(2), model])


def test_mean_of_weights_of_16_bits():
    """It is rounded once, and not with each model that is added."""
    models = []
    for seed in (1, 2, 3, 4, 5):
        keras.utils.set_random_seed(seed)
        backbone = ka.AlbertBackbone(CONFIG, dtype="bfloat16")
        models.append(
            ka.AlbertForSequenceClassification(backbone, 3, dtype="bfloat16")
        )
    means = [
        np.mean([numpy(ops.cast(each, "float32")) for each in weights], axis=0)
        for weights in zip(*(model.weights for model in models), strict=True)
    ]
    found = mean_weights(models)
    for weight, mean in zip(found.weights, means, strict=True):
        expected = numpy(ops.cast(ops.cast(mean, weight.dtype), "float32"))
        close(numpy(ops.cast(weight, "float32")), expected, atol=1e-7)


@pytest.mark.on_torch
def test_an_ensemble_is_not_trained():
    ensemble = AlbertEnsemble([member(1), member(2, exits="own")])
    ensemble.compile("sgd", "mse", run_eagerly=True, jit_compile=False)
    with pytest.raises(AlbertError, match="Train its members"):
        ensemble.fit(inputs(), np.zeros((3, 3), "float32"))
    one, other = member(1), member(2)
    with pytest.raises(AlbertError, match="must not share weights"):
        AlbertEnsemble(
            [one, ka.AlbertForSequenceClassification(one.backbone, 3)]
        )
    relaxed = AlbertEnsemble([other, member(1, config={"relaxed_rank": 2})])
    assert len(relaxed.leaves()) == len(other.leaves()) * 2
    relaxed.labels = LABELS
    assert relaxed.classes((3, 8))[None].names == LABELS


@pytest.mark.any_backend
def test_saved(tmp_path):
    """Also in int8, and with members of different sizes."""
    other = {"hidden_size": 39}
    ensemble = AlbertEnsemble([member(1), member(2, config=other)])
    for name in ("plain", "int8"):
        if name == "int8":
            ensemble.quantize("int8")
        ensemble.save(tmp_path / f"{name}.keras")
        loaded = ka.load_model(tmp_path / f"{name}.keras")
        np.testing.assert_array_equal(
            numpy(loaded(inputs())), numpy(ensemble(inputs()))
        )


@pytest.mark.on_torch
def test_members_of_half_precision_are_loaded_in_float32(tmp_path):
    alone = member(1)
    alone.save(tmp_path / "alone.keras")
    half = ka.load(tmp_path / "alone.keras", dtype="mixed_bfloat16")
    other = ka.load(tmp_path / "alone.keras", dtype="mixed_bfloat16")
    AlbertEnsemble([half, member(2)]).save(tmp_path / "mixed.keras")
    loaded = ka.load(tmp_path / "mixed.keras", dtype="mixed_bfloat16")
    policies = [each.backbone.dtype_policy.name for each in loaded.members]
    assert policies == ["mixed_bfloat16"] * 2
    AlbertEnsemble([half, other]).save(tmp_path / "two.keras")
    loaded = ka.load(tmp_path / "two.keras", dtype="float32")
    expected = special.log_softmax(numpy(alone(inputs())), axis=-1)
    close(numpy(loaded(inputs())), expected)


@pytest.mark.on_torch
def test_what_does_not_belong_together():
    one = member(1)
    for members, words in (
        ([one], "two or more"),
        ("ab", "two or more"),
        ([one, "b"], "a model of this package"),
        ([one.backbone, one.backbone], "Received: AlbertBackbone"),
        ([one, member(1, ka.AlbertForTokenClassification)], "the same class"),
        ([one, member(1, num_labels=2)], "number of labels. Received: 3 and"),
        ([one, member(1, labels=LABELS)], "the same labels"),
        ([one, member(1, problem="multi_label")], "the same problem"),
        ([one, member(1, config={"vocab_size": 98})], "vocab_size"),
        ([one, member(1, config={"type_vocab_size": 3})], "type_vocab_size"),
        (
            [one, member(1, config={"max_position_embeddings": 9})],
            "position_embeddings",
        ),
    ):
        with pytest.raises(AlbertError, match=words):
            AlbertEnsemble(members)


@pytest.mark.on_torch
def test_members_with_other_vocabularies(tokenizer):
    other = Tokenizer.from_bytes(tokenizer.model_bytes, lower_case=False)
    members = []
    for each in (None, tokenizer, None, other):
        config = {"vocab_size": tokenizer.vocab_size}
        members.append(member(1, config=config))
        members[-1].tokenizer = each
    with pytest.raises(AlbertError, match=r"model 4 has another.*lower_case"):
        AlbertEnsemble(members)


def test_texts_of_an_ensemble(tokenizer):
    """The vocabulary is that of any member."""
    config = {"vocab_size": tokenizer.vocab_size}
    members = [member(seed, config=config) for seed in (1, 2)]
    members[1].tokenizer = tokenizer
    together = AlbertEnsemble(members)
    ids = numpy(together.preprocess(["two hens"])["token_ids"])
    (expected,) = tokenizer(["two hens"])["token_ids"].tolist()
    assert ids[ids > 0].tolist() == expected
    assert together(["two hens"]).shape == (1, 3)


@pytest.mark.on_torch
def test_int8_members_are_found(tmp_path):
    """Also if the last member is not quantized."""
    members = [member(1), member(2)]
    members[0].quantize("int8")
    with pytest.raises(AlbertError, match="int8 in 0/"):
        check_not_quantized(AlbertEnsemble(members))


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    """Folders of three classifiers, and of the output of three seeds."""
    folder = tmp_path_factory.mktemp("seeds")
    config = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 40}
    for seed in range(3):
        model = member(seed, labels=LABELS, config=config)
        model.tokenizer = tokenizer
        ka.Predictor(model).save(folder / f"seed-{seed}")
    write_json(folder / "report.json", {"seeds": [0, 1, 2], "best_seed": 1})
    write_json(folder / "run.json", {})
    rows = [{"text": "the fox", "label": "a"}, {"text": "a barn", "label": "b"}]
    write_rows(folder / "rows.jsonl", rows)
    return folder


@pytest.mark.on_torch
def test_one_of_several_seeds_is_loaded(folders):
    with pytest.raises(AlbertError, match=r"the best is .*seed-1\."):
        ka.load(folders)


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_commands(folders, tmp_path):
    """A folder of several seeds is the ensemble of its models."""
    sources = [folders / f"seed-{seed}" for seed in range(3)]
    texts, data = ["the fox", "a barn"], folders / "rows.jsonl"
    each = [ka.Predictor.load(s).probabilities(texts) for s in sources]
    ensemble = ka.Predictor.load(folders)
    expected = np.mean(each, axis=0)
    close(ensemble.probabilities(texts), expected)
    two = ka.Predictor.load(sources[:2])
    close(two.probabilities(texts), np.mean(each[:2], axis=0))
    soup = ka.Predictor.load(folders, average="weights")
    assert isinstance(soup.model, ka.AlbertForSequenceClassification)
    for models, average, wanted in (
        (sources, "predictions", expected),
        ([folders], "weights", soup.probabilities(texts)),
    ):
        told = {"data": data, "average": average}
        rows = rows_of(run("predict", "--model", *models, **told))
        close([row["score"] for row in rows], wanted.max(-1), atol=1e-5)
    ensemble.save(tmp_path / "saved")
    again = ka.Predictor.load(tmp_path / "saved")
    close(again.probabilities(texts), expected)
    right = np.mean(expected.argmax(-1) == [0, 1])
    said = run("evaluate", model=folders, data=data)
    assert f"accuracy {right:.3f}" in said
    # A list may name the output of several seeds, too.
    run("evaluate", "--model", folders, sources[0], data=data)
    said = run("evaluate", model=folders, data=data, average="weights")
    assert f"accuracy {soup.evaluate(data)['accuracy']:.3f}" in said


def check_logits(exported, source, **options):
    """The logits of an export are those of the model."""
    ids = np.array([[2, 9, 11, 3]], "int32")
    found = load_exported(exported).model.run(ids)["logits"]
    model = ka.Predictor.load(source, **options).model
    expected = model.predict_on_batch({"token_ids": ids})
    close(found, expected, atol=1e-5)


@pytest.mark.any_backend
@pytest.mark.usefixtures("eagerly")
def test_exported(folders, tmp_path, few_signatures):
    """One SavedModel has both members, and `check` knows them."""
    few_signatures("serving_default", "token_ids")  # which are compared
    served = tmp_path / "served"
    members = [folders / f"seed-{seed}" for seed in range(2)]
    run("export", "--model", *members, output=served)
    check_logits(served, members)
    data = {"export": served, "data": folders / "rows.jsonl"}
    run("check", "--model", *members, **data)


@pytest.mark.any_backend
@pytest.mark.proof
@pytest.mark.usefixtures("eagerly")
def test_exported_to_litert(folders, tmp_path):
    members = [folders / f"seed-{seed}" for seed in range(2)]
    light = ka.export(members, tmp_path / "light", format="litert")
    check_logits(light, members)


@pytest.mark.on_torch
def test_mean_of_the_weights_is_exported(folders, tmp_path, capsys):
    """It is a model like any other; ONNX has no ensembles."""
    output, mean = tmp_path / "onnx", "--average=weights"
    told = {"model": folders, "output": output, "format": "onnx"}
    assert "Received: AlbertEnsemble." in refused(capsys, "export", **told)
    run("export", mean, **told)
    check_logits(output, folders, average="weights")
    run("check", output, folders, folders / "rows.jsonl", mean)


@pytest.mark.on_torch
def test_models_of_two_tasks(folders, tmp_path):
    loaded = ModelFolder.load(folders / "seed-0")
    task = {**loaded.task, "labels": ["x", "y", "z"]}
    (tmp_path / "other").mkdir()
    dataclasses.replace(loaded, task=task).save(tmp_path / "other")
    with pytest.raises(AlbertError, match=r"same labels.*'a'.*'x'.*/other"):
        ka.Predictor.load([folders / "seed-0", tmp_path / "other"])
    # What lies beside a model does not make it an output of seeds.
    (tmp_path / "other" / "report.json").write_text('{"seeds": 3}')
    assert ka.Predictor.load(tmp_path / "other").labels == ("x", "y", "z")
    with pytest.raises(AlbertError, match="`average` is for several models"):
        ka.Predictor.load(tmp_path / "other", average="weights")
    both = ka.Predictor.load(folders)
    both.save(tmp_path / "both")
    with pytest.raises(AlbertError, match="an encoder for each of its 3"):
        ka.load(tmp_path / "both", backbone=True)
    for saved in (folders, tmp_path / "both"):
        with pytest.raises(AlbertError, match=r"cannot be averaged.*3 models"):
            ka.Predictor.load(saved, task="embedding")
    with pytest.raises(AlbertError, match=r"an ensemble of 3 models"):
        ka.save_sentence_transformers(both.model, tmp_path / "theirs")
    with pytest.raises(AlbertError, match="one or more models"):
        ka.Predictor.load([])
    with pytest.raises(AlbertError, match="`average` must be"):
        ka.Predictor.load(folders, average="logits")
