"""How much faster training steps are when freed memory is kept.

    python tests/benchmarks/bench_memory.py --backends tensorflow jax torch

Each run is `keras-albert pretrain` of a model of 4 layers of 128 on the text
that every Python carries, in a process of its own: once as it is, and once
without `keep_freed_memory`, in turn. Prints tokens a second, the highest
resident memory, and the median of the ratios.
"""

import contextlib
import io
import json
import statistics
import sys
import tempfile
from pathlib import Path

from bench_model import use_backend
from pairing import benchmark_parser, in_process, resident, write_report

from keras_albert.corpus.config import PrepareRun, VocabRun
from keras_albert.corpus.prepare import prepare
from keras_albert.corpus.vocabulary import train_vocabulary

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = {
    "vocab_size": 4000,
    "embedding_size": 32,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 64,
}


def main() -> None:
    """Reads the arguments, runs all pairs, prints a table."""
    parser = benchmark_parser(__doc__, pairs=3)
    parser.add_argument("--backends", nargs="+", default=["tensorflow"])
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        for backend in options.backends:
            found = {"returned": [], "kept": []}
            for number in range(options.pairs):
                for mode, runs in found.items():
                    output = folder / f"{backend}-{mode}-{number}"
                    runs.append(
                        in_process(
                            *(use_backend, (backend, "cpu")),
                            *(run, folder, output, mode, options.steps),
                        )
                    )
            rows[backend] = found | ratios(found)
    print("| | tokens a second | with memory kept | ratio | memory |")
    print("|---|---|---|---|---|")
    for backend, row in rows.items():
        before, after = (
            statistics.median(each["tokens_per_second"] for each in row[mode])
            for mode in ("returned", "kept")
        )
        print(
            f"| {backend} | {before:,.0f} | {after:,.0f} | "
            f"{row['speed']:.2f} | {row['memory']:+.0%} |"
        )
    write_report(options, rows)


def make_data(folder: Path) -> None:
    """Token shards and a config."""
    sys.path.insert(0, str(EXAMPLES))
    import python_corpus

    python_corpus.main(folder / "text")
    text, vocab = (folder / "text" / "train.txt",), folder / "vocab"
    train_vocabulary(VocabRun(text, vocab, CONFIG["vocab_size"]))
    prepare(PrepareRun(text, vocab, folder / "shards"))
    (folder / "config.json").write_text(json.dumps(CONFIG))


def run(folder: Path, output: Path, mode: str, steps: int) -> dict:
    """Tokens a second, and the highest resident memory in bytes."""
    from keras_albert import cli

    if mode == "returned":
        cli.keep_freed_memory = lambda: None
    settings = {
        "data": folder / "shards",
        "config": folder / "config.json",
        "output": output,
        "batch-size": 32,
        "steps": steps,
        "warmup-steps": 1,
        "validate-every": steps,
        "examples.sequence-length": 64,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main(["pretrain", *(f"--{k}={v}" for k, v in settings.items())])
    report = json.loads((output / "report.json").read_text())
    return {
        "tokens_per_second": report["tokens_per_second"],
        "memory": resident("VmHWM"),
    }


def ratios(found: dict[str, list[dict]]) -> dict[str, float]:
    """The medians, over all pairs, of the speed and the growth of memory."""
    pairs = list(zip(found["returned"], found["kept"], strict=True))
    speed, memory = (
        statistics.median(b[name] / a[name] for a, b in pairs)
        for name in ("tokens_per_second", "memory")
    )
    return {"speed": speed, "memory": memory - 1}


if __name__ == "__main__":
    main()
