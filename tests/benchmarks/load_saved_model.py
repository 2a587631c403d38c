"""A SavedModel under load: valid, strange and wrong requests from many threads.

    python tests/benchmarks/load_saved_model.py served/1

Each request is first answered alone. Then 8 threads answer them in random
order, and every answer must be the one it was, every wrong request be refused
with a message that says what is wrong, and memory stay as it is after the first
third. Any model whose inputs are strings or `token_ids` will do; TensorFlow's C
library runs it.
"""

import argparse
import contextlib
import ctypes
import importlib.util
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pairing import resident

sys.path.append(str(Path(__file__).parents[1]))

from capi import RequestError, SavedModel

TOLERANCE = 1e-5
ROUNDS = 60  # memory is read between them, when no request is at work
LARGEST_GROWTH = 0.02  # of memory, from the second third to the end
VARIANTS = 40  # requests of each sort
SHOWN = 5  # failures
# Smaller than any vocabulary, shorter than any model's rows; and beyond all.
PIECES, WIDTH = 50, 16
NO_PIECE, TOO_WIDE = 2**31 - 1, 2**17
LONG = 100_000  # characters

Inputs = Mapping[str, np.ndarray]
Outputs = Mapping[str, np.ndarray]
Run = Callable[[str, Inputs], Outputs]


class Request(NamedTuple):
    signature: str
    inputs: Inputs
    error: str | None
    """a pattern of what must be said of a wrong one"""


class Refused(NamedTuple):
    message: str


def main() -> None:
    options = _options()
    packages = options.site_packages
    if packages is None:
        # Found, not imported.
        origin = importlib.util.find_spec("tensorflow").origin
        packages = Path(origin).parents[1]
    model = SavedModel(options.saved_model, packages)
    rng = np.random.default_rng(0)
    names = {k: {*s.inputs} for k, s in model.signatures.items()}
    requests = [*_requests(names, rng)]
    report = measure(model.run, requests, options, rng)
    print(json.dumps(report, indent=2))
    if report["failures"]:
        sys.exit(f"{report['failures']:,} failures")
    if (report["memory_growth"] or 0) > LARGEST_GROWTH:
        sys.exit(f"memory grew by {report['memory_growth']:.1%}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("saved_model", help="folder of saved_model.pb")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument(
        "--site-packages",
        type=Path,
        help="of the C library; the installed tensorflow's if not given",
    )
    return parser.parse_args()


# Requests.


def _requests(
    names: Mapping[str, set[str]], rng: np.random.Generator
) -> Iterator[Request]:
    of_texts = []
    for signature, inputs in sorted(names.items()):
        for _ in range(VARIANTS):
            if inputs == {"token_ids"}:
                yield Request(signature, {"token_ids": _ids(rng)}, None)
            elif inputs != {"inputs"}:  # of tf.Example
                yield Request(signature, _texts(rng, inputs), None)
                of_texts.append((signature, inputs))
        yield from _wrong(signature, sorted(inputs), rng)
    for text in VERY_LONG if of_texts else ():
        signature, inputs = of_texts[rng.integers(len(of_texts))]
        texts = _texts(rng, inputs)
        for values in texts.values():
            values.flat[0] = text
        yield Request(signature, texts, None)


def _ids(rng) -> np.ndarray:
    ids = rng.integers(5, PIECES, (rng.integers(1, 5), rng.integers(2, WIDTH)))
    ids[:, 0] = 2  # [CLS]
    return ids.astype("int32")


def _texts(rng, inputs) -> Inputs:
    count = int(rng.integers(1, 5))
    return {
        name: np.array(
            [
                [_text(rng), _text(rng)] if name == "choices" else _text(rng)
                for _ in range(count)
            ],
            object,
        )
        for name in sorted(inputs)
    }


STRANGE = [
    "", " ", "\0", "\0\0a\0", "\ufeff", "a\u202eb", "\u200d" * 300, "İIıi",
    "e" + "\u0301" * 500, "👩\u200d👩\u200d👧" * 100, "\u3000\u0085\u2028",
    "".join(map(chr, range(32))), "１９５０，９，", "ΣΑΣ", "\U0010ffff",
]  # fmt: skip
MALFORMED = [
    b"\xff", b"\xff" * 300, b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x9f",
    b"a\xc3", b"\xe2\x82\xe2\x82\xac", b"\xf8\x88\x80\x80\x80", b"\x80 \xbf",
]  # fmt: skip
VERY_LONG = [
    ("The fox sold £9 of tea. " * LONG)[:LONG].encode(),
    ("狐" * (LONG // 10)).encode(),  # one word: SentencePiece takes long
    ("\u0301" * LONG).encode(),
    b"a" * LONG,
    b"\xff" * LONG,
]


def _text(rng) -> bytes:
    """Random words, Unicode or bytes, or a strange one."""
    words = [f"{a} {b}" for a in ("fox", "tea", "Élodie") for b in range(9)]
    draw = rng.random()
    if draw < 0.4:
        text = " ".join(rng.choice(words, int(rng.integers(1, 20))))
    elif draw < 0.6:
        codes = rng.integers(0x20, 0xD800, int(rng.integers(0, 60)))
        text = "".join(map(chr, codes))
    elif draw < 0.7:
        text = rng.bytes(int(rng.integers(0, 100)))
    elif draw < 0.85:
        text = STRANGE[rng.integers(len(STRANGE))]
    else:
        text = MALFORMED[rng.integers(len(MALFORMED))]
    return text if isinstance(text, bytes) else text.encode()


def _wrong(
    signature: str, names: list[str], rng: np.random.Generator
) -> Iterator[Request]:
    """Wrong requests, and what must be said of them."""
    if names == ["token_ids"]:
        for number in (-1, -(2**31), NO_PIECE):
            ids = _ids(rng)
            ids[-1, -1] = number
            yield Request(
                signature,
                {"token_ids": ids},
                r"`token_ids` must be from 0 to \d+.*lowest and highest:.*"
                + re.escape(f"[{number}]"),
            )
        for width in (0, TOO_WIDE):
            yield Request(
                signature,
                {"token_ids": np.full((2, width), 7, "int32")},
                rf"`token_ids` must have 1 to \d+ tokens a row.*\[{width}\]",
            )
        good = {"token_ids": _ids(rng)}
    elif names == ["inputs"]:
        bad = np.array([b"no tf.Example"], object)
        yield Request(signature, {"inputs": bad}, "must be serialized tf.Ex")
        good = {"inputs": np.array([b""], object)}
    else:
        good = _texts(rng, names)
    if len(names) > 1:
        for name in names:
            more = np.concatenate([good[name], good[name][:1]])
            yield Request(
                signature,
                {**good, name: more},
                rf"`\w+` and `\w+` must have as many rows.*\[{len(more)}\]",
            )
    for name, value in good.items():
        yield Request(
            signature, {**good, name: value[:1, ..., np.newaxis]},
            rf"{name}.*shape",
        )  # fmt: skip
        is_text = value.dtype == object
        yield Request(
            signature, {**good, name: np.ones(value.shape, "float32")},
            f"(?s){'string' if is_text else 'int32'}.*float",
        )  # fmt: skip


# Answers.


def measure(
    run: Run,
    requests: list[Request],
    options: argparse.Namespace,
    rng: np.random.Generator,
) -> dict:
    """Answers all of them alone, then many at a time; the report."""
    known = [_answer(run, request) for request in requests]
    problems = [
        _problem(request, answer, answer)
        for request, answer in zip(requests, known, strict=True)
    ]
    seconds = np.zeros(options.requests)

    def ask(place: int, which: int) -> str | None:
        start = time.perf_counter()
        answer = _answer(run, requests[which])
        seconds[place] = time.perf_counter() - start
        return _problem(requests[which], answer, known[which])

    memory = []
    order = rng.integers(len(requests), size=options.requests)
    start = time.perf_counter()
    with ThreadPoolExecutor(options.threads) as pool:
        for places in np.array_split(np.arange(options.requests), ROUNDS):
            problems += pool.map(ask, places, order[places])
            # What was freed is given back first: leaks would hide in it.
            with contextlib.suppress(AttributeError):  # no glibc
                ctypes.CDLL(None).malloc_trim(0)
            memory.append(resident("VmRSS") or 0)
    elapsed = time.perf_counter() - start
    problems = [problem for problem in problems if problem]
    parts = memory[ROUNDS // 3 : ROUNDS // 2], memory[-ROUNDS // 6 :]
    settled, end = map(float, map(np.median, parts))
    is_wrong = np.array([request.error is not None for request in requests])
    p50, p99 = 1000 * np.quantile(seconds, [0.5, 0.99])
    return {
        "threads": options.threads,
        "requests": options.requests,
        "refused": int(is_wrong[order].sum()),
        "distinct": len(requests),
        "seconds": elapsed,
        "requests_per_second": options.requests / elapsed,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "memory_mb": [bytes / 1e6 for bytes in (settled, end)],
        "memory_growth": end / settled - 1 if settled else None,
        "failures": len(problems),
        "first_failures": problems[:SHOWN],
    }


def _answer(run: Run, request: Request) -> Outputs | Refused:
    try:
        return run(request.signature, request.inputs)
    except RequestError as error:
        return Refused(str(error))


def _problem(
    request: Request, answer: Outputs | Refused, known: Outputs | Refused
) -> str | None:
    """What is wrong with an answer, beside the one to the request alone."""
    name = request.signature
    if isinstance(answer, Refused):
        if request.error is None:
            return f"{name}: a valid request was refused: {answer.message}"
        if not re.search(request.error, answer.message, re.DOTALL):
            return f"{name}: {request.error!r} expected: {answer.message}"
        return None
    if request.error is not None:
        return f"{name}: answered, but expected {request.error!r}"
    if isinstance(known, Refused) or answer.keys() != known.keys():
        return f"{name}: other outputs than before"
    for output, value in known.items():
        found = answer[output]
        if value.dtype.kind == "f":
            same = found.shape == value.shape and np.allclose(
                found, value, TOLERANCE, TOLERANCE
            )
        else:
            same = np.array_equal(found, value)
        if not same:
            return f"{name}: {output} {found} instead of {value}"
    return None


if __name__ == "__main__":
    main()
