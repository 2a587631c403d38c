"""ONNX files: every head and architecture, in ONNX Runtime as in Keras.

Letters: B batch, C labels or choices, K beam, S sequence length.
"""

import collections
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from hypothesis.extra.numpy import arrays
from small import CONFIG as FIVE_LAYERS, add_noise, numpy

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

import keras_albert as ka  # noqa: E402
from keras_albert.exports.load import _by_rows  # noqa: E402
from keras_albert.exports.onnx import graph_builder as onnx_graph  # noqa: E402
from keras_albert.exports.onnx.format import run_onnx, write_onnx  # noqa: E402
from keras_albert.exports.onnx.graph_builder import Graph, quantize_kernel  # noqa: E402
from keras_albert.exports.onnx.heads import onnx_model  # noqa: E402
from keras_albert.text.special_tokens import CLS_ID, PAD_ID, SEP_ID  # noqa: E402

# Weights are read as NumPy arrays, and ONNX Runtime computes.
pytestmark = pytest.mark.on_torch
HEADS = {
    "label": lambda backbone: ka.AlbertForSequenceClassification(backbone, 3),
    "tokens": lambda backbone: ka.AlbertForTokenClassification(backbone, 3),
    "choice": ka.AlbertForMultipleChoice,
    "answer": ka.AlbertForQuestionAnswering,
    "answer or none": lambda backbone: ka.AlbertForQuestionAnsweringV2(
        backbone,
        beam=2,  # as many places as may hold an answer; others are equal
    ),
}
CONFIG = FIVE_LAYERS.replace(num_hidden_layers=3)
# In which the encoder differs from CONFIG, which has 3 layers of one block.
ARCHITECTURES = {
    "one layer": {"num_hidden_layers": 1},
    "groups": {"num_hidden_groups": 2},
    "two blocks a layer": {"inner_group_num": 2, "num_hidden_layers": 2},
    "attention shared": {"sharing": "attention"},
    "nothing shared": {"sharing": "none"},
    "relaxed": {"relaxed_rank": 3},
    "erf": {"hidden_act": "gelu_erf"},
    "relu": {"hidden_act": "relu"},
    "no projection": {"embedding_size": CONFIG.hidden_size},
}
# Two texts in a row; the second one is padded as a server does it.
ROWS = np.array(
    [
        [CLS_ID, 9, 50, 31, 8, SEP_ID, 70, 11, SEP_ID],
        [CLS_ID, 44, SEP_ID, 12, SEP_ID, CLS_ID, CLS_ID, CLS_ID, CLS_ID],
    ],
    "int32",
)


def model_of(head, **changes):
    keras.utils.set_random_seed(2)
    return add_noise(HEADS[head](ka.AlbertBackbone(CONFIG.replace(**changes))))


def written(model, path, pairs=False, weights="float32"):
    predictor = SimpleNamespace(model=model, reads_pairs=pairs, early_exit=None)
    write_onnx(predictor, path / "model.onnx", weights)
    return run_onnx(path / "model.onnx", threads=1)


def expected(model, rows, pairs):
    """What Keras gives for the same rows, segments and padding by hand."""
    mask = np.ones_like(rows)
    mask[1, 5:] = 0
    segments = np.zeros_like(rows)
    if pairs:
        segments[0, 6:] = segments[1, 3:5] = 1
    x = {"token_ids": rows * mask, "segment_ids": segments}
    x["padding_mask"] = mask
    if isinstance(model, ka.AlbertForMultipleChoice):
        x = {name: row[:, None] for name, row in x.items()}
    outputs = numpy(model(x))
    return outputs if isinstance(outputs, dict) else {"logits": outputs}


def close(found, wanted, atol=2e-5):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_allclose(found[name], value, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_every_head(tmp_path, head):
    """Padded with 0 or with the first id, with pairs or without."""
    model = model_of(head)
    for pairs in (True,) if "answer" in head else (False, True):
        run = written(model, tmp_path, pairs)
        wanted = expected(model, ROWS, pairs)
        close(run(ROWS), wanted)
        zeros = np.where(np.arange(9) >= [[9], [5]], PAD_ID, ROWS)
        close(run(zeros.astype("int32")), wanted)
    # A beam is wider than this row.
    for name, value in run(ROWS[1:, :1]).items():
        assert value.shape[0] == 1 and np.isfinite(value).all(), name


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(tmp_path, name):
    """With the last layer at [CLS] alone, and at all positions."""
    for head in ("label", "tokens"):
        model = model_of(head, **ARCHITECTURES[name])
        close(written(model, tmp_path)(ROWS), expected(model, ROWS, False))


def test_a_layer_of_two_blocks_counts_once(tmp_path):
    changes = ARCHITECTURES["two blocks a layer"]
    backbone = ka.AlbertBackbone(CONFIG.replace(**changes))
    model = add_noise(ka.AlbertForTextEmbedding(backbone, "weighted_layers"))
    vectors = expected(model, ROWS, False)["logits"]
    close(written(model, tmp_path)(ROWS), {"embedding": vectors})


@pytest.mark.parametrize("name", ["shared", "groups", "relaxed"])
def test_weights_are_there_once(name):
    """As many numbers as the model has, and a few constants."""
    model = model_of("label", **ARCHITECTURES.get(name, {}))
    graph = onnx_model(model, reads_pairs=True, int8=False).graph
    stored = sum(np.prod(each.dims) for each in graph.initializer)
    # B of query, key and value is a diagonal of three: layers, rank, size.
    zeros = 3 * 3 * CONFIG.hidden_size * 6 if name == "relaxed" else 0
    parameters = sum(np.prod(w.shape) for w in model.trainable_weights)
    # Masks, shapes, GELU's numbers.
    assert 0 <= stored - zeros - parameters < 60


def test_int8(tmp_path):
    """Near the model, in a fourth of the bytes."""
    model = model_of("label", vocab_size=997)
    wanted = expected(model, ROWS, False)["logits"]
    found = written(model, tmp_path, weights="int8")(ROWS)["logits"]
    assert 0 < np.abs(found - wanted).max() < 0.2 * wanted.std()
    numbers = collections.Counter()
    graph = onnx_model(model, reads_pairs=False, int8=True).graph
    for values in map(onnx.numpy_helper.to_array, graph.initializer):
        numbers[values.dtype.name] += values.size
    parameters = model.count_params()
    assert numbers["int8"] > 0.9 * parameters
    assert numbers["int8"] + numbers["float32"] < 1.1 * parameters


def test_int8_of_base_is_small():
    """ALBERT-base is at most 12.5 MB in int8, as a file for devices."""
    backbone = ka.AlbertBackbone(ka.VARIANTS["base_v2"])
    model = ka.AlbertForSequenceClassification(backbone, num_labels=2)
    graph = onnx_model(model, reads_pairs=True, int8=True)
    assert 11.5e6 < len(graph.SerializeToString()) < 12.5e6


@given(
    arrays(
        "float32",
        st.tuples(st.integers(1, 7), st.integers(1, 3)),
        elements=st.floats(-9, 9, width=32),
    )
)
@example(np.float32([[9.47e-42]]))
def test_neighbours_fit_into_16_bits(kernel):
    values, scales = quantize_kernel(kernel)
    assert values.dtype == np.int8 and np.abs(values.astype(int)).max() <= 127
    assert (np.abs(values * scales - kernel) <= 0.5001 * scales).all()
    padded = np.pad(values.astype(int), [(0, len(values) % 2), (0, 0)])
    for pair in padded.reshape(-1, 2, values.shape[1]):
        extremes = 255 * np.maximum(pair, 0), 255 * np.minimum(pair, 0)
        assert extremes[0].sum(0).max() <= 2**15 - 1
        assert extremes[1].sum(0).min() >= -(2**15)


def test_large_products_are_exact():
    """All products of a kind are large: in 16 bits their sums would be lost."""
    kernel = np.tile(np.float32([[1.0, -1.0]]), (64, 1))
    graph = Graph(int8=True)
    y = graph.matmul("x", graph.kernel(kernel))
    model = graph.model(
        {"x": ("float32", ("rows", 64))}, {"y": (y, "float32", ("rows", 2))}
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    x = np.full((3, 64), 2.0, "float32")
    (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, x @ kernel, rtol=1e-2)


def test_choices_are_rows():
    """[B, C, S] -> [B, C], in this order."""
    run = _by_rows(lambda rows: {"logits": rows[:, :1]})
    rows = np.arange(42).reshape(3, 2, 7)
    assert run(rows)["logits"].tolist() == [[0, 7], [14, 21], [28, 35]]
    assert run(rows[0])["logits"].tolist() == [[0], [7]]


def test_adapters_are_merged(tmp_path):
    backbone = ka.AlbertBackbone(CONFIG)
    backbone.enable_lora(rank=2)
    model = add_noise(HEADS["label"](backbone))
    close(written(model, tmp_path)(ROWS), expected(model, ROWS, False))


def test_what_cannot_be_written():
    with pytest.raises(ka.AlbertError, match="Received: AlbertBackbone"):
        onnx_model(ka.AlbertBackbone(CONFIG), False, False)
    model = model_of("label")
    model.quantize("int8")
    with pytest.raises(ka.AlbertError, match="is quantized"):
        onnx_model(model, False, False)


def test_what_no_file_can_hold(monkeypatch):
    """Equal constants count once; a message before anything is written."""
    model = model_of("label", num_hidden_layers=1)
    needed = 4 * model.count_params()
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", needed + 1000)
    onnx_model(model, True, False)
    onnx_model(model, True, True)
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", needed - 1)
    with pytest.raises(ka.AlbertError, match=r"GB of weights .*--weights int8"):
        onnx_model(model, True, False)
    onnx_model(model, True, True)


def test_rows_that_are_too_long(tmp_path):
    run = written(model_of("label", num_hidden_layers=1), tmp_path)
    longest = CONFIG.max_position_embeddings
    run(np.full((1, longest), 7, "int32"))
    with pytest.raises(Exception, match="out of data bounds"):
        run(np.full((1, longest + 1), 7, "int32"))
