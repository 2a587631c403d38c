"""Search and routing over the docstrings of Python's standard library.

    python examples/search/search.py data FOLDER
    python examples/search/search.py ask MODEL FOLDER "How do I ..."
    python examples/search/search.py index MODEL FOLDER
    python examples/search/search.py route MODEL FOLDER

`data` writes, from the Python that runs it:
    train.tsv     first sentences of docstrings with the rest of the docstring
    held_out.tsv  the same of other docstrings
    corpus.txt    the rests of all docstrings, a text a line
    routes.tsv    first sentences with the module that they are from

`ask` prints the texts of the corpus that are closest to a question. `index`
compares an approximate search of faiss with the exact one. `route` measures
how often the module of a sentence is found, and how often a sentence of another
module is answered with "don't know". MODEL is what
`finetune --task embedding` wrote; see README.md for the commands and numbers.
"""

import argparse
import ast
import csv
import hashlib
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from python_corpus import library_files, paragraphs, sentences

HELD_OUT_PERCENT = 20  # of the docstrings
# The sentences from this percentile on choose the threshold.
THRESHOLD_FROM = 80
MOST_WORDS = 100  # of the rest of a docstring
ROUTES = 12  # modules with the most docstrings
FOUND = 10  # results of a search
TF_IDF = "tf-idf"  # in place of a model


def docstrings() -> list[tuple[str, str, str]]:
    """(module, first sentence, further sentences), each sentence once."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found, seen = [], set()
    for path in library_files():
        module = path.relative_to(library).parts[0].removesuffix(".py")
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # a template, or broken on purpose
            continue
        for node in ast.walk(tree):
            if not isinstance(
                node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            ):
                continue
            text = ast.get_docstring(node) or ""
            lines = [s for p in paragraphs(text) for s in sentences(p)]
            if len(lines) < 2 or lines[0] in seen:
                continue
            rest = " ".join(" ".join(lines[1:]).split()[:MOST_WORDS])
            if rest in seen:
                continue
            seen |= {lines[0], rest}
            found.append((module, lines[0], rest))
    return found


def percentile(text: str) -> int:
    """A number from 0 to 99 that only depends on the text."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % 100


def write_data(folder: Path) -> None:
    """Writes the four files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = docstrings()
    parts = {"train": [], "held_out": []}
    for row in rows:
        is_held_out = percentile(row[1]) < HELD_OUT_PERCENT
        parts["held_out" if is_held_out else "train"].append(row)
    for name, part in parts.items():
        write_table(
            folder / f"{name}.tsv",
            ("question", "answer"),
            [(question, answer) for _, question, answer in part],
        )
        print(f"{len(part):,} pairs -> {folder / name}.tsv")
    corpus = "\n".join(answer for _, _, answer in rows)
    (folder / "corpus.txt").write_text(corpus + "\n", "utf-8")
    write_table(
        folder / "routes.tsv",
        ("text", "module"),
        [(question, module) for module, question, _ in rows],
    )


def write_table(path: Path, header: tuple, rows: list[tuple]) -> None:
    """Writes a TSV file; no text has a tab or a line break."""
    lines = ["\t".join(row) for row in [header, *rows]]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def read_table(path: Path) -> list[dict]:
    """The rows of a TSV file."""
    with open(path, encoding="utf-8", newline="") as file:
        options = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        return list(csv.DictReader(file, **options))


def ask(encode, folder: Path, question: str, vectors=None) -> None:
    """Prints the closest texts of the corpus, with their cosines.

    `vectors` are those of the corpus, if they were computed before.
    """
    texts = (folder / "corpus.txt").read_text("utf-8").splitlines()
    vectors = encode(texts) if vectors is None else vectors
    if len(vectors) != len(texts) or vectors.dtype.kind != "f":
        sys.exit(
            f"expected {len(texts)} vectors of fractions, one for each line of "
            f"{folder / 'corpus.txt'}. Received: {len(vectors)} of "
            f"{vectors.dtype}. Run `keras-albert embed` again."
        )
    cosines = vectors @ encode([question])[0]
    for place in np.argsort(-cosines)[:FOUND]:
        print(f"{cosines[place]:.2f}  {texts[place][:100]}")


def index(encode, folder: Path) -> None:
    """Prints the recall of an approximate index of faiss, and both times."""
    import faiss

    texts = (folder / "corpus.txt").read_text("utf-8").splitlines()
    questions = [r["question"] for r in read_table(folder / "held_out.tsv")]
    vectors, asked = encode(texts), encode(questions)
    exact = faiss.IndexFlatIP(vectors.shape[1])
    graph = faiss.IndexHNSWFlat(
        vectors.shape[1], 16, faiss.METRIC_INNER_PRODUCT
    )
    found, seconds = [], []
    for each in (exact, graph):
        each.add(vectors)
        start = time.perf_counter()
        found.append(each.search(asked, FOUND)[1].tolist())
        seconds.append(time.perf_counter() - start)
    shared = [len(set(a) & set(b)) / FOUND for a, b in zip(*found, strict=True)]
    print(
        f"HNSW: {np.mean(shared):.3f} of the {FOUND} nearest of "
        f"{len(vectors):,} texts, {seconds[1] / seconds[0]:.2f} of the time "
        "of exact search"
    )


def route(encode, folder: Path) -> None:
    """Prints how often sentences are routed to the right module.

    The sentences that are measured are those of held_out.tsv, which the model
    has not learned from. A module is the mean of the vectors of its other
    sentences. The threshold, below which the answer is "don't know", is chosen
    on sentences that are neither among these nor measured: as many known ones
    above it as unknown ones below it.
    """
    rows = read_table(folder / "routes.tsv")
    names, counts = np.unique([r["module"] for r in rows], return_counts=True)
    known = names[np.argsort(-counts)[:ROUTES]].tolist()
    texts = [row["text"] for row in rows]
    vectors = encode(texts)
    target = np.array(
        [
            known.index(m) if m in known else -1
            for m in (r["module"] for r in rows)
        ]
    )
    part = np.array([percentile(text) for text in texts])
    measured = part < HELD_OUT_PERCENT
    chosen = ~measured & (part >= THRESHOLD_FROM)
    learned = ~measured & ~chosen
    means = np.stack(
        [vectors[learned & (target == i)].mean(axis=0) for i in range(ROUTES)]
    )
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    cosines = vectors @ means.T
    best, score = cosines.argmax(axis=1), cosines.max(axis=1)
    limits = np.unique(score[chosen])
    kept = [(score[chosen & (target >= 0)] >= x).mean() for x in limits]
    refused = [(score[chosen & (target < 0)] < x).mean() for x in limits]
    limit = limits[np.argmin(np.abs(np.subtract(kept, refused)))]
    inside, outside = measured & (target >= 0), measured & (target < 0)
    answered = inside & (score >= limit)
    print(
        f"{inside.sum()} sentences of {ROUTES} modules: "
        f"{(best == target)[inside].mean():.3f} are routed rightly; below a "
        f'cosine of {limit:.2f} the answer is "don\'t know": '
        f"{answered.sum() / inside.sum():.3f} are answered, of which "
        f"{(best == target)[answered].mean():.3f} rightly; of {outside.sum()} "
        f"sentences of other modules {(score < limit)[outside].mean():.3f} are "
        "not answered"
    )


def encoder(model: str):
    """A function from texts to vectors of length 1; "tf-idf" is no model."""
    if model == TF_IDF:
        return tf_idf
    import keras_albert as ka

    return ka.load(model).encode


def tf_idf(texts: list[str]) -> np.ndarray:
    """TF-IDF vectors of texts that are given together."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    return words.fit_transform(texts).toarray().astype("float32")


def main() -> None:
    """Reads the arguments, and calls the function that they name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data")
    data.add_argument("folder", type=Path)
    for name in ("ask", "index", "route"):
        command = commands.add_parser(name)
        command.add_argument("model", help=f'or "{TF_IDF}", for `route`')
        command.add_argument("folder", type=Path)
        if name == "ask":
            command.add_argument("question")
            command.add_argument(
                "--vectors", type=Path, help="what `embed` wrote of corpus.txt"
            )
    given = vars(parser.parse_args())
    name, folder = given.pop("command"), given.pop("folder")
    if name == "data":
        write_data(folder)
        return
    model = given.pop("model")
    if model == TF_IDF and name != "route":
        parser.error(f"{TF_IDF} is for `route`; `{name}` needs a model")
    if given.get("vectors"):
        from keras_albert import read_vectors

        given["vectors"] = read_vectors(given["vectors"], model)
    encode = encoder(model)
    {"ask": ask, "index": index, "route": route}[name](encode, folder, **given)


if __name__ == "__main__":
    main()
