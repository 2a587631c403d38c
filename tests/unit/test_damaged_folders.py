"""Damaged and forged model folders: one clear line, before any answer.

Which task.json is refused is a table; that a refusal reaches the commands, and
that sizes are checked before anything is built, is tried on real folders.
"""

import dataclasses
import json
import shutil
import zipfile

import keras
import numpy as np
import pytest
from commands import refused
from hypothesis import given, strategies as st
from small import EXCHANGED, TEXT_CONFIG

import keras_albert as ka
from keras_albert.tasks.classification import REGRESSION, SINGLE_LABEL
from keras_albert.tasks.fill_mask import PRETRAINED
from keras_albert.tasks.labels import Head
from keras_albert.tasks.multiple_choice import CHOICE
from keras_albert.tasks.names import READING_TASKS
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    ReadingConfig,
    WindowConfig,
)
from keras_albert.tasks.question_answering.task import ANSWER, ANSWER_OR_NONE
from keras_albert.tasks.task_file import check_task
from keras_albert.tasks.token_classification import TOKENS
from keras_albert.training.model_folder import ModelFolder

pytestmark = pytest.mark.on_torch

TASK = {
    "task": "classification",
    "labels": ["no", "yes"],
    "lengths": [16, 32],
    "columns": dataclasses.asdict(ka.TableColumns()),
}
READING = {
    **TASK,
    "task": "qa",
    "labels": None,
    "reading": dataclasses.asdict(
        ReadingConfig(WindowConfig(32, 8, 8), AnswerConfig())
    ),
}
HEAD = Head(SINGLE_LABEL, 40, outputs=2, labels=("no", "yes"))
ANSWERS = ["answer", "no answer"]
PRETRAINING = {"task": "pretraining", "examples": {"sequence_length": 32}}


def reading(**changes):
    return {**READING, "reading": {**READING["reading"], **changes}}


GOOD = [
    (TASK, HEAD),
    (TASK, dataclasses.replace(HEAD, labels=None)),
    ({**TASK, "task": "RTE"}, HEAD),
    ({**TASK, "threshold": [0.3], "long_texts": "max"}, HEAD),
    ({**TASK, "columns": {"text": "words"}}, HEAD),
    ({**TASK, "task": "tokens"}, dataclasses.replace(HEAD, predicts=TOKENS)),
    ({**TASK, "task": "STS-B", "labels": None}, Head(REGRESSION, 40, 1)),
    ({**TASK, "task": "RACE", "labels": None}, Head(CHOICE, 40)),
    (READING, Head(ANSWER, 40)),
    ({**READING, "labels": ANSWERS}, Head(ANSWER_OR_NONE, 40)),
    (PRETRAINING, Head(PRETRAINED, 40)),
    ({"task": "weights"}, Head(None, 40)),
    (TASK, None),
]
BAD = [
    # Of the wrong kind, or nothing.
    ([], r"expected an object.*\[\]"),
    ({}, "`task` must be the name.*None"),
    ({**TASK, "task": "translation"}, "`task` must be one of.*translation"),
    ({"task": "classification"}, "`labels` is missing"),
    # Labels.
    ({**TASK, "labels": None}, "`labels` must be the names.*null"),
    ({**TASK, "labels": ["no", 1]}, "`labels` must be a list of names"),
    ({**TASK, "labels": ["no", "no"]}, "different names.*'no' more than once"),
    ({**TASK, "labels": ["yes", "no"]}, "those of the model, .'no', 'yes'"),
    ({**TASK, "labels": ["a", "b", "c"]}, "must have 2 names.*Received 3"),
    ({**TASK, "task": "regression"}, "`labels` must be null"),
    ({**READING, "labels": ["a", "b"]}, "must be .*no answer.* or null"),
    # Lengths.
    ({**TASK, "lengths": []}, "`lengths` must be a list of ascending"),
    ({**TASK, "lengths": [32, 16]}, "`lengths` must be.*32, 16"),
    ({**TASK, "lengths": [16.0]}, "`lengths` must be"),
    ({**TASK, "lengths": [2]}, "`lengths` must be.*3 or more"),
    ({**TASK, "lengths": [16, 41]}, "exceed the model's 40 positions"),
    # Columns.
    ({**TASK, "columns": ["text"]}, "`columns` must be an object"),
    ({**TASK, "columns": {"texts": "a"}}, "`columns` has an unknown .*`texts`"),
    ({**TASK, "columns": {"text": None}}, "`columns.text` must be the name"),
    # How contexts are read.
    ({**TASK, "task": "qa", "labels": None}, "`reading` is missing"),
    ({**READING, "reading": {}}, "`reading` has no setting `windows`"),
    (reading(windows={"sequence_length": 0}), "`reading.windows`: .*positive"),
    (reading(answers={"best": 3}), "`reading.answers` has an unknown"),
    (reading(threshold="high"), "`threshold` for questions must be a number"),
    ({**READING, "lengths": [16]}, "must not exceed the longest of.*16"),
    # What decides.
    ({**TASK, "threshold": [0.5, 0.5]}, "`threshold` must be 1 number"),
    ({**TASK, "threshold": [2]}, "`threshold` must be a probability above 0"),
    ({**TASK, "long_texts": "windows"}, "`long_texts` must be one of 'cut'"),
    ({**READING, "threshold": [0.5]}, "`threshold` is for .*task='qa'. Leave"),
    # Pretraining.
    ({"task": "pretraining", "examples": 3}, "`examples` must be an object"),
    ({**PRETRAINING, "examples": {"masked_lm_prob": "x"}}, "`examples`: `ma"),
    # The model predicts something else.
    ({**TASK, "task": "tokens"}, "`task` is 'tokens'.*single_label"),
    (PRETRAINING, "`task` is 'pretraining'.*masked words"),
]


def test_what_commands_write_is_taken():
    for task, head in GOOD:
        check_task(task, head)
    # But not by a model that cannot leave answers out, or has to.
    with pytest.raises(ka.AlbertError, match="must be null: the model pre"):
        check_task({**READING, "labels": ANSWERS}, Head(ANSWER, 40))
    with pytest.raises(ka.AlbertError, match=r"no answer.*or none"):
        check_task(READING, Head(ANSWER_OR_NONE, 40))


@pytest.mark.parametrize(("task", "message"), BAD)
def test_what_commands_do_not_write_is_refused(task, message):
    with pytest.raises(ka.AlbertError, match=message):
        check_task(task, HEAD)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(
    st.sampled_from([TASK, READING, PRETRAINING]),
    st.lists(st.sampled_from([*READING, "examples"]), max_size=2),
    JSON,
)
def test_any_value_anywhere(task, keys, value):
    """Settings that are taken can be read; others are AlbertErrors."""
    forged = {**task, **dict.fromkeys(keys, value)} if keys else value
    try:
        check_task(forged)
    except ka.AlbertError:
        return
    if "labels" in forged and forged["task"] not in ("pretraining", "weights"):
        ka.TableColumns(**forged["columns"])
        assert max(forged["lengths"]) > 0
        if forged["task"] in READING_TASKS:
            ReadingConfig.from_dict(forged["reading"])


# Folders.


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """A classifier of two labels, as `finetune` would write it."""
    keras.utils.set_random_seed(0)
    encoder = ka.AlbertBackbone(TEXT_CONFIG)
    model = ka.AlbertForSequenceClassification(encoder, 2, labels=HEAD.labels)
    path = tmp_path_factory.mktemp("classifier")
    ModelFolder(model, tokenizer, TASK).save(path)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.mark.parametrize(
    "target",
    ["onnx", pytest.param("saved_model", marks=pytest.mark.proof)],  # a worker
)
def test_a_forged_task_reaches_the_user(copy, capsys, target):
    (copy / "task.json").write_text(json.dumps({**TASK, "labels": ["a", "b"]}))
    (copy / "data.tsv").write_text("text\tlabel\nThe fox.\ta\n")
    for command, told in (
        ("predict", {"data": copy / "data.tsv"}),
        ("evaluate", {"data": copy / "data.tsv"}),
        ("export", {"output": copy / "out", "format": target}),
    ):
        error = refused(capsys, command, model=copy, **told)
        assert "task.json: not what" in error and "'no', 'yes'" in error
    assert not (copy / "out").exists()


def test_a_weight_that_is_not_finite(folder, copy):
    model = ModelFolder.load(folder).model
    kernel = model.classifier.kernel
    values = keras.ops.convert_to_numpy(kernel).copy()
    values[0, 1], values[2, 0] = np.nan, -np.inf
    kernel.assign(values)
    model.save(copy / "model.keras")
    with pytest.raises(ka.AlbertError, match=r"classifier/kernel .*\(2 of 52 "):
        ka.Predictor.load(copy)
    ka.save_huggingface(model, copy / "theirs")
    with pytest.raises(ka.AlbertError, match=r"classifier\.weight: not finite"):
        ka.load(copy / "theirs")


def test_a_config_of_another_model(copy):
    path = copy / "albert_config.json"
    TEXT_CONFIG.replace(num_hidden_layers=2).to_json(path)
    message = r"albert_config\.json.*num_hidden_layers=2 instead of 1"
    with pytest.raises(ka.AlbertError, match=message):
        ka.load(copy)


def rewrite(path, change):
    """Changes the files of an archive, a dict of their contents by names."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def check_forged(path, change, message):
    """A .keras file is refused once its config has been changed."""

    def changed(files):
        content = json.loads(files["config.json"])
        change(content["config"])
        files["config.json"] = json.dumps(content).encode()

    rewrite(path, changed)
    with pytest.raises(ka.AlbertError, match=message):
        ka.load_model(path)


HUGE = 10**9


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_hidden_layers": HUGE},
        {"vocab_size": HUGE},
        {"vocab_size": HUGE, "trainable": True},  # as if it were a layer
        {"hidden_size": 13 * 10**6},
        {"max_position_embeddings": HUGE},
        {"relaxed_rank": HUGE},
        dict(num_hidden_layers=9999, sharing="none", intermediate_size=500),
    ],
    ids=str,
)
def test_huge_sizes_of_an_encoder(copy, sizes):
    """No model is built: that would take the memory of the machine."""
    check_forged(
        copy / "model.keras",
        lambda config: config["backbone"]["config"]["config"].update(sizes),
        r"model\.keras: .*(sizes|layers|fields of an ALBERT config)",
    )


@keras.saving.register_keras_serializable("tests")
class Sized(keras.layers.Layer):
    """A layer of the user whose arguments are named like our sizes."""

    def __init__(self, vocab_size=3, embedding_size=2, hidden_size=1, **kwargs):
        super().__init__(**kwargs)
        self.sizes = vocab_size, embedding_size, hidden_size

    def call(self, x):
        return x * 2

    def get_config(self):
        names = ("vocab_size", "embedding_size", "hidden_size")
        sizes = dict(zip(names, self.sizes, strict=True))
        return {**super().get_config(), **sizes}


def test_a_layer_of_the_user_has_sizes_too(tmp_path):
    model = keras.Sequential([keras.Input((2,)), Sized(vocab_size=HUGE)])
    model.save(tmp_path / "own.keras")
    found = ka.load_model(tmp_path / "own.keras")
    np.testing.assert_array_equal(found.predict(np.ones((1, 2))), [[2, 2]])


def test_huge_heads_and_adapters(copy):
    path = copy / "model.keras"
    message = "do not belong.*1000000000 out"
    check_forged(path, lambda config: config.update(num_labels=HUGE), message)
    check_forged(path, lambda config: config.update(projection=HUGE), message)

    def many_exits(config):
        """Each layer has a classifier, and each seems to have few weights."""
        encoder = config["backbone"]["config"]["config"]
        sizes = {"num_hidden_layers": 10_000, "sharing": "all"}
        encoder.update(sizes, num_hidden_groups=1)
        config.update(num_labels=HUGE // 10_000, exits="own", projection=None)

    check_forged(path, many_exits, "do not belong.*1000000000 out")
    lora = {"rank": HUGE, "alpha": HUGE, "targets": ["query"]}

    def adapt(config):
        config.update(num_labels=2, exits=None)
        config["backbone"]["config"]["config"].update(num_hidden_layers=1)
        config["backbone"]["config"].update(lora=lora)

    check_forged(path, adapt, "adapters of rank 1000000000")


@pytest.mark.parametrize("name", ["config.json", "model.weights.h5"])
def test_archives_without_a_part(copy, name):
    path = copy / "model.keras"
    rewrite(path, lambda files: files.pop(name))
    with pytest.raises(ka.AlbertError, match="damaged, or not a model"):
        ka.load_model(path)


def test_huge_sizes_of_transformers(tmp_path):
    ka.save_huggingface(ka.AlbertBackbone(EXCHANGED), tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    content = json.loads(path.read_text())
    for sizes in (
        {"vocab_size": HUGE},
        {"num_hidden_layers": HUGE},
        {"num_labels": HUGE, "architectures": ["AlbertForTokenClassification"]},
    ):
        path.write_text(json.dumps({**content, **sizes}))
        message = r"config\.json: .*(sizes|layers)"
        with pytest.raises(ka.AlbertError, match=message):
            ka.load(tmp_path / "theirs")
