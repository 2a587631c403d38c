"""`keras-albert whiten`: vectors that tell texts apart, without training."""

import re

import keras
import numpy as np
import pytest
from commands import refused, run, write_rows
from small import add_noise, numpy

import keras_albert as ka
from keras_albert.modeling.whitening import whitening

pytestmark = pytest.mark.on_torch

SIZE = 5


@pytest.fixture(scope="module")
def texts(tiny_lines):
    return list(dict.fromkeys(line for line in tiny_lines if line))[:200]


@pytest.fixture(scope="module")
def source(pretrained_folder):
    """A model of three layers with random weights."""
    # Of two nearly equal variances, rounding would exchange the directions.
    keras.utils.set_random_seed(1)
    encoder = ka.load(pretrained_folder, backbone=True)
    config = encoder.config.replace(num_hidden_layers=3)
    encoder = ka.AlbertBackbone(config, tokenizer=encoder.tokenizer)
    return add_noise(ka.AlbertForTextEmbedding(encoder))


def unscaled(model, texts):
    return model.encode(texts, normalize=False)


def test_whitening_by_hand():
    """Corners of a rectangle, turned and moved, twice as wide as it is high."""
    corners = np.array([[x, y] for x in (-2, 2) for y in (-1, 1)])
    sine, cosine = np.sin(0.3), np.cos(0.3)
    turned = corners @ [[cosine, sine], [-sine, cosine]] + [5, 7]
    kernel, bias = whitening(turned.astype("float32"), 2)
    # The variances are 4 and 1, and each is raised by 0.0004.
    scaled = corners / np.sqrt([2 * 4.0004, 2 * 1.0004])
    found = turned @ kernel + bias
    np.testing.assert_allclose(found @ found.T, scaled @ scaled.T, atol=1e-5)
    kernel, bias = whitening(turned.astype("float32"), 1)
    found = turned @ kernel + bias
    wide = corners[:, :1] / np.sqrt(4.0004)
    np.testing.assert_allclose(found @ found.T, wide @ wide.T, atol=1e-5)
    noise = np.random.default_rng(0).normal(0, 1e-7, (9, 2))
    with pytest.raises(ka.AlbertError, match="of all texts are equal"):
        whitening(np.float32(3.3) + noise, 1)


@pytest.mark.parametrize(
    "pooling", ["mean", "weighted_layers", "idf_first_last"]
)
def test_vectors_are_uncorrelated(source, texts, pooling):
    model = ka.AlbertForTextEmbedding(source.backbone, pooling, max_tokens=20)
    if pooling == "idf_first_last":
        model.adapt(texts)
    if pooling == "weighted_layers":
        model.layer_weights.assign(np.arange(model.config.num_hidden_layers))
    whitened = model.whitened(texts, SIZE)
    assert whitened.backbone is model.backbone
    if pooling == "weighted_layers":
        np.testing.assert_array_equal(numpy(whitened.layer_weights), [0, 1, 2])
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
    for call, message in (
        (lambda: source.whitened(texts, 25), "`dimensions` must be at most 24"),
        (
            lambda: source.whitened(texts, 0),
            "`dimensions` must be .*=0",
        ),
        (lambda: source.whitened(texts[:5] * 9, 5), "than 5 different.*: 5"),
        # Another case does not make another text.
        (
            lambda: source.whitened(
                texts[:5] + [*map(str.upper, texts[:5])], 5
            ),
            "than 5 different.*: 5",
        ),
        (lambda: source.whitened("a text"), "texts` must be a list of texts"),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            call()
    bare = ka.AlbertForTextEmbedding(ka.AlbertBackbone(source.config))
    with pytest.raises(ka.AlbertError, match="this model has none"):
        bare.whitened(texts)
    for change in (
        lambda projection: projection.quantize("int8"),
        lambda projection: projection.enable_lora(2),
    ):
        projected = source.whitened(texts, SIZE)
        change(projected.projection)
        with pytest.raises(ka.AlbertError, match="quantized or has LoRA"):
            projected.whitened(texts, SIZE)


def length_of(vectors):
    """The root mean square length."""
    return np.sqrt(np.mean(np.sum(vectors**2, axis=1)))


def test_words_stand_beside_the_vectors(source, texts):
    """By hand: each part has its share of the mean square length."""
    short = {"max_tokens": 20}
    plain = ka.AlbertForTextEmbedding(source.backbone, "idf", **short)
    plain.adapt(texts)
    first = ka.AlbertForTextEmbedding(
        source.backbone, "idf_first_last", **short
    )
    first.adapt(texts)
    hidden, size = plain.config.hidden_size, plain.config.embedding_size
    read = unscaled(first, texts)[:, :hidden]
    kernel, bias = whitening(read, size)
    words = read @ kernel + bias
    for model in (plain, plain.whitened(texts, SIZE)):
        found = model.with_words(texts, 0.2)
        assert found.pooling == "idf_first_last"
        assert found.max_tokens == 20 and not found.normalize
        vectors = unscaled(model, texts)
        parts = [
            vectors * 0.8**0.5 / length_of(vectors),
            words * 0.2**0.5 / length_of(words),
        ]
        expected = np.concatenate(parts, axis=1)
        # Whitening divides by small numbers, which enlarges roundings.
        np.testing.assert_allclose(unscaled(found, texts), expected, atol=3e-5)
    scaled = ka.AlbertForTextEmbedding(
        source.backbone, "idf", normalize=True, **short
    )
    scaled.adapt(texts)
    found = unscaled(scaled.with_words(texts, 0.2), texts)
    expected = plain.with_words(texts, 0.2).encode(texts)  # of length 1
    np.testing.assert_allclose(found, expected, atol=1e-5)
    wide = plain.config.replace(embedding_size=hidden + 8)
    wide = ka.AlbertBackbone(wide, tokenizer=source.tokenizer)
    wide = ka.AlbertForTextEmbedding(wide, "idf").with_words(texts)
    assert wide.size == 2 * hidden  # words have no more numbers than a token


def test_what_words_do_not_go_with(source, texts):
    plain = ka.AlbertForTextEmbedding(source.backbone, "idf")
    words = plain.with_words(texts)
    small = plain.whitened(texts, SIZE)
    small.projection.quantize("int8")
    for call, message in (
        (lambda: source.with_words(texts), r"'mean'.*with pooling='idf'"),
        (lambda: words.with_words(texts), "'idf_first_last'.*from before"),
        (lambda: small.with_words(texts), "quantized or has LoRA"),
        (lambda: plain.with_words(texts, 0), "`share` must be .*=0"),
        (lambda: plain.with_words(texts, 1.0), r"`share` must be .*=1\.0"),
        (lambda: plain.with_words(texts[:16]), "16 different.*Received: 16"),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            call()


@pytest.fixture(scope="module")
def table(texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "rows.jsonl"
    rows = [{"a": a, "b": b} for a, b in zip(texts, texts[::-1], strict=True)]
    return write_rows(path, rows)


@pytest.fixture(scope="module")
def output(pretrained_folder, table, tmp_path_factory):
    output = tmp_path_factory.mktemp("white") / "model"
    told = {"model": pretrained_folder, "data": table, "output": output}
    options = ("--columns", "a", "b", "--pooling=idf", f"--dimensions={SIZE}")
    said = run("whiten", *options, **told)
    assert "reads 200 texts" in said  # each is in both columns
    assert f"vectors with {SIZE} dimensions -> {output}" in said
    return output


def test_the_command(output, pretrained_folder, texts):
    found = ka.Predictor.load(output)
    assert (found.task, found.model.pooling) == ("embedding", "idf")
    encoder = ka.load(pretrained_folder, backbone=True)
    model = ka.AlbertForTextEmbedding(encoder, "idf")
    model.adapt(texts)
    expected = model.whitened(texts, SIZE).encode(texts)
    np.testing.assert_allclose(found.model.encode(texts), expected, atol=1e-5)


def test_some_texts_for_a_trained_model(output, texts, tmp_path):
    """Task, columns and pooling stay; blank lines are no texts."""
    model, columns = ka.load(output), ka.TableColumns("a", "b")
    predictor = ka.Predictor(model, task="similarity", columns=columns)
    predictor.save(tmp_path / "similarity")
    lines = tmp_path / "lines.txt"
    lines.write_text("\n\n".join(texts[:101]))
    told = {"model": tmp_path / "similarity", "data": lines}
    few = tmp_path / "few"
    said = run("whiten", "--max-texts=51", "--dimensions=3", **told, output=few)
    assert "reads 51 texts" in said
    found = ka.Predictor.load(few)
    assert (found.task, found.model.pooling) == ("similarity", "idf")
    assert found.columns == columns
    expected = model.whitened(texts[:101:2], 3).encode(texts)
    np.testing.assert_allclose(found.model.encode(texts), expected, atol=1e-5)


def test_the_command_adds_words(
    output, pretrained_folder, texts, tmp_path, capsys
):
    """To a pretrained model, and to one that makes vectors already."""
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(texts))
    encoder = ka.load(pretrained_folder, backbone=True)
    fresh = ka.AlbertForTextEmbedding(encoder, "idf")
    fresh.adapt(texts)
    for source, model in (
        (pretrained_folder, fresh.whitened(texts)),
        (output, ka.load(output)),
    ):
        new = tmp_path / source.name
        run("whiten", "--words=0.3", model=source, data=lines, output=new)
        found, expected = ka.load(new), model.with_words(texts, 0.3)
        np.testing.assert_allclose(
            found.encode(texts), expected.encode(texts), atol=1e-5
        )
    # It is trained further from there, and only as it is.
    told = {"model": new, "train": lines, "output": tmp_path / "trained"}
    options = ("--task=embedding", "--steps=1", "--dropout=0.1")
    said = refused(
        capsys, "finetune", *options, **told, **{"embedding.pooling": "idf"}
    )
    assert (
        "by idf_first_last pooling. Received: embedding.pooling='idf'" in said
    )
    run("finetune", *options, "--learning-rate=1e-30", **told)
    np.testing.assert_allclose(
        ka.load(told["output"]).encode(texts), found.encode(texts), atol=1e-5
    )


def test_rows_that_are_left_out_or_read_anyway(output, tmp_path, capsys):
    """A bad one, and those with text that the vocabulary cannot read."""
    rows = [{"text": f"春夏秋冬 {letter}"} for letter in "abcdefgh"]
    data = write_rows(tmp_path / "rows.jsonl", [*rows, {"other": "fox"}])
    told = {"model": output, "data": data, "output": tmp_path / "new"}
    said = refused(capsys, "whiten", "--any-text", **told)
    assert "rows.jsonl:9: " in said and "--skip-bad" in said
    said = run("whiten", "--any-text", "--skip-bad", **told)
    assert "reads 8 texts" in said


def test_training_goes_on_from_there(output, table, tmp_path):
    given = {"model": output, "train": table, "output": tmp_path / "trained"}
    options = ("--task=embedding", "--columns.text=a", "--columns.pair=b")
    options += ("--steps=1", "--batch-size=4", "--learning-rate=1e-30")
    said = run("finetune", *options, "--validation=none", **given)
    assert f"(idf pooling, projection to {SIZE})" in said
    np.testing.assert_array_equal(
        numpy(ka.load(given["output"]).projection.kernel),
        numpy(ka.load(output).projection.kernel),
    )


def files_of(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files}


def test_mistakes(output, table, tmp_path, capsys):
    """Nothing is written."""
    chinese = tmp_path / "chinese.txt"
    chinese.write_text("".join(f"春夏秋冬{number}\n" for number in range(9)))
    new, before = tmp_path / "new", files_of(output)
    for options, data, there, message in (
        (("--columns=a", "--pooling=max"), table, new, "by idf .*Leave --pool"),
        (("--columns=c",), table, new, "no column `c`.*with --columns"),
        (("--columns",), table, new, "name one column or more.*: none"),
        (("--columns=a", "--dimensions=99"), table, new, "at most 5"),
        (("--columns=a", "--max-texts=5"), table, new, "than 5 different.*: 5"),
        (
            ("--columns=a", "--words=.1", "--dimensions=3"),
            *(table, new, "keeps as they are.*dimensions=3"),
        ),
        (
            ("--columns=a", "--words=.1", "--pooling=mean"),
            *(table, new, "of the pooling 'idf'.*Leave --pooling out"),
        ),
        (("--columns=a", "--words=1"), table, new, r"`words` must be .*=1\.0"),
        ((), chinese, new, "cannot read .*--any-text"),
        (("--columns=a",), table, output, "folder is not empty"),
    ):
        told = {"model": output, "data": data, "output": there}
        said = refused(capsys, "whiten", *options, **told)
        assert re.search(message, said), said
        assert not new.exists() and files_of(output) == before
