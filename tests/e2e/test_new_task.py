"""Defines a task, with what a new task needs and nothing else.

It is registered in the registry, and by its name in `OWN_TASKS` of the table of
names; no other file of the package knows it.
"""

import dataclasses

import keras
import numpy as np
import pytest
from commands import write_rows
from scipy import special

import keras_albert as ka
from keras_albert.data.batches import Features
from keras_albert.data.tables import Field, read_label, read_text
from keras_albert.finetuning import config
from keras_albert.finetuning.evaluate import evaluate
from keras_albert.finetuning.run import finetune
from keras_albert.tasks.metrics import measure
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.serving import Serving
from keras_albert.tasks.task import LearnedTask
from keras_albert.text.model_inputs import text_rows
from keras_albert.training.losses import WeightedMean

# Only its training depends on the backend: `make proof` tries the others.
pytestmark = (
    [] if keras.backend.backend() == "tensorflow" else [pytest.mark.proof]
)

ANIMALS, PLACES = ("fox", "dog", "hens"), ("village", "barn", "London")


class ProbabilityServing(Serving):
    def signatures(self, graph):
        def probabilities(text):
            logits = graph.rows(graph.packed(text))["logits"]
            return {"probabilities": keras.ops.sigmoid(logits[:, 0])}

        return {"serving_default": probabilities}

    def answer(self, outputs, given):
        return None, outputs["probabilities"]


class YesOrNo(LearnedTask):
    """Says whether something holds for a text; its head has one logit."""

    heads = {"multi_label": ka.AlbertForSequenceClassification}
    serving = ProbabilityServing()
    adds = frozenset({"prediction"})
    best = "accuracy"

    def inputs(self, columns):
        return {"text": Field(columns.text, read_text)}

    def label_reader(self, names):
        return read_label

    def features(self, tokenizer, table, names, length):
        target = None
        if "label" in table.values:
            is_yes = [label == "yes" for label in table.values["label"]]
            target = np.array(is_yes, "float32")[:, None]
        texts = table.values["text"]
        return Features(text_rows(tokenizer, texts, None, length), target)

    def head(self, backbone, names, options):
        return ka.AlbertForSequenceClassification(
            backbone, 1, problem="multi_label", dropout=options.dropout
        )

    def loss(self, names):
        return WeightedMean(
            keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
        )

    def scores(self, outputs, features, names):
        found = np.stack(outputs)[:, 0] > 0
        return measure(["accuracy"], features.target[:, 0], found)

    def decode(self, outputs, features, names):
        probabilities = special.expit(np.stack(outputs)[:, 0])
        return [{"prediction": round(float(p), 6)} for p in probabilities]


@pytest.mark.usefixtures("eagerly")
def test_a_task_in_a_few_lines(
    tmp_path, pretrained_folder, monkeypatch, capsys
):
    """A model is fine-tuned, saved, loaded, evaluated, asked and served."""
    monkeypatch.setitem(ALL_TASKS, "animals", YesOrNo("animals"))
    # A name in `OWN_TASKS` is also one of these, and in no table of options.
    names = (*config.FINETUNE_TASKS, "animals")
    monkeypatch.setattr(config, "FINETUNE_TASKS", names)
    rows = [{"text": f"the {word}", "label": "yes"} for word in ANIMALS]
    rows += [{"text": f"the {word}", "label": "no"} for word in PLACES]
    table = write_rows(tmp_path / "rows.jsonl", rows * 10)
    run = config.FinetuneRun(
        model=str(pretrained_folder),
        task="animals",
        train=table,
        validation=table,
        output=tmp_path / "model",
        batch_size=8,
        steps=2,
    )
    given = {"exits": "own", "teacher": "a", "calibrate": True}
    given |= {"tune_threshold": True, "any_size": True}
    for option, value in given.items():
        with pytest.raises(ka.AlbertError, match=f"`{option}` is for .*Leave"):
            dataclasses.replace(run, **{option: value})
    report = finetune(run)
    accuracy = report["accuracy"]
    line = f"held-out accuracy {accuracy:.3f} (60 examples)"
    assert line in capsys.readouterr().out
    card = (tmp_path / "model" / "README.md").read_text()
    assert card.startswith("# ALBERT for animals")
    assert 'predict(["a text"])' in card
    predictor = ka.Predictor.load(tmp_path / "model")
    assert predictor.task == "animals" and predictor.labels is None
    found = predictor.predict(["the hens", "the barn"])
    assert 0 < found[0] < 1 and found[0] != found[1]
    again = evaluate(config.EvaluateRun(str(tmp_path / "model"), table))
    assert again["accuracy"] == accuracy
    # Other tasks know nothing of it; a head alone is for the first that fits.
    assert ka.Predictor(predictor.model).task == "multilabel"
    with pytest.raises(ka.AlbertError, match=r"expected one of .*animals"):
        ka.Predictor(predictor.model, task="tokens")
    if keras.backend.backend() != "tensorflow":
        return  # other backends are served by a process with TensorFlow
    serving = pytest.importorskip("keras_albert.exports.saved_model.signatures")
    _, signatures = serving.serving_module(predictor, only={"serving_default"})
    texts = keras.ops.convert_to_tensor(["the hens", "the barn"])
    served = signatures["serving_default"](text=texts)["probabilities"]
    np.testing.assert_allclose(served, found, atol=1e-5)
