"""What runs: exports of this package, transformers, and its own export.

Letters: B rows, S tokens, C labels, R rounds.
"""

import argparse
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch  # before Keras: it must precede TensorFlow in a process
from bench_export import ONLY_FLOAT32
from bench_finetune import SIZES
from finetune_sides import LABELS, TASK, classifier, scored_pieces
from pairing import CpuMeter, PairedTimes, warm_up
from scipy import special

import keras_albert as ka
from keras_albert.exports.config import ExportRun
from keras_albert.text.tokenizer import WORD_MARK

TOLERANCE = 1e-4  # absolute, float32, logits
SEED = 0
ERROR_TEXTS, ERROR_LENGTH = 64, 32
MODEL, HUGGING_FACE = "model", "huggingface"  # folders
PEER = "peer-{}.onnx"


@dataclasses.dataclass(frozen=True)
class Rows:
    """The same work for all sides."""

    texts: list[str]
    token_ids: np.ndarray
    """int32 [B, S], no padding"""


Side = Callable[[Rows], np.ndarray]
"""-> log-probabilities [B, C]: strings are answered with probabilities"""
log_softmax = functools.partial(special.log_softmax, axis=-1)


# The files, made in a process of their own.


def export_all(options: argparse.Namespace, folder: Path) -> None:
    """Every file that is to be measured, of one model."""
    from keras_albert.exports.run import export_run

    tokenizer = ka.Tokenizer(options.vocab)
    config = SIZES[options.size]
    if tokenizer.vocab_size > config.vocab_size:
        config = config.replace(vocab_size=tokenizer.vocab_size)
    longest = max(options.lengths)
    if longest > config.max_position_embeddings:
        raise ka.AlbertError(
            f"--size {options.size} has {config.max_position_embeddings} "
            f"positions. Received: --lengths {longest}. Give shorter ones."
        )
    texts = rows_of(tokenizer, ERROR_TEXTS, min(longest, ERROR_LENGTH)).texts
    model = classifier(config, tokenizer, texts)
    predictor = ka.Predictor(model, TASK, LABELS, tokenizer, (longest,))
    predictor.save(folder / MODEL)
    ka.save_huggingface(model, folder / HUGGING_FACE)
    formats = {"saved_model" if x == "text" else x for x in options.ours}
    for name, weights in itertools.product(sorted(formats), options.weights):
        if (name, weights) != ("saved_model", "int8"):
            output = folder / f"{name}-{weights}"
            export_run(
                ExportRun(folder / MODEL, output, name, weights, force=True)
            )
    if "onnxruntime" in options.peers:
        export_peer(folder, longest)


def export_peer(folder: Path, longest: int) -> None:
    """transformers' model through torch.onnx.export, and its quantized form."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = torch_model(folder)
    inputs = their_inputs(np.full((2, longest), 7))
    inputs = {name: torch.from_numpy(x) for name, x in inputs.items()}
    positions = model.config.max_position_embeddings
    sizes = {
        0: torch.export.Dim("batch", min=1, max=4096),
        1: torch.export.Dim("length", min=2, max=positions),
    }
    whole, ready, quantized = (
        folder / PEER.format(name) for name in ("float32", "ready", "int8")
    )
    with torch.no_grad():
        torch.onnx.export(
            model,
            kwargs=inputs,
            f=str(whole),
            dynamo=True,
            dynamic_shapes=dict.fromkeys(inputs, sizes),
            input_names=list(inputs),
            output_names=["logits"],
            external_data=False,
            verbose=False,
        )
    # Without pre-processing most kernels would stay float32: they are
    # transposed in the graph. With the shapes in the file quantization fails.
    graph = onnx.load(whole)
    del graph.graph.value_info[:]
    onnx.save(graph, ready)
    quant_pre_process(str(ready), str(ready), skip_symbolic_shape=True)
    quantize_dynamic(ready, quantized)


def their_inputs(ids: np.ndarray) -> dict[str, np.ndarray]:
    """What transformers calls them, int64 [B, S], for rows without padding."""
    ids = ids.astype("int64")
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }


def torch_model(folder: Path):
    """transformers' model."""
    import transformers

    return transformers.AlbertForSequenceClassification.from_pretrained(
        folder / HUGGING_FACE
    ).eval()


# The sides, each from its file.


def onnx_side(file: Path, weights: str, threads: int) -> Side:
    """Our file in ONNX Runtime."""
    from keras_albert.exports.onnx.format import run_onnx

    run = run_onnx(file, threads)
    return lambda rows: log_softmax(run(rows.token_ids)["logits"])


def litert_side(file: Path, weights: str, threads: int) -> Side:
    """Our file in LiteRT."""
    from keras_albert.exports.litert import run_litert

    run = run_litert(file, threads)
    return lambda rows: log_softmax(run(rows.token_ids)["logits"])


def saved_model_side(
    file: Path, weights: str, threads: int, from_texts: bool = False
) -> Side:
    """Our SavedModel; `bench_export.prepare` has set TensorFlow's threads."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401, its operations

    loaded = tf.saved_model.load(str(file))

    def call(rows: Rows) -> np.ndarray:
        if from_texts:
            ask = loaded.signatures["serving_default"]
            outputs = ask(text=tf.constant(rows.texts))
            return np.log(outputs["probabilities"].numpy())
        ask = loaded.signatures["token_ids"]
        outputs = ask(token_ids=tf.constant(rows.token_ids))
        return log_softmax(outputs["logits"].numpy())

    return call


def row_inputs(rows: Rows) -> dict[str, np.ndarray]:
    """What the peers read of rows."""
    return their_inputs(rows.token_ids)


def torch_side(
    file: Path, weights: str, threads: int, read: Callable = row_inputs
) -> Side:
    """transformers, eager; in int8 all Linear layers."""
    torch.set_num_threads(threads)
    model = torch_model(file.parents[1])
    if weights == "int8":
        model = torch.ao.quantization.quantize_dynamic(
            model, {torch.nn.Linear}, dtype=torch.qint8
        )

    def call(rows: Rows) -> np.ndarray:
        inputs = {name: torch.from_numpy(x) for name, x in read(rows).items()}
        with torch.inference_mode():
            return log_softmax(model(**inputs).logits.numpy())

    return call


def onnxruntime_side(
    file: Path, weights: str, threads: int, read: Callable = row_inputs
) -> Side:
    """transformers' own export in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        file, options, providers=["CPUExecutionProvider"]
    )

    def call(rows: Rows) -> np.ndarray:
        (logits,) = session.run(["logits"], read(rows))
        return log_softmax(logits)

    return call


# What a side reads, and what runs it.
SIDES = {
    "onnx": ("onnx-{}/model.onnx", onnx_side),
    "litert": ("litert-{}/model.tflite", litert_side),
    "saved_model": ("saved_model-{}/1", saved_model_side),
    "text": (
        "saved_model-{}/1",
        functools.partial(saved_model_side, from_texts=True),
    ),
    "torch": (f"{HUGGING_FACE}/model.safetensors", torch_side),
    "onnxruntime": (PEER, onnxruntime_side),
}


def make_side(
    name: str, folder: Path, weights: str, threads: int, **options
) -> Side:
    file, make = SIDES[name]
    return make(folder / file.format(weights), weights, threads, **options)


def rows_of(tokenizer: ka.Tokenizer, count: int, length: int) -> Rows:
    """Random words that are one piece each, as many as fill a row.

    So texts, and ids without padding, are the same rows.
    """
    words = [
        piece[1:]
        for piece, _ in scored_pieces(tokenizer)
        if piece[0] == WORD_MARK and piece[1:].isalpha()
    ]
    words = [word for word in words if len(tokenizer.encode(word)) == 1]
    if not words or length < 3:
        raise ka.AlbertError(
            "rows are made of words that are pieces, between [CLS] and [SEP]. "
            f"Received: {len(words)} words, {length} tokens a row. Use another "
            "--vocab, or --lengths of 3 or more."
        )
    rng = np.random.default_rng(SEED)
    texts = [" ".join(rng.choice(words, length - 2)) for _ in range(count)]
    packed = tokenizer(texts, max_length=length)
    ids = packed["token_ids"][:, :length]
    assert packed["padding_mask"].sum() == count * length, "a word is cut"
    return Rows(texts, ids.astype("int32"))


# Measuring, in a process of its own.


def compare(options: argparse.Namespace, folder: Path, weights: str) -> dict:
    """Sizes, errors and lines of one kind of weights."""
    tokenizer = ka.Tokenizer(options.vocab)
    names = [*options.ours, *options.peers]
    if weights == "int8":
        names = [name for name in names if name not in ONLY_FLOAT32]
    sides = {
        name: make_side(name, folder, weights, options.threads)
        for name in names
    }
    length = min(*options.lengths, ERROR_LENGTH)
    exact = make_side("torch", folder, "float32", options.threads)
    found = {
        "megabytes": {
            name: megabytes(folder / SIDES[name][0].format(weights))
            for name in names
            if name != "text" and (name, weights) != ("torch", "int8")
        },
        "errors": errors_of(
            sides, exact, rows_of(tokenizer, ERROR_TEXTS, length)
        ),
        "lines": [],
    }
    for batch, length in itertools.product(
        options.batch_sizes, options.lengths
    ):
        rows = rows_of(tokenizer, batch, length)
        if weights == "float32":
            check_same(sides, exact, rows)
        found["lines"] += [
            {"weights": weights, "batch": batch, "length": length} | line
            for line in lines_of(options, sides, rows)
        ]
    return found


def errors_of(
    sides: dict[str, Side], exact: Side, rows: Rows
) -> dict[str, float]:
    """Of each side, see `bench_export`.

    The difference of two log-probabilities is that of their logits.
    """

    wanted = np.diff(exact(rows))
    errors = {
        name: np.diff(side(rows)) - wanted for name, side in sides.items()
    }
    return {
        name: float(np.sqrt(np.mean(error**2)) / wanted.std())
        for name, error in errors.items()
    }


def check_same(sides: dict[str, Side], exact: Side, rows: Rows) -> None:
    """AlbertError unless all sides give the same, to TOLERANCE."""
    wanted = exact(rows)
    for name, side in sides.items():
        difference = float(np.abs(side(rows) - wanted).max())
        if not difference <= TOLERANCE:
            raise ka.AlbertError(
                f"all sides must give the same, to {TOLERANCE}. Received: "
                f"{name} differs by up to {difference:.2g}, with "
                f"{len(rows.texts)} rows of {rows.token_ids.shape[1]} tokens. "
                "Give all the same weights."
            )


def lines_of(
    options: argparse.Namespace, sides: dict[str, Side], rows: Rows
) -> list[dict]:
    """Each of ours beside each peer; all are called in the same R rounds."""
    for side in sides.values():
        warm_up(lambda side=side: side(rows))
    meter = CpuMeter()
    wall, cpu = times_in_turn(sides, rows, options.pairs)
    others = meter.others()
    return [
        {
            "ours": ours,
            "peer": peer,
            "others": others,
            **PairedTimes(wall[ours], wall[peer]).summary(),
            "cpu_ratio": PairedTimes(cpu[ours], cpu[peer]).summary()["ratio"],
            "ours_seconds": wall[ours],
            "peer_seconds": wall[peer],
        }
        for ours, peer in itertools.product(options.ours, options.peers)
        if ours in sides
    ]


def times_in_turn(
    sides: dict[str, Side], rows: Rows, rounds: int
) -> tuple[dict[str, tuple], dict[str, tuple]]:
    """Seconds, and the processor's, of each side in each round.

    In a random order each time: what a side leaves in caches should not always
    meet the same one. A side is called twice, and only its second call counts:
    the threads of the runtime before it may still be spinning during the first
    (those of ONNX Runtime do so for a while after a call).
    """
    wall, cpu = ({name: [] for name in sides} for _ in range(2))
    rng = np.random.default_rng(SEED)
    for _ in range(rounds):
        for name in rng.permutation(list(sides)).tolist():
            sides[name](rows)
            start, start_cpu = time.perf_counter(), time.process_time()
            sides[name](rows)
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - start_cpu)
    return wall, cpu


def megabytes(path: Path) -> float:
    """Of a file, or of all in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6
