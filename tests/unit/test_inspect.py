"""The distances that layers move the vectors of tokens."""

import numpy as np
import pytest
from commands import refused, run
from small import CONFIG, add_noise, numpy

import keras_albert as ka
from keras_albert.finetuning.inspect import _distances

pytestmark = pytest.mark.on_torch

TEXTS = ["the fox", "hens sleep in the barn all night", "a fox " * 4]


@pytest.fixture(scope="module")
def model(tokenizer):
    config = CONFIG.replace(vocab_size=tokenizer.vocab_size)
    backbone = ka.AlbertBackbone(config, tokenizer=tokenizer)
    return add_noise(ka.AlbertForSequenceClassification(backbone, 2))


def test_distances_by_hand():
    x = np.array([[3.0, 4.0], [1.0, 0.0]])
    y = np.array([[3.0, -4.0], [0.0, 2.0]])
    distance, degrees = _distances(x, y)
    assert distance == pytest.approx(8 + 5**0.5)
    assert degrees == pytest.approx(2 * np.degrees(np.arctan(4 / 3)) + 90)
    ones = np.ones((1, 3))  # whose cosine is rounded to more than 1
    assert _distances(ones, ones) == (0, 0)


def test_padding_does_not_count(model):
    """Each text alone, weighted by its tokens, gives what all give at once."""
    together = ka.layer_distances(model, TEXTS, batch_size=2)
    counts = model.preprocess(TEXTS)["padding_mask"].sum(axis=1)
    alone = [ka.layer_distances(model, [text]) for text in TEXTS]
    for name, values in together.items():
        assert values.shape == (CONFIG.num_hidden_layers,)
        expected = np.average([a[name] for a in alone], axis=0, weights=counts)
        np.testing.assert_allclose(values, expected, rtol=1e-4)
    assert (together["degrees"] > 0).all()


def test_what_is_no_list_of_texts(model):
    with pytest.raises(ka.AlbertError, match=r"list of texts.*'the fox'"):
        ka.layer_distances(model, "the fox")
    with pytest.raises(ka.AlbertError, match=r"`batch_size` .*batch_size=0"):
        ka.layer_distances(model, TEXTS, batch_size=0)


def test_attention_figure(model):
    """The panels show the probabilities of the real tokens, padding aside."""
    texts = ["the fox", "hens sleep"]
    figure = ka.attention_figure(model, *texts, layer=0)
    inputs = model.preprocess(([texts[0]], [texts[1]]))
    count = inputs["padding_mask"].sum()
    scores = model.backbone(inputs, return_attention_scores=True)
    expected = numpy(scores["attention_scores"][0])[0]
    panels = figure.axes[: CONFIG.num_attention_heads]
    for head, axes in enumerate(panels):
        shown = axes.images[0].get_array()
        np.testing.assert_allclose(shown, expected[head, :count, :count])
        np.testing.assert_allclose(shown.sum(axis=1), 1, rtol=1e-5)
    labels = [each.get_text() for each in panels[0].get_yticklabels()]
    assert (labels[0], labels[-1]) == ("[CLS]", "[SEP]")
    last = ka.attention_figure(model, *texts).axes[0].images[0].get_array()
    expected = numpy(scores["attention_scores"][-1])[0, 0, :count, :count]
    np.testing.assert_allclose(last, expected)
    with pytest.raises(ka.AlbertError, match=r"from 0 to 4, .*Received: 5\."):
        ka.attention_figure(model, "the fox", layer=CONFIG.num_hidden_layers)


@pytest.mark.parametrize(
    ("call", "needed"),
    [
        (lambda given: ka.attention_figure(given, "the fox"), "matplotlib"),
        (ka.to_transformers, "transformers"),
        (ka.to_keras_hub, "keras_hub"),
    ],
)
def test_what_only_has_a_model_is_refused(model, tmp_path, call, needed):
    """The message says which of its attributes is the model."""
    pytest.importorskip(needed, reason="not installed")
    finished = ka.FinishedRun(tmp_path, {}, [])
    for given, remedy in (
        (ka.Predictor(model), r"Received: Predictor\. Give its `model`\.$"),
        (finished, r"FinishedRun\. Give its `predictor\.model`, to "),
        (tmp_path, r"Received: \w+Path\.$"),
    ):
        with pytest.raises(ka.AlbertError, match=remedy):
            call(given)


def test_command(model, tmp_path, capsys):
    file, texts = tmp_path / "model.keras", tmp_path / "text.txt"
    model.save(file)
    texts.write_text("\n\n".join(TEXTS))
    plot = tmp_path / "plot.png"
    printed = run("inspect", model=file, data=texts, rows=2, output=plot)
    expected = ka.layer_distances(model, TEXTS[:2])
    assert "model.keras, 2 texts" in printed
    l2, degrees = expected["l2"][0], expected["degrees"][0]
    assert f"\n    1 {l2:12.3f} {degrees:17.2f}\n" in printed
    assert plot.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ka.AlbertError, match="Received: an empty list"):
        ka.layer_distances(model, [])
    error = refused(capsys, "inspect", model="x", data=tmp_path / "no.txt")
    assert "no.txt: no such file" in error
    table = tmp_path / "rows.csv"
    table.write_text("text,label\nthe fox,a\n")
    error = refused(capsys, "inspect", model="x", data=table)
    assert "rows.csv: a table" in error
    both = tmp_path / "both.keras"
    ka.AlbertEnsemble([model, ka.load(file)]).save(both)
    error = refused(capsys, "inspect", model=both, data=texts)
    assert "an encoder for each of its 2 models" in error
