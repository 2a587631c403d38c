"""What is done for GPUs, as far as it can be seen on a CPU."""

import os
import subprocess

import keras
import numpy as np
import pytest
from commands import write_rows
from small import CONFIG, TEXT_CONFIG, randomized

import keras_albert as ka
from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.distribution.backend import backend_and_device, full_float32
from keras_albert.exports.check import check
from keras_albert.exports.config import CheckRun
from keras_albert.modeling import layers
from keras_albert.modeling.encoder import SharedEncoder

BACKEND = keras.backend.backend()
ON_CPU = pytest.mark.skipif(
    backend_and_device() != f"{BACKEND} (CPU)", reason="there is a GPU"
)


def float32_is_full() -> bool:
    """Whether products are not rounded to TF32, as the backend is set."""
    if BACKEND == "tensorflow":
        config = import_tensorflow().config.experimental
        return not config.tensor_float_32_execution_enabled()
    if BACKEND == "jax":
        import jax

        return jax.config.jax_default_matmul_precision == "highest"
    import torch

    return torch.get_float32_matmul_precision() == "highest"


@pytest.fixture
def with_tf32():
    """PyTorch shortens float32 only if it is told to; the others always do."""
    if BACKEND == "torch":
        import torch

        torch.set_float32_matmul_precision("high")
    yield
    if BACKEND == "torch":
        torch.set_float32_matmul_precision("highest")


@pytest.fixture
def predictor(tiny_vocab):
    encoder = ka.AlbertBackbone(TEXT_CONFIG, tokenizer=ka.Tokenizer(tiny_vocab))
    head = ka.AlbertForSequenceClassification(encoder, 2, labels=("no", "yes"))
    return ka.Predictor(randomized(head))


@pytest.mark.usefixtures("with_tf32")
def test_full_float32():
    assert not float32_is_full()
    with full_float32():
        assert float32_is_full()
    assert not float32_is_full()


@ON_CPU
def test_the_device_is_told(tmp_path, pretrained_folder, capsys):
    """Not that a run is on a CPU because libraries of a GPU are missing."""
    rows = [{"text": text, "label": text[-1]} for text in ["the a", "the b"]]
    table = write_rows(tmp_path / "rows.jsonl", rows * 8)
    options = {"steps": 1, "validation": table}
    ka.finetune(pretrained_folder, table, output=tmp_path / "o", **options)
    assert f"1 steps on {BACKEND} (CPU)" in capsys.readouterr().out


@pytest.mark.usefixtures("with_tf32")
def test_check_and_export_compare_in_full_float32(
    tmp_path, predictor, monkeypatch
):
    """With TF32 a model differs from its own export on the CPU."""
    found = []
    compute = type(predictor.definition).compute

    def noted(*arguments):
        found.append(float32_is_full())
        return compute(*arguments)

    monkeypatch.setattr("keras_albert.exports.check.MOST_CALLS", 2)
    monkeypatch.setattr(type(predictor.definition), "compute", noted)
    rows = [{"text": "two hens", "label": "no"}]
    rows = write_rows(tmp_path / "rows.jsonl", rows)
    predictor.save(tmp_path / "model")
    ka.export(tmp_path / "model", tmp_path / "onnx", format="onnx", data=rows)
    check(CheckRun(tmp_path / "onnx", str(tmp_path / "model"), rows))
    assert len(found) == 4 and all(found)


def test_tensorflow_leaves_gpus_to_other_backends(monkeypatch):
    """Also if it is too late, as TensorFlow has opened its devices."""
    tf, asked = import_tensorflow(), []

    def refuse(devices, kind):
        asked.append((devices, kind))
        raise RuntimeError("Visible devices cannot be modified")

    monkeypatch.setattr(tf.config, "set_visible_devices", refuse)
    assert import_tensorflow() is tf
    assert asked == ([] if BACKEND == "tensorflow" else [([], "GPU")])


@pytest.mark.skipif(BACKEND == "tensorflow", reason="it exports by itself")
def test_the_process_that_exports_leaves_the_gpu_alone(
    tmp_path, predictor, monkeypatch
):
    """The GPU's memory may be reserved by the process that waits for it."""
    asked = []

    def run(command, env, **options):
        asked.append(env)
        return subprocess.CompletedProcess(command, 2, "", "error: enough\n")

    monkeypatch.setattr(subprocess, "run", run)
    predictor.save(tmp_path / "model")
    with pytest.raises(ka.AlbertError, match="enough"):
        ka.export(tmp_path / "model", tmp_path / "served")
    changed = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
    assert asked == [{**os.environ, **changed}]


def test_xla_compiles_no_scan_of_tensorflow():
    """Keras compiles with XLA on GPUs; it cannot differentiate that loop."""
    assert SharedEncoder(CONFIG).supports_jit
    is_on_tensorflow = BACKEND == "tensorflow"
    assert SharedEncoder(CONFIG, "scan").supports_jit != is_on_tensorflow
    model = ka.AlbertForSequenceClassification(
        ka.AlbertBackbone(CONFIG, loop="scan"), num_labels=2
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=BACKEND != "torch")
    ids = np.random.default_rng(0).integers(5, CONFIG.vocab_size, (4, 8))
    x = {"token_ids": ids.astype("int32")}
    history = model.fit(x, np.arange(4) % 2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@ON_CPU
def test_fused_attention_in_float16():
    """JAX's kernel does not take it on CPUs; all others do."""
    assert layers._has_kernel("float16") == (BACKEND != "jax")
    assert layers._has_kernel("bfloat16") and layers._has_kernel("float32")
    assert layers._has_kernel("float64") == (BACKEND != "torch")


def test_few_numbers_of_rows_are_compiled(predictor, monkeypatch):
    """Seven texts are computed as eight where each shape is compiled."""
    compiles = property(lambda model: True)
    monkeypatch.setattr(type(predictor.model), "compiles_each_shape", compiles)
    table = predictor.read({"text": ["two hens"] * 7}, labelled=False)
    features, rows = predictor.features(table), []

    def compute(model, x):
        rows.append(len(x["token_ids"]))
        return np.zeros((rows[-1], 2))

    for batch_size in (32, 7, 4):
        found = predictor.outputs(features, batch_size, compute=compute)
        assert len(found) == 7
    assert rows == [8, 7, 4, 4]
