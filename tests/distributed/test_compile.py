"""Training steps compiled for TPU slices by libtpu, without a TPU."""

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import hypothesis
import keras
import numpy as np
import pytest
from commands import output_of, refused, run as command
from hypothesis import strategies as st

import keras_albert as ka
from keras_albert.aot import compile as compiling
from keras_albert.aot.compile import (
    GIB,
    MOST_COMPILATIONS,
    Compiled,
    compiled,
    guess_rows,
    largest_that_fits,
    size_at,
)
from keras_albert.aot.config import CompileRun
from keras_albert.aot.hlo import array_bytes, exchanged_bytes
from keras_albert.aot.step import batch_spec, compile_step, needed_bytes
from keras_albert.aot.topologies import topology_of
from keras_albert.modeling.base import own_paths

pytestmark = pytest.mark.any_backend
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed: make test-tpu",
)
slow = pytest.mark.skipif(
    not os.environ.get("KERAS_ALBERT_SLOW_COMPILE"),
    reason="minutes of compilation: make test-tpu",
)

# As few as the compiler takes without padding most of it away.
TINY = ka.AlbertConfig(
    vocab_size=1024,
    embedding_size=32,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=64,
)
# By hand: tables 32 (1024 + 2 + 64) and their LayerNorm; the projection; four
# kernels of attention, its LayerNorm; two of the feed-forward, its LayerNorm;
# pooler; masked LM's dense, LayerNorm, bias; sentence order.
PARAMETERS = (
    32 * 1090 + 2 * 32
    + 32 * 64 + 64
    + 4 * (64 * 64 + 64) + 2 * 64
    + 64 * 128 + 128 + 128 * 64 + 64 + 2 * 64
    + 64 * 64 + 64
    + 64 * 32 + 32 + 2 * 32 + 1024
    + 64 * 2 + 2
)  # fmt: skip
# Multiply-adds of a row of 64 tokens and 9 predictions, three times two.
FLOPS = 6 * (
    64 * 32 * 64
    + 3 * 64 * (4 * 64 * 64 + 2 * 64 * 128 + 2 * 64 * 64)
    + 9 * 32 * (64 + 1024)
    + 64 * 64 + 2 * 64
)  # fmt: skip
RUN = CompileRun(
    topology="v5e-4",
    batch_size=64,
    precision="mixed_bfloat16",
    loop="scan",
    remat=True,
    examples=ka.ExampleConfig(sequence_length=64, max_predictions=9),
)


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "albert_config.json"
    TINY.to_json(path)
    return dataclasses.replace(RUN, config=path)


def options_of(run):
    names = ("config", "topology", "batch_size", "precision", "loop")
    return {name: getattr(run, name) for name in names} | {
        f"examples.{name}": getattr(run.examples, name)
        for name in ("sequence_length", "max_predictions")
    }


# What is read, and what is asked of the compiler.

HLO = """\
HloModule jit_train_step, is_scheduled=true

%add.1 (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  ROOT %sum = f32[] add(%x, %y)
}

%fused.5 (p: bf16[8,7]) -> bf16[2,7] {
  ROOT %scattered = bf16[2,7]{1,0:T(8,128)} reduce-scatter(%p), to_apply=%add.1
}

%inner.2 (s: (s32[], f32[11])) -> (s32[], f32[11]) {
  %r.2 = f32[11]{0:T(1024)} all-reduce(%g), channel_id=2, to_apply=%add.1
}

%body.3 (s: (s32[], f32[11])) -> (s32[], f32[11]) {
  %i = (s32[], f32[11]) while(%s), condition=%c, body=%inner.2, \
backend_config={"known_trip_count":{"n":"3"}}
}

%async.4 (p: f32[19]) -> f32[19] {
  ROOT %r.4 = f32[19]{0} all-reduce(%p), to_apply=%add.1
}

%branch.6 (p: f32[9]) -> f32[18] {
  ROOT %g.6 = f32[18]{0} all-gather(%p), dimensions={0}
}

%branch.7 (p: f32[9]) -> f32[18] {
  ROOT %c.7 = f32[18]{0} concatenate(%p, %p), dimensions={0}
}

ENTRY %main.9 (a: f32[11]) -> f32[11] {
  %w = (s32[], f32[11]) while(%t), condition=%c, body=%body.3, \
backend_config={"x":"1","known_trip_count":{"n":"5"}}
  %ar = (f32[2,3]{1,0}, bf16[5]{0}) all-reduce(%b, %d), to_apply=%add.1
  %start = (f32[13]{0}, f32[13]{0}) all-reduce-start(%e), to_apply=%add.1
  %done = f32[13]{0} all-reduce-done(%start)
  %gs = (f32[17]{0}, f32[34]{0}) all-gather-start(%f), dimensions={0}
  %gd = f32[34]{0} all-gather-done(%gs)
  %f = bf16[2,7]{1,0} fusion(%h), kind=kCustom, calls=%fused.5
  %as = ((f32[19]), f32[19], s32[]) async-start(%j), calls=%async.4
  %ad = f32[19]{0} async-done(%as), calls=%async.4
  %co = f32[18]{0} conditional(%k, %m, %m), \
branch_computations={%branch.6, %branch.7}
  ROOT %end = f32[11]{0} get-tuple-element(%w), index=1
}
"""


def test_what_a_program_exchanges():
    assert exchanged_bytes(HLO) == {
        # 3 x 5 times 11 numbers in the loops; 6 + 5 halves; 13 in two parts;
        # 19 in a computation that starts here and ends there.
        "all-reduce": (15 + 1 + 1 + 1, 15 * 44 + 24 + 10 + 52 + 76),
        "all-gather": (1 + 1, 136 + 72),  # the second in a branch
        "reduce-scatter": (1, 28),
    }


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[]", 4),
        ("f32[2,3]{1,0:T(8,128)(2,1)S(1)}", 24),
        ("(bf16[5]{0}, pred[7], u8[3])", 10 + 7 + 3),
        ("f8e4m3fn[11]", 11),
        ("token[]", 0),
    ],
)
def test_bytes_of_a_shape(shape, size):
    assert array_bytes(shape) == size


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("Used 29.89G of 15.75G hbm. Exceeded hbm", int(29.89 * GIB)),
        ("HLO temporaries (512.5M) exceeds available HBM (15.75G)",
         int(512.5 * 2**20)),
        ("no room", None),
    ],
)  # fmt: skip
def test_what_the_compiler_says(message, size):
    assert needed_bytes(f"RESOURCE_EXHAUSTED: XLA:TPU: {message}") == size


@pytest.mark.parametrize(
    ("name", "spec", "chips", "devices", "gib"),
    [
        ("v3-8", "v3:2x2", 4, 8, 16),
        ("v3-128", "v3:8x8", 64, 128, 16),
        ("v4-32", "v4:2x2x4", 16, 16, 32),
        ("v5e-1", "v5e:1x1", 1, 1, 16),
        ("v5p-8", "v5:2x2x1", 4, 4, 95),
        ("v6e-256", "v6e:16x16", 256, 256, 32),
    ],
)
def test_names_of_slices(name, spec, chips, devices, gib):
    topology = topology_of(name)
    assert (topology.spec, topology.chips) == (spec, chips)
    assert topology.devices == devices
    assert topology.device_memory == gib * GIB
    assert ("chips_per_host_bounds" in topology.options) == (chips == 1)


@pytest.mark.parametrize("task", ["sop", "nsp", "none"])
@pytest.mark.parametrize("pack", [False, True])
def test_the_batch_is_that_of_the_data(task, pack):
    """It has the shapes and types of `build_batch`, as TensorFlow traces it."""
    tf = pytest.importorskip("tensorflow")
    from keras_albert.pretraining.masking import ExampleBatch, build_batch

    sizes = {"sequence_length": 41, "max_predictions": 5, "max_examples": 3}
    examples = ka.ExampleConfig(**sizes, sentence_task=task, pack=pack)
    many = None if pack else 7

    def batch(*parts):
        batch = ExampleBatch(*parts)
        if not pack:
            batch = batch._replace(counts=None)
        return build_batch(batch, np.ones(97, bool), examples)

    def described(parts):
        return [
            {
                name: (each.shape, keras.backend.standardize_dtype(each.dtype))
                for name, each in part.items()
            }
            for part in parts
        ]

    traced = tf.function(batch).get_concrete_function(
        tf.TensorSpec((many, 39), tf.int32),
        tf.TensorSpec((many, 2), tf.int32),
        tf.TensorSpec((many,), tf.int32),
        tf.TensorSpec((many,), tf.float32),
        tf.TensorSpec((many,), tf.uint64),
        tf.TensorSpec((7,), tf.int32),
    )
    expected = described(traced.structured_outputs)
    assert described(batch_spec(examples, 7)) == expected


def test_which_weights_are_cut():
    """The axis that is divided is the one of the model's devices."""
    pytest.importorskip("jax")
    from keras_albert.distribution.jax_mesh import layout_map

    model = ka.AlbertForPretraining(ka.AlbertBackbone(TINY))
    layouts = layout_map(None)
    weights = own_paths(model, model.trainable_variables)
    cut = {
        name: layouts[weight.path].axes
        for name, weight in weights.items()
        if layouts[weight.path] is not None
    }
    block = "encoder/group_0_block_0"
    first = [f"{block}/attention/{name}" for name in ("query", "key", "value")]
    first.append(f"{block}/feed_forward/intermediate")
    assert cut == {
        **{f"{name}/kernel": (None, "model") for name in first},
        **{f"{name}/bias": ("model",) for name in first},
        f"{block}/attention/output/kernel": ("model", None),
        f"{block}/feed_forward/output/kernel": ("model", None),
    }


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["2", "2"], id="model, accumulated"),
        pytest.param([], id="data"),
    ],
)
@pytest.mark.proof
def test_the_step_is_what_fit_runs(arguments, tiny):
    """Both programs are made in a process with four devices."""
    pytest.importorskip("jax")
    program = sys.executable, Path(__file__).with_name("fit_step.py")
    folder = tiny.config.parent
    said = output_of(*program, tiny.config, *arguments, cwd=folder)
    assert said.startswith("same "), said


# The search.


def test_sizes_that_are_tried():
    sizes = [*map(size_at, range(10))]
    assert sizes == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


@hypothesis.given(st.integers(0, 700), st.integers(1, 2000))
def test_the_largest_that_fits(limit, guess):
    """Any guess leads to it; from a near one, the next size does not fit."""
    tried = []

    def fits(size):
        tried.append(size)
        return size <= limit

    good, bad = largest_that_fits(fits, guess)
    assert len(tried) == len(set(tried)) <= MOST_COMPILATIONS
    assert good == max([size for size in tried if size <= limit], default=0)
    assert bad == min([size for size in tried if size > limit], default=None)
    if limit / 4 <= guess <= 4 * limit:
        sizes = [size_at(place) for place in range(30)]
        assert sizes.index(bad) == sizes.index(good) + 1


def test_a_search_ends():
    good, bad = largest_that_fits(lambda size: True, 3)
    assert bad is None and good > 2**20


def test_a_guess():
    """The state is 12 bytes a parameter; 100 rows take 2 of 16 GiB more."""
    state = 12 * 10**9
    step = Compiled(10**9, 0, True, state + 2 * GIB, {}, 1.0)
    topology = topology_of("v5e-4")
    expected = int(100 * (16 * GIB - state) / (2 * GIB))
    assert guess_rows(RUN, topology, 100, step) == expected
    unknown = dataclasses.replace(step, memory=None)
    assert guess_rows(RUN, topology, 100, unknown) == 50
    # Of a model over two chips each has half of the state.
    halves = dataclasses.replace(RUN, model_parallel=2)
    step = dataclasses.replace(step, memory=state // 2 + 2 * GIB)
    expected = int(100 * (16 * GIB - state // 2) / (2 * GIB))
    assert guess_rows(halves, topology, 100, step) == expected


def test_what_is_printed(monkeypatch):
    """Two slices of four chips do 1.576 PFLOP a second."""
    monkeypatch.setattr(compiling.importlib.metadata, "version", "{} 1".format)
    run = dataclasses.replace(RUN, slices=2)
    exchanged = {"all-reduce": (2, 3 * 10**6)}
    step = Compiled(10, 788 * 10**9, True, GIB, exchanged, 1.0)
    assert compiling.lines_of(run, topology_of("v5e-4"), step) == [
        "base_v2: 10 parameters, mixed_bfloat16, scan, remat",
        "2 x v5e-4: 8 chips, a batch of 64 x 64 tokens, 8 rows to a chip",
        "memory:    1 of the 16 GiB of a chip: fits",
        "work:      0.788 TFLOP a step, 0.0005 s at the chips' bfloat16 peak",
        "exchanged: 3.0 MB a chip in 2 all-reduces",
        "compiled for, not run on, a TPU: 1 s, jax jax 1, libtpu libtpu 1",
    ]


@pytest.mark.parametrize("enough", [True, False])
def test_what_a_search_says(enough, monkeypatch, capsys):
    """A row of a chip takes 6 GiB: a batch of 8 on 4 chips 12, of 12 18."""

    def pretend(run):
        assert run.batch_size % 4 == 0
        memory = 6 * GIB * run.batch_size // 4
        fits = memory <= 16 * GIB
        return Compiled(0, 10**12, fits, memory, {}, 1.0)

    monkeypatch.setattr(compiling, "compiled", pretend)
    monkeypatch.setattr(compiling, "check_libtpu", lambda: None)
    monkeypatch.setattr(compiling.importlib.metadata, "version", str)
    run = dataclasses.replace(RUN, batch_size=4 if enough else 64, remat=False)
    if enough:
        compiling.compile_for_slice(run)
    else:
        with pytest.raises(ka.AlbertError) as stop:
            compiling.compile_for_slice(run)
        assert str(stop.value) == (
            "the step does not fit v5e-4: it needs 96 of the 16 GiB of a "
            "chip. Give --loop scan --remat, --accumulate 2, --batch-size 8, "
            "--model-parallel 2, or a larger slice."
        )
    out = capsys.readouterr().out
    assert "\nlargest batch that fits: 8 (12 does not)\n" in out
    assert ("memory:    6 of the 16 GiB of a chip: fits" in out) == enough


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batch_size": 4}, "a smaller --batch-size, --model-parallel 2,"),
        ({"topology": "v5e-1"}, "--accumulate 2, a smaller --batch-size,"),
    ],
)
def test_a_remedy_is_no_mistake(changes, expected):
    """The command refuses parts of a row, and devices that do not exist."""
    run = dataclasses.replace(RUN, **changes)
    remedy = compiling._remedy(run, compiling.topology_of(run.topology), None)
    assert remedy == f"Give {expected[:-1]}, or a larger slice."


# Mistakes.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topology": "v5e-17"}, "must be one of v3-8, .*, v6e-256. Received"),
        ({"batch_size": 66}, "multiple of the replicas, 4 on v5e-4"),
        ({"batch_size": 64, "slices": 3}, "12 on 3 x v5e-4"),
        ({"batch_size": 72, "accumulate": 4}, "Received: 72 / 4 = 18"),
        ({"model_parallel": 3}, "must divide the 4 devices of v5e-4"),
        ({"config": "nowhere.json"}, "nowhere.json: no such file"),
    ],
)
def test_options_that_do_not_fit(changes, message, monkeypatch):
    monkeypatch.setattr(compiling, "check_libtpu", lambda: None)
    monkeypatch.setattr(compiling, "compiled", compile_step)
    with pytest.raises(ka.AlbertError, match=message):
        compiling.compile_for_slice(dataclasses.replace(RUN, **changes))


def test_models_that_do_not_fit(tiny):
    TINY.replace(vocab_size=1000).to_json(tiny.config)
    longer = ka.ExampleConfig(sequence_length=128)
    for changes, message in (
        ({"model_parallel": 16}, "the model's num_attention_heads="),
        ({"examples": longer}, "the model.s max_position_embeddings=64"),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            compile_step(dataclasses.replace(tiny, **changes))


def test_without_libtpu(tiny, monkeypatch, capsys):
    def find(name):
        return None if name == "libtpu" else name

    monkeypatch.setattr(compiling.importlib.util, "find_spec", find)
    assert refused(capsys, "compile", "--remat", **options_of(tiny)) == (
        "error: compiling for a TPU needs libtpu, which is not installed. Run: "
        "pip install 'keras-albert[tpu-compile]'"
    )


def test_what_the_process_is_given_and_says(monkeypatch):
    """No settings of JAX and XLA; a mistake that it finds is one here."""

    def pretend(command, env, **options):
        assert env["JAX_PLATFORMS"] == "cpu" and env["HOME_OF_MINE"] == "here"
        assert not {"XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_X"} & env.keys()
        Path(command[-1]).write_text('{"error": "no such config"}')
        return subprocess.CompletedProcess(command, 0, b"", b"")

    given = ("HOME_OF_MINE", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_X")
    for name in (*given, "JAX_PLATFORMS"):
        monkeypatch.setenv(name, "here")
    monkeypatch.setattr(compiling.subprocess, "run", pretend)
    with pytest.raises(ka.AlbertError, match=r"^no such config$"):
        compiled(RUN)


def test_a_process_that_fails(monkeypatch):
    for code, error, message in (
        (-9, ka.AlbertError, "killed by signal 9"),
        (-6, RuntimeError, "ended by signal 6:\nsome traceback"),
        (1, RuntimeError, "failed:\nsome traceback"),
    ):
        done = subprocess.CompletedProcess([], code, b"", b"some traceback")
        monkeypatch.setattr(
            compiling.subprocess, "run", Mock(return_value=done)
        )
        with pytest.raises(error, match=message):
            compiled(RUN)


# What libtpu makes of it.

PARAMETER_BYTES = 4 * PARAMETERS


def check_numbers(run, step):
    """Checks a step that was compiled with undivided weights."""
    assert step.parameters == PARAMETERS
    assert step.flops == run.batch_size * FLOPS
    assert step.fits
    limit = topology_of(run.topology).device_memory
    # Weights and two moments of each, and what is computed.
    assert 3 * PARAMETER_BYTES < step.memory < limit
    if topology_of(run.topology).devices * run.slices == 1:
        assert not step.exchanged
        return
    # Chips of two slices first sum a share each, which they gather at the end.
    kind = "all-reduce" if run.slices == 1 else "all-gather"
    count, size = step.exchanged[kind]
    assert 1 <= count < 20
    # A gradient each, some of them in halves of the size.
    assert PARAMETER_BYTES / 2 < size < 2 * PARAMETER_BYTES


@needs_libtpu
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"topology": "v3-8"},
        pytest.param({"topology": "v4-8"}, marks=slow),
        pytest.param({"topology": "v5p-8"}, marks=slow),
        pytest.param({"topology": "v6e-4"}, marks=slow),
        pytest.param({"topology": "v5e-1", "batch_size": 16}, marks=slow),
        pytest.param({"topology": "v5e-256", "batch_size": 512}, marks=slow),
        pytest.param({"accumulate": 2}, marks=slow),
        {"slices": 2},
    ],
    ids=str,
)
def test_a_tiny_model(changes, tiny):
    run = dataclasses.replace(tiny, **changes)
    check_numbers(run, compiled(run))


@needs_libtpu
def test_too_large_a_batch(tiny, capsys):
    """The report is printed; then the command ends with status 2."""
    run = dataclasses.replace(tiny, batch_size=2**22)
    with pytest.raises(SystemExit, match="2"):
        command("compile", "--remat", "--no-search", **options_of(run))
    out, err = capsys.readouterr()
    assert f"{PARAMETERS:,} parameters" in out
    assert "DOES NOT FIT" in out and "largest" not in out
    assert "error: the step does not fit v5e-4: it needs " in err
    assert "Give --accumulate 2, a smaller --batch-size, --model" in err


@slow
@needs_libtpu
def test_the_largest_batch(tiny, capsys):
    """The batch that is named fits, and the next size does not."""
    run = dataclasses.replace(tiny, batch_size=2**22)
    with pytest.raises(SystemExit):
        command("compile", "--remat", **options_of(run))
    out, err = capsys.readouterr()
    (found,) = re.findall(
        r"largest batch that fits: ([\d,]+) \(([\d,]+) does not\)", out
    )
    largest, next_one = (int(each.replace(",", "")) for each in found)
    assert f"--batch-size {largest}" in err
    sizes = [4 * size_at(place) for place in range(60)]
    assert sizes.index(next_one) == sizes.index(largest) + 1
    assert compiled(dataclasses.replace(run, batch_size=largest)).fits


@slow
@needs_libtpu
def test_base_without_remat_does_not_fit():
    """Each chip has 128 rows of 512 tokens."""
    run = CompileRun(
        topology="v5e-16", batch_size=2048, precision="mixed_bfloat16"
    )
    assert not compiled(run).fits
    less = dataclasses.replace(run, loop="scan", remat=True)
    assert compiled(less).fits
