"""Shared fixtures. One backend a process: set KERAS_BACKEND."""

import contextlib
import functools
import gc
import importlib
import importlib.util
import os
import random
import re
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest

import keras_albert as ka  # imports what is used, when it is used

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
DATA = Path(__file__).parent / "data"
# In `make proof`: more examples of each property, and TensorFlow rewrites
# graphs, as it does for users.
PROOF = bool(os.environ.get("KERAS_ALBERT_PROOF"))
_EXAMPLES = 150 if PROOF else 30
# No test is about time, and these machines have other work.
hypothesis.settings.register_profile(
    "untimed", deadline=None, max_examples=_EXAMPLES
)
hypothesis.settings.load_profile("untimed")


def pytest_configure(config):
    """Imports PyTorch, which must precede TensorFlow, and prepares TensorFlow.

    Both are imported in every process that runs tests, where they are
    installed: comparisons with transformers need PyTorch on every backend, and
    every backend reads its data with TensorFlow. The process that only hands
    out the tests goes without.

    Python's garbage collector is off until pytest has imported all test files
    (`pytest_collection_finish`): imports create almost no garbage, and to
    search for it takes a fifth of their time.
    """
    runs_tests = hasattr(config, "workerinput") or not getattr(
        config.option, "numprocesses", None
    )
    if runs_tests:
        gc.disable()
    if runs_tests and importlib.util.find_spec("torch") is not None:
        import torch  # noqa: F401
    if runs_tests and not PROOF:
        _rewrite_graphs(False)
        if os.environ.get("KERAS_BACKEND") == "jax":
            _share_compiler_context()


def pytest_collection_finish():
    """Collects garbage again, but not among what was imported."""
    gc.freeze()
    gc.enable()


FIRST_MARK = re.compile(
    r"^pytestmark = (?:\[\s*)?pytest\.mark\.(any_backend|on_torch)", re.M
)


def pytest_ignore_collect(collection_path, config):
    """Leaves out files of which no test is to run: they take long to import.

    Of the files given on the command line, pytest wants to see each.
    """
    if collection_path.suffix != ".py" or collection_path.name in {
        Path(each).name for each in config.args
    }:
        return None
    mark = FIRST_MARK.search(collection_path.read_text())
    return bool(mark and f"not {mark[1]}" in config.option.markexpr) or None


def pytest_collection_modifyitems(items):
    """Puts large files first, and refuses two marks at once.

    Large files take longest, as a rule: in this order the two processes of
    `make test` end at about the same time. A test that is marked `any_backend`
    and `on_torch` would run on no backend there.
    """
    items.sort(key=lambda item: (-item.path.stat().st_size, item.path))
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if {"any_backend", "on_torch"} <= marks:
            raise pytest.UsageError(
                f"{item.nodeid} is marked any_backend and on_torch: choose one"
            )


@pytest.fixture(scope="module", autouse=True)
def same_fixtures():
    """Fixtures of a module draw the same random weights in every session."""
    _seed_all()


@pytest.fixture(autouse=True)
def same_numbers():
    """A test draws the same random numbers whichever tests ran before it."""
    _seed_all()


def _seed_all() -> None:
    """Sets the seeds from which Keras, NumPy and PyTorch draw.

    Not with `keras.utils.set_random_seed`: TensorFlow then forgets all kernels,
    and to make them again takes a fifth of the time of the tests.
    """
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def short_collections():
    """Keras collects garbage for each layer that it quantizes.

    Through all that three backends have imported, and what earlier tests have
    traced, that takes a third of a second and more: leave those objects out.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def steps_alone():
    """Runs in this process leave out what takes longer than their steps.

    They draw no curves, and do not measure how fast the device is.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_albert.training.loop.draw_curves", lambda *_: None)
        for run in ("finetuning.data", "pretraining.run"):
            measured = f"keras_albert.{run}.matrix_product_peak"
            patch.setattr(measured, lambda _: 1e12)
        yield


@pytest.fixture
def small_disk():
    """small_disk(size): files cannot grow beyond it, as on a full disk.

    It ends with the block, before pytest writes to a file of its own.
    """
    resource = pytest.importorskip("resource")

    @contextlib.contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def eagerly():
    """See `small.op_by_op`."""
    from small import op_by_op

    with op_by_op():
        yield


def _rewrite_graphs(wanted: bool) -> None:
    """Switches on or off that TensorFlow rewrites graphs before they first run.

    For users it is on (Grappler). Most tests switch it off, as it takes longer
    than their few steps.
    """
    if importlib.util.find_spec("tensorflow") is not None:
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": not wanted}
        )


def _share_compiler_context() -> None:
    """Makes JAX reuse one MLIR context for all programs that it compiles.

    By default it creates one for each program, which takes longer than to
    translate the thousands of small programs of these tests. The function is
    replaced in JAX's private module, as JAX itself calls it there.
    """
    mlir = importlib.import_module("jax._src.interpreters.mlir")
    if hasattr(mlir, "make_ir_context"):
        mlir.make_ir_context = functools.cache(mlir.make_ir_context)


@pytest.fixture
def rewritten_graphs():
    """TensorFlow rewrites graphs, as it does for users and in `make proof`."""
    _rewrite_graphs(True)
    yield
    _rewrite_graphs(PROOF)


@pytest.fixture
def few_signatures(monkeypatch):
    """few_signatures(*names): of a SavedModel only these are traced.

    On other backends a worker traces them, and it traces all.
    """
    pytest.importorskip("tensorflow_text")
    import keras

    def keep(*names):
        if keras.backend.backend() == "tensorflow":
            path = "keras_albert.exports.saved_model.signatures"
            module = importlib.import_module(path)
            only = functools.partial(module.serving_module, only={*names})
            monkeypatch.setattr(module, "serving_module", only)

    return keep


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real data and golden outputs that are not part of the repository."""
    folder = os.environ.get("KERAS_ALBERT_DATA")
    if not folder:
        pytest.skip("set KERAS_ALBERT_DATA to the folder of real data")
    return Path(folder)


@pytest.fixture(scope="session")
def tiny_lines() -> list[str]:
    """600 English-like sentences with numbers, capitals and punctuation."""
    rng = random.Random(7)
    subjects = ["The fox", "A dog", "My uncle", "Élodie", "The committee"]
    verbs = ["chased", "found", "sold", "painted", "remembered"]
    objects = ["two hens", "the old barn", "a letter", "nothing", "£9 of tea"]
    lines = []
    for _ in range(600):
        year = rng.randrange(1900, 2000)
        place = rng.choice(["London", "Prague", "the village", "São Paulo"])
        lines.append(
            f"{rng.choice(subjects)} {rng.choice(verbs)} "
            f"{rng.choice(objects)} in {year}, near {place} "
            f"({rng.randrange(100)} miles away)."
        )
    return lines


@pytest.fixture(scope="session")
def tiny_vocab(tmp_path_factory, tiny_lines) -> Path:
    """Folder of a vocabulary of 160 pieces for `tiny_lines`.

    The pieces, and their log-probabilities, are those that SentencePiece 0.2.1
    finds in the lines. Other releases find other ones, and tests expect these.
    """
    from sentencepiece import sentencepiece_model_pb2
    from written_texts import trained_vocab

    folder = trained_vocab(tmp_path_factory.mktemp("tiny"), tiny_lines, 160)
    path = folder / "spiece.model"
    model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    lines = (DATA / "tiny_vocab.tsv").read_text(encoding="utf-8").splitlines()
    for found, line in zip(model.pieces, lines, strict=True):
        found.piece, score = line.split("\t")
        found.score = float(score)
    path.write_bytes(model.SerializeToString())
    return folder


@pytest.fixture(scope="session")
def pretrained_folder(tmp_path_factory, tiny_vocab) -> Path:
    """A model of one layer and 40 positions that was never trained."""
    import keras

    from keras_albert.training.model_folder import ModelFolder

    tokenizer = ka.Tokenizer(tiny_vocab)
    config = ka.AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        initializer_range=0.3,
    )
    keras.utils.set_random_seed(0)  # the same in every session
    model = ka.AlbertForPretraining(ka.AlbertBackbone(config))
    folder = tmp_path_factory.mktemp("pretrained")
    task = {"task": "pretraining", "examples": {}}
    ModelFolder(model, tokenizer, task).save(folder)
    return folder


@pytest.fixture(scope="session")
def digit_comma_vocab(tmp_path_factory) -> Path:
    """A vocabulary with "9,", "▁9,", "1990," and "▁1990," among its pieces."""
    from written_texts import trained_vocab

    rng = random.Random(11)

    def letters(n):
        return "".join(rng.choice("abcdefghijklm") for _ in range(n))

    lines = [
        f"in 1990,{letters(2)} x1990,{letters(1)} a9,{letters(1)} 9, "
        f"9,{letters(1)} 42,{letters(1)} b42,{letters(1)} ({letters(3)})"
        for _ in range(600)
    ]
    return trained_vocab(tmp_path_factory.mktemp("digit_comma"), lines, 50)
