"""Names and shapes of the original's checkpoints, with random values.

Written here with TF1's own saver, so that every weight is known.
"""

import shutil

import numpy as np
import pytest
from commands import edit_json, read_json
from small import EXCHANGED

import keras_albert as ka
from keras_albert.checkpoints.load import head_name
from keras_albert.checkpoints.names import name_table
from keras_albert.checkpoints.transfer import weights_of

# Checkpoints are read as NumPy arrays; test_tf1_golden.py runs on all backends.
pytestmark = pytest.mark.on_torch
HIDDEN = EXCHANGED.hidden_size
RELEASED = "model.ckpt-best"


def write_tf1(prefix, tensors):
    """The checkpoint that tf.train.Saver writes of these variables."""
    import tensorflow as tf

    prefix.parent.mkdir(parents=True, exist_ok=True)
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(prefix) + "-part",
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(tensors[name]) for name in names],
    )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(prefix) + "-part"],
        destination_prefix=str(prefix),
        delete_old_dirs=False,
    )


def shapes(config, heads=()):
    """TF1 name -> shape: the encoder's, from the table, and `heads`."""
    model = ka.AlbertForPretraining(ka.AlbertBackbone(config))
    ours = {name: v.shape for name, v in weights_of(model).items()}
    found = {
        row.tf1: row.shape_there(ours[row.ours], "tf1", 1)
        for row in name_table(config)
        if row.ours in ours and not row.tf1.startswith("cls/")
    }
    return {**found, **dict(heads)}


def filled(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=shape).astype("float32")
        for name, shape in shapes.items()
    }


MASKED_LM = {
    "cls/predictions/transform/dense/kernel": (HIDDEN, 13),
    "cls/predictions/transform/dense/bias": (13,),
    "cls/predictions/transform/LayerNorm/gamma": (13,),
    "cls/predictions/transform/LayerNorm/beta": (13,),
    "cls/predictions/output_bias": (61,),
}
SENTENCE_ORDER = {
    "cls/seq_relationship/output_weights": (2, HIDDEN),
    "cls/seq_relationship/output_bias": (2,),
}
CLASSIFIER = {"output_weights": (5, HIDDEN), "output_bias": (5,)}
SQUAD_V1 = {
    "cls/squad/output_weights": (2, HIDDEN),
    "cls/squad/output_bias": (2,),
}
SQUAD_V2 = {
    "start_logits/dense/kernel": (HIDDEN, 1),
    "start_logits/dense/bias": (1,),
    "end_logits/dense_0/kernel": (2 * HIDDEN, HIDDEN),
    "end_logits/dense_0/bias": (HIDDEN,),
    "end_logits/LayerNorm/gamma": (HIDDEN,),
    "end_logits/LayerNorm/beta": (HIDDEN,),
    "end_logits/dense_1/kernel": (HIDDEN, 1),
    "end_logits/dense_1/bias": (1,),
    "answer_class/dense_0/kernel": (2 * HIDDEN, HIDDEN),
    "answer_class/dense_0/bias": (HIDDEN,),
    "answer_class/dense_1/kernel": (HIDDEN, 1),
}


def assert_holds(model, tensors):
    """Every weight of the model is the checkpoint's; returns what is used."""
    ours = weights_of(model)
    rows = [row for row in name_table(model.config) if row.ours in ours]
    assert {row.ours for row in rows} == ours.keys()
    for row in rows:
        theirs = tensors[row.tf1]
        # The original's heads alone are [out, in].
        if row.tf1.endswith("output_weights"):
            theirs = theirs.T
        assert np.array_equal(ours[row.ours], theirs), row
    return {row.tf1 for row in rows}


@pytest.mark.parametrize(
    ("layout", "model_class"),
    [
        ("google_albert_base_zh", ka.AlbertForPretraining),
        ("tfhub_albert_base_3", ka.AlbertForMaskedLM),
    ],
)
def test_released_layouts(data_folder, tmp_path, layout, model_class):
    folder = data_folder / "golden" / "checkpoint_layouts"
    rows = read_json(folder / f"{layout}.json")
    tensors = filled({row["name"]: row["shape"] for row in rows})
    if "global_step" in tensors:
        tensors["global_step"] = np.int64(125000)
    write_tf1(tmp_path / RELEASED, tensors)
    config = folder / f"{layout}.albert_config.json"
    shutil.copy(config, tmp_path / "albert_config.json")
    model = ka.load(tmp_path)
    assert type(model) is model_class
    used = assert_holds(model, tensors)
    assert used == tensors.keys() - {"global_step"}
    assert model.tokenizer is None  # the Chinese one is no SentencePiece


FINETUNED = {
    "classifier": "classification",
    "squad_v1": "question answering",
    "squad_v2": "question answering",
}
HEADS = {
    "encoder": ({}, ka.AlbertBackbone),
    "masked_lm": (MASKED_LM, ka.AlbertForMaskedLM),
    "pretraining": ({**MASKED_LM, **SENTENCE_ORDER}, ka.AlbertForPretraining),
    "classifier": (CLASSIFIER, ka.AlbertForSequenceClassification),
    "squad_v1": (SQUAD_V1, ka.AlbertForQuestionAnswering),
    "squad_v2": (SQUAD_V2, ka.AlbertForQuestionAnsweringV2),
}


def checkpoint(folder, config, heads=(), prefix=RELEASED, scope=""):
    tensors = filled(shapes(config, heads))
    slots = "adam_m", "adam_v", "adam_m_1", "AdamWeightDecayOptimizer"
    moments = [f"{name}/{slot}" for name in tensors for slot in slots]
    optimizer = dict.fromkeys(moments, np.float32(1))
    written = {**tensors, **optimizer, "global_step": np.int64(7)}
    write_tf1(folder / prefix, {scope + name: v for name, v in written.items()})
    config.to_json(folder / "albert_config.json")
    return tensors


@pytest.mark.parametrize("name", HEADS)
def test_heads_tell_the_model(tmp_path, name):
    heads, model_class = HEADS[name]
    tensors = checkpoint(tmp_path, EXCHANGED, heads)
    model = ka.load(tmp_path)
    assert type(model) is model_class
    assert head_name(tmp_path) == FINETUNED.get(name)
    assert assert_holds(model, tensors) == tensors.keys()
    if name in ("pretraining", "squad_v2"):
        encoder = ka.load(tmp_path, backbone=True)
        assert isinstance(encoder, ka.AlbertBackbone)
        assert_holds(encoder, tensors)


@pytest.mark.parametrize(
    "size", ["num_hidden_groups=2", "inner_group_num=2", "embedding_size=21"]
)
def test_architectures(tmp_path, size):
    name, value = size.split("=")
    config = EXCHANGED.replace(**{name: int(value)})
    tensors = checkpoint(tmp_path, config)
    groups = {name.split("/inner")[0] for name in tensors if "group_" in name}
    assert len(groups) == config.num_hidden_groups
    hidden_mapping = "bert/encoder/embedding_hidden_mapping_in/kernel"
    # TF1 has no projection of equal sizes.
    assert (hidden_mapping in tensors) == (name != "embedding_size")
    assert assert_holds(ka.load(tmp_path), tensors) == tensors.keys()


@pytest.mark.parametrize("sharing", ["attention", "ffn", "none"])
def test_own_halves_from_a_group_a_layer(tmp_path, sharing):
    """A shared half reads all of its copies, which must agree."""
    config = EXCHANGED.replace(sharing=sharing)
    flat = config.replace(sharing="all", num_hidden_groups=4)
    tensors = filled(shapes(flat))
    shared = {"attention": ("attention_1", "LayerNorm/"), "none": ()}.get(
        sharing, ("ffn_1", "LayerNorm_1/")
    )
    for name in tensors:
        place = name.split("inner_group_0/")[-1]
        if "transformer" in name and place.startswith(shared):
            tensors[name] = tensors[
                f"bert/encoder/transformer/group_0/inner_group_0/{place}"
            ]
    write_tf1(tmp_path / RELEASED, tensors)
    model = ka.AlbertBackbone(config)
    ka.load_tf1(model, tmp_path / RELEASED)
    assert assert_holds(model, tensors) == tensors.keys()
    if shared:
        name = f"bert/encoder/transformer/group_3/inner_group_0/{shared[1]}beta"
        write_tf1(tmp_path / "b", {**tensors, name: tensors[name] + 1})
        message = f"{name}: differs from another"
        with pytest.raises(ka.AlbertError, match=message):
            ka.load_tf1(model, tmp_path / "b")


@pytest.mark.parametrize(
    ("scope", "place"),
    [("", "top"), ("module/", "assets"), ("module/", "variables")],
)
def test_tf_hub_module(tmp_path, scope, place, tiny_vocab):
    config = EXCHANGED.replace(vocab_size=160)
    folder = tmp_path / "variables"
    tensors = checkpoint(folder, config, {}, "variables", scope)
    (tmp_path / "assets").mkdir()
    shutil.copy(
        tiny_vocab / "spiece.model", tmp_path / "assets" / "30k-clean.model"
    )
    if place != "variables":
        target = tmp_path if place == "top" else tmp_path / "assets"
        shutil.move(folder / "albert_config.json", target)
    for source in (tmp_path, folder / "variables"):
        model = ka.load(source)
        assert assert_holds(model, tensors) == tensors.keys()
        assert model.tokenizer.vocab_size == 160


def test_any_prefix(tmp_path):
    tensors = checkpoint(tmp_path, EXCHANGED, {}, "model.ckpt-9")
    for name in ("", "model.ckpt-9", "model.ckpt-9.index"):
        assert_holds(ka.load(tmp_path / name), tensors)
    other = filled(shapes(EXCHANGED), seed=1)
    write_tf1(tmp_path / "model.ckpt-10", other)
    with pytest.raises(ka.AlbertError, match=r"ckpt-10.*model\.ckpt-9"):
        ka.load(tmp_path)
    assert_holds(ka.load(tmp_path / "model.ckpt-10"), other)
    # The released one is the one that is meant.
    best = filled(shapes(EXCHANGED), seed=2)
    write_tf1(tmp_path / RELEASED, best)
    assert_holds(ka.load(tmp_path), best)


def test_one_output_is_not_guessed(tmp_path):
    head = {"output_weights": (1, HIDDEN), "output_bias": (1,)}
    tensors = checkpoint(tmp_path, EXCHANGED, head)
    with pytest.raises(ka.AlbertError, match=r"regression.*multiple choice"):
        ka.load(tmp_path)
    model = ka.AlbertForMultipleChoice(ka.AlbertBackbone(EXCHANGED))
    ka.load_tf1(model, tmp_path / RELEASED)
    assert assert_holds(model, tensors) == tensors.keys()
    assert_holds(ka.load(tmp_path, backbone=True), tensors)


def test_another_architecture(tmp_path):
    """Names and shapes of brightmart/albert_zh, whose projection differs."""
    tensors = shapes(EXCHANGED)
    size = EXCHANGED.embedding_size, EXCHANGED.hidden_size
    write_tf1(
        tmp_path / RELEASED,
        filled({**tensors, "bert/embeddings/word_embeddings_2": size}),
    )
    EXCHANGED.to_json(tmp_path / "albert_config.json")
    with pytest.raises(ka.AlbertError, match=r"albert_zh.*another archi"):
        ka.load(tmp_path)


def test_what_does_not_fit_is_listed(tmp_path):
    tensors = filled(shapes(EXCHANGED, MASKED_LM))
    del tensors["bert/pooler/dense/bias"]
    tensors["bert/embeddings/LayerNorm/beta"] = np.zeros(17, "float32")
    tensors["bert/extra"] = np.zeros(3, "float32")
    write_tf1(tmp_path / RELEASED, tensors)
    model = ka.AlbertBackbone(EXCHANGED)
    before = weights_of(model)
    with pytest.raises(ka.AlbertError) as caught:
        ka.load_tf1(model, tmp_path / RELEASED)
    message = str(caught.value)
    assert "bert/pooler/dense/bias: missing" in message
    assert r"LayerNorm/beta: expected (13,), found (17,)" in message
    assert "bert/extra: in the checkpoint, not in the model" in message
    assert "cls/predictions" not in message  # a head, left aside
    for name, value in weights_of(model).items():
        assert np.array_equal(value, before[name])


def test_config_is_needed(tmp_path):
    write_tf1(tmp_path / RELEASED, filled(shapes(EXCHANGED)))
    with pytest.raises(ka.AlbertError, match=r"config\.json: no such.*to_"):
        ka.load(tmp_path)
    EXCHANGED.to_json(tmp_path / "albert_config_tiny_g.json")
    message = r"rename.* to albert_config\.json\. Found: albert_config_tiny_g"
    with pytest.raises(ka.AlbertError, match=message):
        ka.load(tmp_path)


def test_groups_that_the_reference_computes_otherwise(tmp_path):
    """int(15 / 22 * 22) is 14 there."""
    config = EXCHANGED.replace(num_hidden_layers=22, num_hidden_groups=22)
    checkpoint(tmp_path, config)
    with pytest.raises(ka.AlbertError, match=r"layer 15 .* 15 here, in 14"):
        ka.load(tmp_path)


@pytest.mark.parametrize("name", ["vocab_size", "num_hidden_layers"])
def test_huge_sizes_beside_a_checkpoint(tmp_path, name):
    """They are held against the weights before a model is built."""
    checkpoint(tmp_path, EXCHANGED)
    edit_json(tmp_path / "albert_config.json", **{name: 10**9})
    with pytest.raises(ka.AlbertError, match=rf"json: .*{name}=10{{9}}"):
        ka.load(tmp_path)


def test_checkpoints_of_tensorflow_2(tmp_path):
    import tensorflow as tf

    tf.train.Checkpoint(a=tf.Variable(1.0)).write(str(tmp_path / "variables"))
    with pytest.raises(ka.AlbertError, match="a checkpoint of TensorFlow 2"):
        ka.load(tmp_path / "variables.index")
