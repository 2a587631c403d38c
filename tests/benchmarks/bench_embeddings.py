"""How long vectors of many sentences take, beside sentence-transformers.

    python tests/benchmarks/bench_embeddings.py --help

The same random weights of ALBERT-base on both sides, the sentences of SST-2's
training file (whole ones come first and last, all lengths), from strings to
vectors, by `encode` of this package on each backend and by
`SentenceTransformer.encode` on PyTorch, both with batches of 32. With --onnx
ours is an export in ONNX Runtime, from strings, too, as `keras-albert embed`
runs it. On a GPU both sides compute there: `--device gpu`.

Sides are called in turn, and the ratio peer / ours is taken in each pair of
calls: above 1 ours is faster. That vectors agree is checked first: 99.9 % of
them to 2e-5 in float32, and all to a cosine of 0.98 with int8 weights.

The data are what --data or KERAS_ALBERT_DATA names: glue/SST-2/train.tsv and
vocab/30k-clean.model.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from bench_model import DEVICES, machine
from pairing import benchmark_parser, paired_times, write_report

BATCH_SIZE = 32
LEAST_COSINE = 0.98  # of int8
# The share of equal vectors. Of 67,349 texts, 5 have two segmentations of equal
# probability, and the library `tokenizers` takes another one there.
LEAST_EQUAL = 0.999


def main(arguments: list[str] | None = None) -> int:
    """Runs it; returns the exit status."""
    options = parser().parse_args(arguments)
    if options.data is None:
        print(
            "vectors are left out: they need SST-2 and the released "
            "vocabulary; name their folder with --data or KERAS_ALBERT_DATA"
        )
        return 0
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.update(DEVICES[options.device])
    about = machine()
    line = compare(options)
    print(
        f"{line['side']}: {line['sentences']:,} sentences, "
        f"{line['ours_ms'] / 1e3:.1f} s, sentence-transformers "
        f"{line['peer_ms'] / 1e3:.1f} s: {1 / line['ratio']:.2f} x as fast "
        f"(quartiles {1 / line['ratio_quartiles'][1]:.2f} to "
        f"{1 / line['ratio_quartiles'][0]:.2f})"
    )
    write_report(options, about | {"lines": [line]})
    return 0


def parser() -> argparse.ArgumentParser:
    """The options; the backend is that of KERAS_BACKEND, else PyTorch."""
    result = benchmark_parser(__doc__, pairs=5)
    add = result.add_argument
    known = os.environ.get("KERAS_ALBERT_DATA")
    add("--data", type=Path, default=known and Path(known))
    add("--sentences", type=int, default=10_000)
    add("--layers", type=int, default=12, help="of ALBERT-base")
    add("--device", choices=list(DEVICES), default="cpu")
    add(
        "--onnx",
        choices=["float32", "int8"],
        help="ours as an ONNX file with such weights",
    )
    return result


def sentences_of(folder: Path, count: int) -> list[str]:
    """Sentences of the training file, evenly spread, without the labels."""
    path = folder / "glue" / "SST-2" / "train.tsv"
    lines = path.read_text("utf-8").splitlines()[1:]
    chosen = np.linspace(0, len(lines) - 1, count).astype(int)
    return [lines[i].split("\t")[0] for i in chosen]


def compare(options: argparse.Namespace) -> dict:
    """Times both sides; returns a line of the report."""
    from sentence_transformers import SentenceTransformer

    import keras_albert as ka

    vocab = options.data / "vocab" / "30k-clean.model"
    config = ka.VARIANTS["base_v2"].replace(num_hidden_layers=options.layers)
    backbone = ka.AlbertBackbone(config, tokenizer=ka.Tokenizer(vocab))
    model = ka.AlbertForTextEmbedding(backbone)
    texts = sentences_of(options.data, options.sentences)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        ka.save_sentence_transformers(model, folder / "theirs")
        theirs = SentenceTransformer(
            str(folder / "theirs"),
            device="cuda" if options.device == "gpu" else "cpu",
        )
        encode, side = model.encode, os.environ["KERAS_BACKEND"]
        if options.onnx:
            encode = onnx_encoder(model, options.onnx, folder)
            side = f"ONNX {options.onnx}"

        def ours():
            return encode(texts, batch_size=BATCH_SIZE)

        def peer():
            options = {"batch_size": BATCH_SIZE, "normalize_embeddings": True}
            return theirs.encode(texts, **options)

        # Also the warm-up: it compiles and allocates for all lengths.
        check_same(ours(), peer(), int8=options.onnx == "int8")
        times = paired_times(ours, peer, options.pairs)
    return {"side": side, "sentences": len(texts), **times.summary()}


def onnx_encoder(model, weights: str, folder: Path):
    """A function as `encode`, of the model's ONNX file."""
    import keras_albert as ka
    from keras_albert.distribution.config import available_cores
    from keras_albert.exports.load import load_exported
    from keras_albert.modeling.pooling import normalized

    ka.Predictor(model).save(folder / "model")
    options = {"format": "onnx", "weights": weights, "force": True}
    ka.export(folder / "model", folder / "onnx", **options)
    predictor = load_exported(folder / "onnx", available_cores())

    def encode(texts, batch_size):
        return normalized(predictor.predict(texts, batch_size=batch_size))

    return encode


def check_same(ours: np.ndarray, theirs: np.ndarray, int8: bool) -> None:
    """Raises ValueError unless the vectors, of length 1, agree."""
    if int8:
        lowest = (ours * theirs).sum(axis=1).min()
        if lowest < LEAST_COSINE:
            raise ValueError(f"a cosine is only {lowest:.4f}")
        return
    close = np.isclose(ours, theirs, rtol=2e-5, atol=2e-5).all(axis=1)
    if close.mean() < LEAST_EQUAL:
        raise ValueError(f"only {close.mean():.2%} of the vectors agree")


if __name__ == "__main__":
    sys.exit(main())
