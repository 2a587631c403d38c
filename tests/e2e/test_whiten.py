"""`keras-albert whiten`: vectors that tell texts apart, without training."""

import numpy as np
import pytest
from commands import refused, run, write_rows
from small import numpy, randomize

import keras_albert as ka
from keras_albert.modeling.text_embedding import whitening

pytestmark = pytest.mark.on_torch

SIZE = 5


@pytest.fixture(scope="module")
def texts(tiny_lines):
    return list(dict.fromkeys(line for line in tiny_lines if line))[:200]


@pytest.fixture(scope="module")
def source(pretrained_folder):
    """A model whose layers matter, and whose vectors are of any length."""
    encoder = ka.load(pretrained_folder, backbone=True)
    return randomize(ka.AlbertForTextEmbedding(encoder))


def unscaled(model, texts):
    return model.encode(texts, normalize=False)


def test_whitening_by_hand():
    """Corners of a rectangle around (5, 7), twice as wide as it is high."""
    corners = [[5 + x, 7 + y] for x in (-2, 2) for y in (-1, 1)]
    kernel, bias = whitening(np.array(corners, "float32"), 2)
    # The variances are 4 and 1, and each is raised by 0.0004.
    wide, high = (2 * 4.0004) ** -0.5, (2 * 1.0004) ** -0.5
    np.testing.assert_allclose(kernel, [[wide, 0], [0, high]], atol=1e-6)
    np.testing.assert_allclose(bias, [-5 * wide, -7 * high], rtol=1e-6)
    narrow, _ = whitening(np.array(corners, "float32"), 1)
    np.testing.assert_allclose(narrow, [[4.0004**-0.5], [0]], atol=1e-6)
    with pytest.raises(ka.AlbertError, match="of all texts are equal"):
        whitening(np.full((9, 2), 3.3, "float32"), 1)


@pytest.mark.parametrize("pooling", ["mean", "weighted_layers", "idf"])
def test_vectors_are_uncorrelated(source, texts, pooling):
    model = ka.AlbertForTextEmbedding(source.backbone, pooling, max_tokens=20)
    if pooling == "idf":
        model.adapt(texts)
    if pooling == "weighted_layers":
        model.layer_weights.assign(np.arange(model.config.num_hidden_layers))
    whitened = model.whitened(texts, SIZE)
    assert whitened.backbone is model.backbone
    assert (whitened.size, whitened.max_tokens) == (SIZE, 20)
    vectors = unscaled(whitened, texts)
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-5)
    found = np.cov(vectors, rowvar=False, bias=True)
    variances = np.linalg.eigvalsh(
        np.cov(unscaled(model, texts), rowvar=False, bias=True)
    )[::-1]
    expected = variances / (variances + 1e-4 * variances[0]) / SIZE
    np.testing.assert_allclose(found, np.diag(expected[:SIZE]), atol=1e-4)


def test_a_projection_is_included(source, texts):
    """What a model has already whitened is as it was, but for its order."""
    first = source.whitened(texts, SIZE)
    again = first.whitened(texts)
    cosines = again.similarity(texts, texts)
    np.testing.assert_allclose(cosines, first.similarity(texts, texts), 0, 2e-3)
    # The same of a model that scales its vectors.
    scaled = ka.AlbertForTextEmbedding(
        source.backbone, projection=SIZE, normalize=True
    )
    scaled.projection.set_weights(first.projection.get_weights())
    found = unscaled(scaled.whitened(texts, 3), texts)
    expected = first.whitened(texts, 3)
    np.testing.assert_allclose(found, expected.encode(texts), atol=1e-5)
    assert not np.allclose(unscaled(expected, texts), found, atol=0.1)


def test_what_cannot_be_whitened(source, texts):
    with pytest.raises(ka.AlbertError, match="`size` must be at most 24"):
        source.whitened(texts, 25)
    with pytest.raises(ka.AlbertError, match="`size` must be"):
        source.whitened(texts, 0)
    few = texts[:SIZE]
    with pytest.raises(ka.AlbertError, match=r"than 5 different.*ived: 5\."):
        source.whitened(few * 9, SIZE)
    with pytest.raises(ka.AlbertError, match="texts` must be a list of texts"):
        source.whitened("a text")
    bare = ka.AlbertForTextEmbedding(ka.AlbertBackbone(source.config))
    with pytest.raises(ka.AlbertError, match="this model has none"):
        bare.whitened(texts)


def test_the_command(pretrained_folder, texts, tmp_path, capsys):
    rows = [{"a": a, "b": b} for a, b in zip(texts, texts[::-1], strict=True)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    told = {"model": pretrained_folder, "data": data}
    output = tmp_path / "white"
    options = ("--columns", "a", "b", "--pooling=idf", f"--size={SIZE}")
    said = run("whiten", *options, **told, output=output)
    assert f"{len(texts)} texts; the cosine of two of them was" in said
    assert f"vectors of {SIZE} numbers -> {output}" in said
    model = ka.Predictor.load(output)
    assert (model.task, model.model.pooling) == ("embedding", "idf")
    encoder = ka.load(pretrained_folder, backbone=True)
    expected = ka.AlbertForTextEmbedding(encoder, "idf")
    expected.adapt(texts)
    expected = expected.whitened(texts, SIZE)
    np.testing.assert_allclose(
        model.model.encode(texts), expected.encode(texts), atol=1e-5
    )
    # Of many texts it reads some, and the vectors of a model as they are.
    few = tmp_path / "few"
    again = ("--columns=a", "--texts=50", "--size=3")
    said = run("whiten", *again, model=output, data=data, output=few)
    assert "50 texts" in said and "was 0.0" in said
    assert ka.load(few).pooling == "idf"
    # Training goes on from there.
    given = {"model": output, "train": data, "output": tmp_path / "trained"}
    pairs = ("--task=embedding", "--columns.text=a", "--columns.pair=b")
    more = ("--steps=1", "--batch-size=4", "--learning-rate=1e-30")
    said = run("finetune", *pairs, *more, "--validation=none", **given)
    assert f"further: pooling idf, projection to {SIZE}" in said
    np.testing.assert_array_equal(
        numpy(ka.load(given["output"]).projection.kernel),
        numpy(model.model.projection.kernel),
    )
    # Mistakes; nothing is written.
    other = {"output": tmp_path / "other"}
    for options, message in (
        (("--columns=a", "--pooling=max"), "by idf pooling.*Leave --pooling"),
        (("--columns=c",), "no column.*c"),
        (("--columns=a", "--size=99"), "at most 5"),
        (("--columns=a", "--texts=5"), "more than 5 different texts"),
    ):
        said = refused(
            capsys, "whiten", *options, model=output, data=data, **other
        )
        assert np.any([part in said for part in message.split(".*")]), said
        assert not other["output"].exists()
    refused(capsys, "whiten", "--columns=a", **told, output=output)
