"""How fast libraries find the nearest vectors, and how many of them they find.

    keras-albert embed --model MODEL --data texts.txt --output vectors
    pip install faiss-cpu usearch hnswlib
    python tests/benchmarks/bench_search.py --vectors vectors/vectors.npy

Some of the vectors are taken out as queries, evenly spread. Every library
indexes the others once, and then searches for the ten nearest of each query, by
the cosine, all on one thread. The libraries take turns. Recall is the share of
the ten that exact search finds, too. A library that is not installed is left
out.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_model import machine
from pairing import (
    at_least,
    benchmark_parser,
    in_turn,
    print_table,
    seconds,
    write_report,
)
from threadpoolctl import threadpool_limits

FOUND = 10
# Settings of all HNSW graphs; the others are the libraries' own.
LINKS = 16  # M, the links of a vector
SEARCHED = 64  # efSearch, the candidates that a search keeps
EXACT = "exact, NumPy"

# from queries [Q, D] to the rows of the nearest vectors, [Q, FOUND]
Search = Callable[[np.ndarray], np.ndarray]


def main(arguments: list[str] | None = None) -> int:
    """Runs it; returns the exit status."""
    options = parser().parse_args(arguments)
    vectors = np.load(options.vectors).astype("float32")
    if vectors.ndim != 2 or len(vectors) < options.queries + FOUND:
        sys.exit(
            f"--vectors must have at least {options.queries + FOUND} rows, for "
            f"--queries {options.queries}. Received: {list(vectors.shape)}."
        )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = np.linspace(0, len(vectors) - 1, options.queries).astype(int)
    queries, others = vectors[rows], np.delete(vectors, rows, axis=0)
    report = machine() | {"vectors": list(others.shape), "queries": len(rows)}
    # NumPy and faiss; hnswlib and usearch have an argument for it.
    with threadpool_limits(1):
        report["lines"] = compare(others, queries, options.pairs)
    print_table(
        ("library", "build, s", "search, s", "recall"),
        [
            (
                line["library"],
                f"{line['build_s']:.2f}",
                f"{line['search_s']:.3f}",
                f"{line['recall']:.3f}",
            )
            for line in report["lines"]
        ],
    )
    write_report(options, report)
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = benchmark_parser(__doc__, pairs=9)
    add = result.add_argument
    add("--vectors", type=Path, required=True, help="a .npy file")
    add("--queries", type=at_least(2), default=1_000)
    return result


def compare(vectors: np.ndarray, queries: np.ndarray, turns: int) -> list[dict]:
    """A line for each library that is installed: times in seconds, recall."""
    searches, build = {}, {}
    for name, (module, make) in LIBRARIES.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name} is left out: {module} is not installed")
            continue

        def index(name=name, make=make):
            searches[name] = make(vectors)

        build[name] = seconds(index)
    found = {name: search(queries) for name, search in searches.items()}
    times = in_turn(
        {
            name: lambda search=search: seconds(lambda: search(queries))
            for name, search in searches.items()
        },
        turns,
    )
    return [
        {
            "library": name,
            "build_s": build[name],
            "search_s": float(np.median(times[name])),
            "times_s": times[name],
            "recall": recall(found[name], found[EXACT]),
        }
        for name in searches
    ]


def recall(found: np.ndarray, expected: np.ndarray) -> float:
    """The mean share of the expected rows that were found.

    >>> recall(np.array([[3, 1], [5, 6]]), np.array([[1, 2], [6, 5]]))
    0.75
    """
    shares = [
        len({*a} & {*b}) / len(b)
        for a, b in zip(found.tolist(), expected.tolist(), strict=True)
    ]
    return float(np.mean(shares))


def exact(vectors: np.ndarray) -> Search:
    """All cosines, of which the largest are taken."""

    def search(queries):
        cosines = queries @ vectors.T
        return np.argpartition(-cosines, FOUND - 1, axis=1)[:, :FOUND]

    return search


def faiss_index(kind: str) -> Callable[[np.ndarray], Search]:
    """An index of faiss: "IndexFlatIP", which is exact, or "IndexHNSWFlat"."""

    def make(vectors):
        import faiss

        threadpool_limits(1)  # again, as faiss was not loaded then
        size = vectors.shape[1]
        if kind == "IndexFlatIP":
            index = faiss.IndexFlatIP(size)
        else:
            index = faiss.IndexHNSWFlat(size, LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efSearch = SEARCHED
        index.add(vectors)
        return lambda queries: index.search(queries, FOUND)[1]

    return make


def hnswlib_index(vectors: np.ndarray) -> Search:
    """A graph of hnswlib."""
    import hnswlib

    index = hnswlib.Index("ip", vectors.shape[1])
    index.init_index(len(vectors), M=LINKS)
    index.set_num_threads(1)
    index.add_items(vectors)
    index.set_ef(SEARCHED)
    return lambda queries: index.knn_query(queries, FOUND)[0]


def usearch_index(numbers: str) -> Callable[[np.ndarray], Search]:
    """A graph of usearch that stores "f32" or "i8"."""

    def make(vectors):
        from usearch.index import Index

        index = Index(
            ndim=vectors.shape[1],
            metric="cos",
            dtype=numbers,
            connectivity=LINKS,
            expansion_search=SEARCHED,
        )
        index.add(np.arange(len(vectors)), vectors, threads=1)
        return lambda queries: index.search(queries, FOUND, threads=1).keys

    return make


# the module that must be installed, and what makes the index
LIBRARIES = {
    EXACT: ("numpy", exact),
    "exact, faiss": ("faiss", faiss_index("IndexFlatIP")),
    "HNSW, faiss": ("faiss", faiss_index("IndexHNSWFlat")),
    "HNSW, hnswlib": ("hnswlib", hnswlib_index),
    "HNSW, usearch": ("usearch", usearch_index("f32")),
    "HNSW, usearch, int8": ("usearch", usearch_index("i8")),
}


if __name__ == "__main__":
    sys.exit(main())
