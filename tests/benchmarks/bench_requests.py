"""How many requests a second a server can answer, beside transformers.

    make bench        (or: python tests/benchmarks/bench_requests.py --help)

One classifier with random weights: `saved_model` is this package's export, run
from strings to labels by TensorFlow's C library alone, as TensorFlow Serving
runs it; `torch` is the eager model of transformers (sdpa, inference mode), and
`onnxruntime` what torch.onnx.export makes of it, in ONNX Runtime. Both peers
have the fast tokenizer of transformers, and pad to the longest text of a call.
All have the same weights, texts and number of threads, and their answers are
compared first.

Each client sends a text, waits for its answer, and sends the next one. Either
all texts that wait are answered together, 32 at most, as a server does that
batches requests; or each is answered alone, when it comes, by a runtime that
has a thread for each core, or a single thread for each request. Every side is
shown with the way in which it answers most requests a second. Sides are
measured in turn, and the ratio of ours to the peer's is taken in each round:
above 1 ours is faster.
"""

import argparse
import concurrent.futures
import contextlib
import importlib.util
import itertools
import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_examples import write_text
from bench_export import PEERS, default_vocab, peers_parser, prepare, with_sides
from bench_finetune import SIZES
from bench_model import installed, machine
from pairing import (
    PairedTimes,
    at_least,
    in_process,
    new_process,
    print_table,
    quartiles,
    write_report,
)

from keras_albert.errors import AlbertError

OURS = "saved_model"
TOGETHER, ALONE, ONE_THREAD = "together", "alone", "alone, 1 thread"
WAYS = (TOGETHER, ALONE, ONE_THREAD)
MOST = 32  # texts that are answered together
LENGTH = 128  # most tokens of a text
TOLERANCE = 1e-3  # absolute, float32, log-probabilities
TEXTS = Path("glue", "SST-2", "dev.tsv")

Answer = Callable[[list[str]], np.ndarray]
"""from texts to log-probabilities [B, C]"""


def main(arguments: list[str] | None = None) -> int:
    """Runs it; returns the exit status."""
    options = parser().parse_args(arguments)
    options.peers = [x for x in options.peers if installed(*PEERS[x], x)]
    if not options.peers or not installed(
        "tensorflow_text", "tensorflow-text", OURS
    ):
        print("error: nothing is left to measure, see above.", file=sys.stderr)
        return 2
    report = machine() | {"size": options.size, "threads": options.threads}
    try:
        with tempfile.TemporaryDirectory() as folder:
            report["lines"] = measured(options, Path(folder))
    except AlbertError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_report(options, report)
    print_report(report)
    return 0


def parser() -> argparse.ArgumentParser:
    """The options; their defaults are what `make bench` runs."""
    result = peers_parser(__doc__, pairs=5)
    add, count = result.add_argument, at_least(1)
    add("--clients", nargs="+", type=count, default=[1, 8, 64], help="at once")
    add("--requests", type=count, default=128, help="of a measurement")
    add(
        "--texts",
        type=Path,
        help="a text a line; default: SST-2's dev texts in KERAS_ALBERT_DATA, "
        "or else lines of Python's reference",
    )
    return result


def measured(options: argparse.Namespace, folder: Path) -> list[dict]:
    """The lines of the report. Each side has a process of its own."""
    options.vocab = options.vocab or default_vocab(folder)
    texts = read_texts(options.texts, folder)
    print(f"exporting {options.size} ...", flush=True)
    exports = argparse.Namespace(
        **vars(options), ours=["text"], weights=["float32"], lengths=[LENGTH]
    )
    if options.size == "tiny":
        exports.lengths = [SIZES["tiny"].max_position_embeddings]
    ready = prepare, options.threads, with_sides
    in_process(*ready, "export_all", exports, folder)
    lines = []
    with SideProcesses([OURS, *options.peers], options, folder) as sides:
        check_same(sides, texts[:MOST])
        for clients in options.clients:
            print(f"{clients} clients ...", flush=True)
            found = {name: {way: [] for way in WAYS} for name in sides.names}
            for turn in range(options.pairs + 1):
                order = sides.names if turn % 2 else sides.names[::-1]
                for name, way in itertools.product(order, WAYS):
                    times = sides.call(
                        *(name, way, _requests, way, clients),
                        *(texts, options.requests),
                    )
                    if turn:  # the first one warms up
                        found[name][way].append(times)
            lines += lines_of(clients, found)
    return lines


def read_texts(path: Path | None, folder: Path) -> list[str]:
    """The texts of the requests, in an order without meaning."""
    data = os.environ.get("KERAS_ALBERT_DATA")
    if path is None and data and (Path(data) / TEXTS).is_file():
        rows = (Path(data) / TEXTS).read_text(encoding="utf-8").splitlines()
        texts = [row.rpartition("\t")[0] for row in rows[1:]]
    else:
        if path is None:
            path = folder / "reference.txt"
            write_text(path, copies=1)
        texts = path.read_text(encoding="utf-8").split("\n")
    texts = [text.strip() for text in texts if text.strip()]
    np.random.default_rng(0).shuffle(texts)
    return texts


class SideProcesses(contextlib.ExitStack):
    """Two processes for each side, which keep its model.

    One has all threads; the other has a single one, for `ONE_THREAD`.
    """

    def __init__(self, names: list[str], options, folder: Path):
        super().__init__()
        self.names = names
        self._pools = {
            (name, single): self.enter_context(
                new_process(_load, name, folder, threads)
            )
            for name in names
            for single, threads in ((False, options.threads), (True, 1))
        }

    def call(self, name: str, way: str, function: Callable, *arguments):
        """The result of a function of this module in a side's process."""
        pool = self._pools[name, way == ONE_THREAD]
        return pool.submit(function, *arguments).result()


def check_same(sides: SideProcesses, texts: list[str]) -> None:
    """AlbertError unless all sides give the same answers."""
    expected = sides.call(OURS, TOGETHER, _answers, texts)
    for name, way in itertools.product(sides.names, (TOGETHER, ONE_THREAD)):
        found = sides.call(name, way, _answers, texts)
        difference = float(np.abs(found - expected).max())
        if not difference <= TOLERANCE:
            raise AlbertError(
                f"all sides must give the same, to {TOLERANCE}. Received: "
                f"{name} differs by up to {difference:.2g}. Give all the same "
                "weights."
            )


def lines_of(clients: int, found: dict) -> list[dict]:
    """Each peer beside ours, both in the way that suits them best."""
    best = {
        name: max(ways, key=lambda way: _median_rate(ways[way]))
        for name, ways in found.items()
    }

    def of(name: str, who: str) -> dict:
        times = found[name][best[name]]
        waits = np.concatenate([each["waits"] for each in times]) * 1000
        low, high = np.percentile(waits, (50, 99)).tolist()
        return {
            f"{who}_way": best[name],
            f"{who}_rate": _median_rate(times),
            f"{who}_p50_ms": low,
            f"{who}_p99_ms": high,
            f"{who}_rates": [each["rate"] for each in times],
        }

    lines = []
    for peer in found.keys() - {OURS}:
        line = {"clients": clients, "peer": peer}
        line |= of(OURS, "ours") | of(peer, "peer")
        rates = PairedTimes(line["ours_rates"], line["peer_rates"])
        lines.append(line | rates.ratios())
    return sorted(lines, key=lambda line: line["peer"])


def _median_rate(times: list[dict]) -> float:
    return float(np.median([each["rate"] for each in times]))


def print_report(report: dict) -> None:
    """A line for each number of clients and peer."""
    titles = ("clients", "peer", "ours / peer", "quartiles")
    titles += ("req/s", "p50 ms", "p99 ms", "", "peer req/s", "p50 ms")
    rows = []
    for line in report["lines"]:
        shown = [line["clients"], line["peer"], f"{line['ratio']:.2f}"]
        shown.append(quartiles(line, 2))
        for who in ("ours", "peer"):
            shown += [
                f"{line[f'{who}_rate']:.1f}",
                f"{line[f'{who}_p50_ms']:.0f}",
                f"{line[f'{who}_p99_ms']:.0f}",
                line[f"{who}_way"],
            ]
        rows.append(shown)
    print_table((*titles, "p99 ms", ""), rows)


# In the process of a side.


_side: list[Answer] = []


def _load(name: str, folder: Path, threads: int) -> None:
    prepare(threads)
    if name == OURS:
        _side.append(saved_model_answers(folder))
    else:
        _side.append(peer_answers(name, folder, threads))


def _answers(texts: list[str]) -> np.ndarray:
    return _side[0](texts)


def _requests(way: str, clients: int, texts: list[str], count: int) -> dict:
    """Answers a second, and how long each request waited, in seconds."""
    answer = _side[0]
    together = Together(answer) if way == TOGETHER else None
    ask = together.ask if together else lambda text: answer([text])
    waits, upcoming = [], iter(itertools.islice(itertools.cycle(texts), count))
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                text = next(upcoming, None)
            if text is None:
                return
            start = time.perf_counter()
            ask(text)
            waits.append(time.perf_counter() - start)

    start = time.perf_counter()
    try:
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            for running in [pool.submit(client) for _ in range(clients)]:
                running.result()
        seconds = time.perf_counter() - start
    finally:
        if together:  # its thread would keep the process
            together.end()
    return {"rate": count / seconds, "waits": waits}


class Together:
    """Answers all texts that wait at once, as soon as the model is free."""

    def __init__(self, answer: Answer):
        self._answer = answer
        self._waiting = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def ask(self, text: str) -> np.ndarray:
        """Waits for the answer to a text."""
        future = concurrent.futures.Future()
        self._waiting.put((text, future))
        return future.result()

    def end(self) -> None:
        """Ends the thread, when no text is waiting."""
        self._waiting.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (first := self._waiting.get()) is not None:
            requests = [first]
            while len(requests) < MOST and not self._waiting.empty():
                requests.append(self._waiting.get())
            try:
                answers = self._answer([text for text, _ in requests])
            except Exception as error:  # for the clients, who would wait
                for _, future in requests:
                    future.set_exception(error)
                continue
            for (_, future), each in zip(requests, answers, strict=True):
                future.set_result(each)


def saved_model_answers(folder: Path) -> Answer:
    """Our export, in TensorFlow's C library."""
    sys.path.append(str(Path(__file__).parents[1]))
    from capi import SavedModel

    found = importlib.util.find_spec("tensorflow").origin
    model = SavedModel(folder / "saved_model-float32/1", Path(found).parents[1])

    def answer(texts: list[str]) -> np.ndarray:
        strings = np.array([text.encode() for text in texts], object)
        outputs = model.run("serving_default", {"text": strings})
        return np.log(outputs["probabilities"])

    return answer


def peer_answers(name: str, folder: Path, threads: int) -> Answer:
    """A peer of bench_export.py behind the tokenizer of transformers.

    It pads to the longest text.
    """
    import transformers
    from export_sides import HUGGING_FACE, make_side

    theirs = folder / HUGGING_FACE
    tokenizer = transformers.AutoTokenizer.from_pretrained(theirs)
    config = json.loads((theirs / "config.json").read_text())
    options = {
        "padding": True,
        "truncation": True,
        "max_length": min(LENGTH, config["max_position_embeddings"]),
        "return_tensors": "np",
    }

    def read(texts: list[str]) -> dict[str, np.ndarray]:
        return dict(tokenizer(texts, **options))

    return make_side(name, folder, "float32", threads, read=read)


if __name__ == "__main__":
    sys.exit(main())
