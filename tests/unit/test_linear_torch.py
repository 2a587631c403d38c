"""Products of matrices with the PyTorch backend, some of them by oneDNN."""

import platform
from unittest.mock import Mock

import keras
import numpy as np
import pytest
from hypothesis import given, strategies as st
from small import CONFIG, add_noise

import keras_albert as ka
from keras_albert.modeling.layers import ACTIVATIONS

if keras.backend.backend() != "torch":
    pytest.skip("only PyTorch has them", allow_module_level=True)

import torch

from keras_albert.modeling import linear_torch
from keras_albert.modeling.linear_torch import (
    is_for_onednn,
    linear,
    linear_by_onednn,
)

on_x86 = pytest.mark.skipif(
    platform.machine() not in linear_torch.X86,
    reason="other processors keep PyTorch's own products",
)
sizes = st.integers(1, 70)


def matrices(rows: int, width: int, units: int) -> list[torch.Tensor]:
    """Random x, W and b."""
    numbers = torch.Generator().manual_seed(rows * 10_000 + width * 100 + units)
    shapes = (rows, width), (width, units), (units,)
    return [torch.randn(shape, generator=numbers) for shape in shapes]


@pytest.fixture
def of_any_size(monkeypatch):
    """Small matrices, too, are multiplied by oneDNN."""
    monkeypatch.setattr(linear_torch, "LEAST_ROWS", 1)
    monkeypatch.setattr(linear_torch, "LEAST_KERNEL", 1)


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_values_of_onednn(activation):
    @given(sizes, sizes, sizes)
    def is_right(rows, width, units):
        given = matrices(rows, width, units)
        found = linear_by_onednn(*given, activation)
        x, kernel, bias = (each.double() for each in given)
        expected = x @ kernel + bias
        if activation:
            expected = ACTIVATIONS[activation](expected)
        # Sums of 70 products have an error of some 70 times 6e-8.
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-5)

    is_right()


@on_x86
def test_transposed_matrices(of_any_size):
    x, kernel, bias = matrices(5, 7, 3)
    with torch.no_grad():
        assert is_for_onednn(x, kernel)
        found = linear(
            x.t().contiguous().t(), kernel.t().contiguous().t(), bias
        )
    torch.testing.assert_close(found, x @ kernel + bias)


def test_gradients():
    x, kernel, bias = (
        each.requires_grad_() for each in matrices(512, 512, 300)
    )
    y = linear(x, kernel, bias)
    torch.testing.assert_close(y, x @ kernel + bias, rtol=1e-5, atol=1e-4)
    of_all = torch.autograd.grad(y.sum(), [x, kernel, bias])
    expected = torch.autograd.grad((x @ kernel + bias).sum(), [x, kernel, bias])
    for one, other in zip(of_all, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@on_x86
def test_when_onednn_is_used(monkeypatch):
    x, kernel, _ = matrices(4, 512, 256)
    assert not is_for_onednn(x, kernel)  # it has no gradients
    with torch.no_grad():
        assert is_for_onednn(x, kernel)
        assert not is_for_onednn(x[:3], kernel)
        assert not is_for_onednn(x, kernel[:, :-1])
        assert not is_for_onednn(x.double(), kernel.double())
        assert not is_for_onednn(x.bfloat16(), kernel.bfloat16())
        assert not is_for_onednn(x.to("meta"), kernel.to("meta"))
        with torch.autocast("cpu"):
            assert not is_for_onednn(x, kernel)
        with torch.backends.mkldnn.flags(enabled=False):
            assert not is_for_onednn(x, kernel)
        with monkeypatch.context() as other:
            other.setattr(platform, "machine", lambda: "arm64")
            assert not is_for_onednn(x, kernel)
        monkeypatch.setattr(linear_torch, "onednn_linear", lambda: None)
        assert not is_for_onednn(x, kernel)


@on_x86
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["plain", "LoRA", "relaxed sharing"])
def test_a_model_predicts_the_same(of_any_size, monkeypatch, activation, kind):
    config = CONFIG.replace(num_hidden_layers=2, hidden_act=activation)
    if kind == "relaxed sharing":
        config = config.replace(relaxed_rank=2)
    model = ka.AlbertForTextEmbedding(ka.AlbertBackbone(config))
    if kind == "LoRA":
        model.backbone.enable_lora(2)
    add_noise(model)
    ids = {"token_ids": np.arange(5, 26).reshape(3, 7)}
    operation = Mock(wraps=linear_torch.onednn_linear())
    monkeypatch.setattr(linear_torch, "onednn_linear", lambda: operation)
    found = model.predict(ids, verbose=0)
    # In each of two layers: queries, keys and values at once, their output,
    # and the two of the feed-forward network. With relaxed sharing more is
    # added to the first of these before it is activated.
    name = linear_torch.ACTIVATIONS[activation][0]
    layer = ["none", "none", "none" if "relaxed" in kind else name, "none"]
    assert [call.args[3] for call in operation.call_args_list] == 2 * layer
    monkeypatch.setattr(linear_torch, "LEAST_ROWS", 100)
    expected = model.predict(ids, verbose=0)
    assert operation.call_count == 2 * 4
    np.testing.assert_allclose(found, expected, 0, 1e-6)


class TokenVectors(torch.nn.Module):
    """A model of PyTorch for `torch.export`, with a tensor as input."""

    def __init__(self):
        super().__init__()
        config = CONFIG.replace(num_hidden_layers=1)
        self.backbone = ka.AlbertBackbone(config)

    def forward(self, token_ids):
        return self.backbone({"token_ids": token_ids})["sequence_output"]


def test_exported_models_have_operations_that_others_know(of_any_size):
    ids = torch.arange(5, 26).reshape(3, 7)
    with torch.no_grad():
        exported = torch.export.export(TokenVectors().eval(), (ids,))
        operations = {str(node.target) for node in exported.graph.nodes}
        traced = torch.jit.trace(TokenVectors().eval(), ids).inlined_graph
    operations |= {node.kind() for node in traced.nodes()}
    assert {"aten.addmm.default", "aten::addmm"} <= operations
    assert not any("mkldnn" in each for each in operations)


def test_compiled_products_have_operations_that_others_know(of_any_size):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    given = matrices(5, 7, 3)
    with torch.no_grad():
        compiled = torch.compile(linear, backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(*given), linear(*given))
    assert "torch.addmm" in graphs[0]
    assert "mkldnn" not in graphs[0]
