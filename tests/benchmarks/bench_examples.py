"""How fast pretraining examples are made, beside the reference's algorithm.

    make bench        (or: python tests/benchmarks/bench_examples.py --help)

Both sides make the published examples (20 predictions, n-grams up to 3) of the
same text, tokenized before. Ours are batches of `pretraining_dataset`, from
memory maps to tensors, after the first one. The peer is a
transcription of the reference's create_pretraining_data.py to plain Python
(tests/reference_examples.py), all documents in memory. As there, n is drawn by
np.random.choice, the characters of every piece are asked whether it starts a
word, and pieces become ids one by one; that it builds the sets of characters
for each piece anew, and writes TFRecords, is left out. Sides are called in
turn; the ratio is of the tokens that each makes in a second (padding does not
count), taken in each pair of calls; above 1 ours is faster. `cpu ratio` is the
same for seconds of the processor, which other work disturbs less. On one core,
both have that core; on more, the peer is still one process, as Python is.

Further lines have ours on both sides: examples that share rows (`pack`),
beside one a row. Of the second a part of all tokens is padding, `fill` is what
is not; each row of the first holds as many examples as the last column says.

`plan` is what must happen once an epoch before its first example: seconds for
a million of them, alone in their rows and sharing them.
"""

import argparse
import dataclasses
import itertools
import operator
import os
import random
import re
import statistics
import string
import sys
import tempfile
import time
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from bench_model import cpuinfo
from pairing import (
    CpuMeter,
    PairedTimes,
    benchmark_parser,
    in_process,
    in_turn,
    percent,
    print_table,
    quartiles,
    write_report,
)

import keras_albert as ka
from keras_albert.corpus.config import PrepareRun, VocabRun
from keras_albert.corpus.prepare import prepare
from keras_albert.corpus.vocabulary import train_vocabulary

TESTS = Path(__file__).parents[1]
KNOWN = frozenset(string.ascii_lowercase + string.punctuation)
PUNCTUATION = frozenset(string.punctuation)
COPIES = 20  # of the default text
PACKED = {"pack": True}


def main(arguments: list[str] | None = None) -> int:
    """Runs it; returns the exit status."""
    options = parser().parse_args(arguments)
    print(f"{os.cpu_count()} cores of {cpuinfo('model name')}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(options, Path(folder))
        report = {
            "lines": [],
            "packed": [],
            "plan_seconds": in_process(hold_cores, 1, time_planning, {}),
            "packed_plan_seconds": in_process(
                hold_cores, 1, time_planning, PACKED
            ),
        }
        for cores, length, (part, sides) in itertools.product(
            options.cores,
            options.lengths,
            [("lines", reference_sides), ("packed", packing_sides)],
        ):
            line = in_process(
                *(hold_cores, cores),
                *(compare, sides, shards, length, options),
            )
            report[part].append({"cores": cores} | line)
    print_tables(report)
    write_report(options, report)
    return 0


def parser() -> argparse.ArgumentParser:
    """The options; their defaults are what `make bench` runs."""
    result = benchmark_parser(__doc__, pairs=8)
    add = result.add_argument
    add("--cores", nargs="+", type=int, default=[1, 2])
    add("--lengths", nargs="+", type=int, default=[128, 512])
    add("--batch-size", type=int, default=256, help="examples")
    add("--batches", type=int, default=60, help="of ours, a call")
    add("--text", type=Path, nargs="+", help="default: Python's reference")
    add("--vocab", type=Path, help="default: 3,000 pieces of the text")
    return result


def make_shards(options: argparse.Namespace, folder: Path) -> Path:
    """Tokenizes the text; makes a vocabulary where none is given."""
    text = options.text
    if not text:
        text = [folder / "text.txt"]
        # A small text would be planned anew after every few batches.
        write_text(text[0], COPIES)
    vocab = options.vocab or trained_vocab(text, folder / "vocab")
    shards = folder / "shards"
    prepare(PrepareRun(input=tuple(text), vocab=vocab, output=shards))
    return shards


def write_text(path: Path, copies: int) -> None:
    """Python's reference, which every Python has, some times."""
    from pydoc_data.topics import topics

    documents = [re.sub(r"\n\s*\n", "\n", topic) for topic in topics.values()]
    path.write_text("\n\n".join(documents * copies), encoding="utf-8")


def trained_vocab(text: list[Path], folder: Path) -> Path:
    """A vocabulary of 3,000 pieces."""
    train_vocabulary(
        VocabRun(input=tuple(text), output=folder, vocab_size=3000)
    )
    return folder


def hold_cores(cores: int) -> None:
    """Before the first thread, as threads inherit them."""
    sys.path.insert(0, str(TESTS))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if hasattr(os, "sched_setaffinity"):
        available = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, available[-cores:])


def reference_sides(shards, examples, options):
    """Ours, the transcription, and nothing else to say."""
    ours = OurSide(shards, examples, options)
    return ours, ReferenceSide(shards, examples), {}


def packing_sides(shards, examples, options):
    """Ours with shared rows, ours without, and how full rows are."""
    from keras_albert.pretraining.dataset import ExampleStream

    packed = dataclasses.replace(examples, **PACKED)
    packing = ExampleStream(shards, packed, 0).packing
    return (
        OurSide(shards, packed, options),
        OurSide(shards, examples, options),
        {
            "fill": packing.fill,
            "peer_fill": packing.fill / packing.examples_per_row,
            "examples_per_row": packing.examples_per_row,
        },
    )


def compare(make_sides, folder: Path, length: int, options) -> dict:
    """One line: both sides in turn, in this process."""
    shards = ka.ShardSet.open(folder)
    examples = ka.ExampleConfig(sequence_length=length)
    ours, peer, facts = make_sides(shards, examples, options)
    ours(), peer()  # warm up
    meter = CpuMeter()
    calls = in_turn({"ours": ours, "peer": peer}, options.pairs)
    others = meter.others()
    speeds = {
        name: statistics.median(call.tokens / call.seconds for call in some)
        for name, some in calls.items()
    }
    each_call = {
        name: [dataclasses.asdict(call) for call in some]
        for name, some in calls.items()
    }
    line = {"length": length, "pairs": options.pairs, "others": others}
    line |= peer_beside_ours(calls, a_token=True) | speeds | facts
    return line | {"calls": each_call}


@dataclasses.dataclass(frozen=True)
class Call:
    """What one call made."""

    tokens: int
    seconds: float
    cpu_seconds: float
    """of all threads"""

    def __add__(self, other: "Call") -> "Call":
        return Call(*map(operator.add, astuple(self), astuple(other)))


def peer_beside_ours(
    calls: dict[str, list[Call]], a_token: bool = False
) -> dict:
    """The ratio peer / ours, by the clock and by the processor's.

    Args:
        a_token: compares the times for a token, not those of calls.
    """

    def ratios(clock: str) -> dict:
        peer, ours = (
            [getattr(x, clock) / (x.tokens if a_token else 1) for x in some]
            for some in (calls["peer"], calls["ours"])
        )
        return PairedTimes(peer, ours).ratios()

    cpu_ratio = ratios("cpu_seconds")["ratio"]
    return ratios("seconds") | {"cpu_ratio": cpu_ratio}


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self):
        self.start, self.cpu = time.perf_counter(), time.process_time()

    def call(self, tokens: int) -> Call:
        """What was made up to now."""
        return Call(
            tokens,
            time.perf_counter() - self.start,
            time.process_time() - self.cpu,
        )


class OurSide:
    """Batches of a dataset after its first one, before which none is made."""

    def __init__(self, shards, examples, options):
        size, steps = options.batch_size, 1 + options.batches
        self.dataset = ka.pretraining_dataset(
            shards, examples, batch_size=size, seed=0, steps=steps
        )

    def __call__(self) -> Call:
        """Makes them."""
        batches = iter(self.dataset)
        next(batches)
        watch = Stopwatch()
        return watch.call(
            sum(int(x["padding_mask"].numpy().sum()) for x, *_ in batches)
        )


class WordStarts:
    """Whether a piece starts a word, asked of its characters every time."""

    def __init__(self, pieces: list[str]):
        self.pieces = pieces

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, number: int) -> bool:
        piece = self.pieces[number]
        if piece.startswith(("▁", "<")):
            return True
        return piece in PUNCTUATION or any(
            character.lower() not in KNOWN for character in piece
        )


class ReferenceSide:
    """Examples of one document after another, for about half a second."""

    def __init__(self, shards, examples):
        from reference_examples import documents_of

        self.examples = examples
        self.documents = documents_of(shards)
        tokenizer = shards.tokenizer()
        self.pieces = [
            tokenizer.id_to_piece(number)
            for number in range(tokenizer.vocab_size)
        ]
        self.ids = {piece: number for number, piece in enumerate(self.pieces)}
        self.word_starts = WordStarts(self.pieces)
        self.rng = random.Random(0)
        self.next = 0

    def __call__(self) -> Call:
        """Makes them, padded as they are written."""
        end, count, watch = time.perf_counter() + 0.5, 0, Stopwatch()
        while time.perf_counter() < end:
            count += self.make_document(self.next % len(self.documents))
            self.next += 1
        return watch.call(count)

    def make_document(self, number: int) -> int:
        """Returns how many tokens its examples have."""
        from reference_examples import mask_example, pack, pairs_of_document

        length, count = self.examples.sequence_length, 0
        for a, b, _ in pairs_of_document(
            self.documents,
            number,
            length,
            self.examples.short_seq_prob,
            self.rng,
        ):
            tokens, segments = pack(a, b)
            masked, positions, labels = mask_example(
                tokens, self.word_starts, self.examples, self.rng, self.draw_n
            )
            masked, labels = (
                [self.ids[self.pieces[token]] for token in values]
                for values in (masked, labels)
            )
            padding = [0] * (length - len(tokens))
            unused = [0] * (self.examples.max_predictions - len(positions))
            for values in (masked, segments, [1] * len(tokens)):
                values.extend(padding)
            for values in (positions, labels, [1.0] * len(positions)):
                values.extend(unused)
            count += len(tokens)
        return count

    def draw_n(self) -> int:
        """As the reference draws it."""
        sizes = np.arange(1, self.examples.ngram + 1)
        return np.random.choice(sizes, p=1 / sizes / (1 / sizes).sum())


def time_planning(settings: dict) -> float:
    """Seconds for a million examples, of documents of a few hundred tokens."""
    from keras_albert.corpus.shards import Shard
    from keras_albert.corpus.token_index import Corpus
    from keras_albert.pretraining.segments import plan_epoch

    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 60, 50_000)
    lengths = rng.integers(3, 60, sizes.sum())
    shard = Shard(
        tokens=np.broadcast_to(np.uint16(0), lengths.sum()),
        sentences=np.append(0, np.cumsum(lengths)),
        documents=np.append(0, np.cumsum(sizes)),
    )
    corpus = Corpus(SimpleNamespace(shards=(shard,)))
    examples = ka.ExampleConfig(sequence_length=256, **settings)
    start = time.perf_counter()
    plan = plan_epoch(corpus, examples, 0, 0)
    return (time.perf_counter() - start) / len(plan.order) * 1e6


def print_tables(report: dict) -> None:
    """A row a line."""
    print_lines(report["lines"], "ours tokens/s", "peer tokens/s")
    print("examples that share rows, beside one a row:")
    print_lines(report["packed"], "shared", "one a row")
    for line in report["packed"]:
        print(
            f"{line['length']} tokens: {line['fill']:.1%} filled, "
            f"{line['peer_fill']:.1%} by one example, "
            f"{line['examples_per_row']:.2f} examples a row"
        )
    print(
        f"plan: {report['plan_seconds']:.2f} s a million examples, "
        f"{report['packed_plan_seconds']:.2f} s to share rows"
    )


def print_lines(lines: list[dict], ours: str, peer: str) -> None:
    """Speeds, under the names of the two sides."""
    titles = ("cores", "length", ours, peer, "ratio")
    print_table(
        (*titles, "quartiles", "cpu ratio", "pairs", "others"),
        (
            (
                *(line[name] for name in ("cores", "length")),
                *(f"{line[name]:,.0f}" for name in ("ours", "peer")),
                f"{line['ratio']:.2f}",
                quartiles(line, 2),
                f"{line['cpu_ratio']:.2f}",
                line["pairs"],
                percent(line["others"]),
            )
            for line in lines
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
