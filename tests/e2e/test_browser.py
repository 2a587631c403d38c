"""examples/browser, the page, answers as Predictor does.

Its modules run in Node.js, and the page in headless Chromium, with
onnxruntime-web from the npm registry.
"""

import functools
import html
import http.server
import io
import json
import queue
import random
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from commands import output_of
from scipy.special import expit
from served_models import expected, exporter, ids_of, inputs_of, softmax
from small import marked
from written_texts import WRITTEN, split_tokenizer, texts_of_every_character

import keras_albert as ka
from keras_albert.exports.onnx.format import ONNX_FILE, run_onnx
from keras_albert.text.normalization import normalize

pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.on_torch

EXAMPLES = Path(__file__).parents[2] / "examples"
ANSWERED = ("classification", "pairs", "regression", "multilabel")
ANSWERED += ("early exit",)
# What npm and Node.js say where the registry cannot be reached.
UNREACHABLE = re.compile(
    "EAI_AGAIN|ECONNREFUSED|ECONNRESET|EHOSTUNREACH|ENETUNREACH|ENOTCACHED"
    "|ENOTFOUND|ETIMEDOUT"
)
CHROMIUM = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
# No connections of its own.
CHROMIUM += ["--disable-background-networking", "--disable-component-update"]
CHROMIUM += ["--disable-sync"]
# Sends the page that it shows to the server, once it has loaded and answered.
WATCHING = """<!doctype html>
<iframe></iframe>
<script>
  const frame = document.querySelector("iframe");
  frame.src = `index.html${location.search}`;
  const timer = setInterval(() => {
    const page = frame.contentDocument;
    const status = page?.querySelector("#status")?.textContent;
    if (!status || status.startsWith("Loading")) return;
    clearInterval(timer);
    fetch("/", { method: "POST", body: page.documentElement.outerHTML });
  }, 50);
</script>
"""

# Programs for Node.js in the folder of the page. They begin with READING: they
# read JSON and write it.
READING = """
import { readFileSync } from "node:fs";
const json = (file) => JSON.parse(readFileSync(file, "utf8"));
const tables = json("unicode_tables.json");
const write = (value) => console.log(JSON.stringify(value));
const given = json(0);
"""
NORMALIZING = """
import { Normalization } from "./tokenizer.js";
const both = [false, true].map(
  (keep_accents) => new Normalization(tables, { keep_accents }),
);
write(given.map((text) => both.map((each) => each.normalize(text))));
"""
TOKENIZING = """
import { Tokenizer } from "./tokenizer.js";
const file = (name) => `${given.folder}/${name}`;
const tokenizer = new Tokenizer(
  readFileSync(file("spiece.model")), json(file("spiece.json")), tables,
);
write(given.texts.map((text) => tokenizer.encode(text)));
"""
ANSWERING = """
import { Model } from "./model.js";
const url = (name) => new URL(name, given.url);
const answers = async (folder) => {
  const tables = url("browser/unicode_tables.json");
  const model = await Model.load(url(`${folder}/`), tables);
  const found = [];
  for (const texts of given.rows) found.push(await model.answer(...texts));
  return found;
};
const all = [];
for (const folder of given.folders) {
  all.push(await answers(folder).catch((error) => error.message));
}
write(all);
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder that is served, with the page in it."""
    if not shutil.which("node"):
        pytest.skip("Node.js is not installed")
    folder = tmp_path_factory.mktemp("served")
    page = folder / "browser"
    page.mkdir()
    for name in ("index.html", "model.js", "tokenizer.js", "package.json"):
        shutil.copy(EXAMPLES / "browser" / name, page)
    with open(page / "unicode_tables.json", "wb") as file:
        script = EXAMPLES / "device" / "unicode_tables.py"
        command = [sys.executable, script, "--json"]
        subprocess.run(command, stdout=file, check=True)
    yield folder
    shutil.rmtree(page)  # onnxruntime-web is large


@pytest.fixture(scope="module")
def page(root):
    """The page with onnxruntime-web."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    options = "--ignore-scripts --no-audit --no-fund --no-package-lock"
    options += " --prefer-offline --fetch-retries=0"
    done = subprocess.run(
        ["npm", "install", *options.split()],
        cwd=root / "browser",
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = UNREACHABLE.search(done.stderr)
        if reason:
            pytest.skip(f"npm cannot reach its registry ({reason[0]})")
        pytest.fail(done.stderr)
    return root / "browser"


@pytest.fixture(scope="module")
def posted():
    """What was sent to the server."""
    return queue.Queue()


@pytest.fixture(scope="module")
def served(root, posted):
    """The URL of the folder, served as `python -m http.server` does."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            size = int(self.headers["Content-Length"])
            posted.put(self.rfile.read(size).decode())
            self.send_response(204)
            self.end_headers()

    handler = functools.partial(Handler, directory=root)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def exports(root, tmp_path_factory, tiny_lines):
    """Returns the predictor and the int8 export of a kind of task."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = split_tokenizer(folder, tiny_lines)
    options = {"weights": "int8", "force": True}
    return exporter(root, folder, tokenizer, "onnx", **options)


def node(folder, program, given):
    """What a program writes for what it is given."""
    (folder / "program.js").write_text(READING + program)
    given = json.dumps(given)
    return json.loads(output_of("node", "program.js", cwd=folder, input=given))


def assert_same_ids(folder, tokenizer, texts):
    wanted = tokenizer.encode_batch(texts)
    vocab = folder / "vocab"
    tokenizer.save(vocab)
    given = {"folder": str(vocab), "texts": texts}
    found = node(folder, TOKENIZING, given)
    for text, ids, right in zip(texts, found, wanted, strict=True):
        assert ids == right, repr(text)


def random_texts(chance, words, count):
    """Texts of words and of random characters, some of them unassigned."""
    limits = [0x7F, 0x250, 0x3000, 0x11000, 0x1FB00, 0x30000, 0x110000]

    def run():
        codes = range(chance.choice(limits))
        some = (chr(chance.choice(codes)) for _ in range(chance.randint(1, 5)))
        return "".join(c for c in some if not "\ud800" <= c <= "\udfff")

    def text():
        some = chance.choices(words, k=chance.randint(0, 20))
        some += [run() for _ in range(chance.randint(0, 9))]
        chance.shuffle(some)
        joined = chance.choice([" ", "", " \u3000"]).join(some)
        return chance.choice([str, str.upper, str.title])(joined)

    return [text() for _ in range(count)]


# Vocabularies of SentencePiece's settings, and settings of the normalization.
VOCABULARIES = {
    "as published": ({}, {}),
    "accents": ({}, {"keep_accents": True}),
    "cased": ({}, {"keep_accents": True, "lower_case": False}),
    "bytes": ({"byte_fallback": True, "vocab_size": 600}, {}),
    "symbols": (
        {"user_defined_symbols": ["(", "-", "£", "the", "thes", "▁9,", "12,"]},
        {},
    ),
    "case folding": (
        {"normalization_rule_name": "nmt_nfkc_cf"},
        {"keep_accents": True, "lower_case": False},
    ),
    "as it is": (
        {
            "normalization_rule_name": "identity",
            "add_dummy_prefix": False,
            "remove_extra_whitespaces": False,
        },
        {"keep_accents": True},
    ),
    "space at the end": ({"treat_whitespace_as_suffix": True}, {}),
}


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_same_ids(root, texts, kind):
    options, settings = VOCABULARIES[kind]
    model = io.BytesIO()
    trained = {
        "sentence_iterator": iter([*texts[:20], *WRITTEN.values()] * 3),
        "vocab_size": 300,
        "hard_vocab_limit": False,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "minloglevel": 2,
        "num_threads": 1,
    }
    sentencepiece.SentencePieceTrainer.train(
        model_writer=model, **(trained | options)
    )
    tokenizer = ka.Tokenizer.from_bytes(model.getvalue(), **settings)
    words = " ".join(texts).split()
    some = random_texts(random.Random(kind), words, 300)
    some += ["▁", "a▁ b", " \u200b a\u200b\u200b b \u200b", "\ud800a\udc00"]
    assert_same_ids(root / "browser", tokenizer, texts + some)


def test_same_ids_with_the_published_vocabulary(root, data_folder, texts):
    tokenizer = ka.Tokenizer(data_folder / "vocab" / "30k-clean.model")
    golden = data_folder / "golden" / "tokenization_raw.jsonl"
    lines = golden.read_text("utf-8").splitlines()
    written = [json.loads(line)["text"] for line in lines]
    words = " ".join(written).split()
    some = random_texts(random.Random(1), words, 1000)
    assert_same_ids(root / "browser", tokenizer, written + texts + some)


@pytest.mark.proof
def test_every_character_is_normalized_as_in_python(root):
    texts = [*texts_of_every_character(), "A\nΣ\nb \nΣ \n"]
    found = node(root / "browser", NORMALIZING, texts)
    wanted = [
        [normalize(text, keep_accents=keep) for keep in (False, True)]
        for text in texts
    ]
    assert found == wanted


@pytest.mark.filterwarnings("ignore")  # of unknown characters
@pytest.mark.parametrize(
    "kind", [*ANSWERED[:2], *marked("proof", *ANSWERED[2:])]
)
def test_same_answers(page, served, exports, texts, kind):
    predictor, folder = exports(kind)
    inputs = inputs_of(kind, texts)
    rows = [*zip(*inputs.values(), strict=True)]
    given = {"url": served, "folders": [folder.name], "rows": rows}
    (found,) = node(page, ANSWERING, given)
    ids = ids_of(predictor, *inputs.values())
    assert [row["ids"] for row in found] == ids
    assert sum(len(row) == 24 for row in ids) > 20
    run = run_onnx(folder / ONNX_FILE, threads=1)
    outputs = [run(np.array([row], "int32"))["logits"][0] for row in ids]
    exact, _ = expected(predictor, **inputs)
    features = predictor._features_of(inputs)
    # Numbers that are rounded to 8 bits become others if they are between two
    # of them and a sum was added in another order: a few texts differ a little.
    int8 = differences(found, predictor, features, outputs)
    assert np.mean(int8 < 1e-5) > 0.95 and max(int8) < 0.05
    # The model itself, which has float32 weights; a number is no probability.
    limit = 0.2 if kind == "regression" else 0.1
    assert max(differences(found, predictor, features, exact)) < limit


def differences(found, predictor, features, outputs):
    """How far the page's answers are from those that the outputs stand for."""
    logits = np.stack(outputs)
    probabilities = logits
    if predictor.labels:
        probabilities = (expit if predictor.task == "multilabel" else softmax)(
            logits
        )
    shown = [
        row.get("probabilities", [[0, row["prediction"]]]) for row in found
    ]
    for row in shown:
        assert [label for label, _ in row] == [*(predictor.labels or [0])]
    numbers = np.array([[value for _, value in row] for row in shown])
    distances = np.abs(numbers - probabilities).max(-1)
    wanted = predictor.decode(outputs, features)
    for row, answer, distance in zip(found, wanted, distances, strict=True):
        if distance < 1e-5:
            prediction = pytest.approx(answer["prediction"], abs=2e-5)
            assert row["prediction"] == prediction
    return distances


def test_messages(page, served, exports):
    _, folder = exports("classification")
    wanted = {"none": "none/task.json: no such file. Give the output"}
    for kind in ("tokens", "choice", "answer"):
        _, other = exports(kind)
        wanted[other.name] = "This page answers with labels or a number"
    for name in ("task.json", "spiece.model", "model.onnx"):
        damaged = folder.with_name(f"damaged-{name}")
        shutil.copytree(folder, damaged)
        (damaged / name).write_bytes(b"no")
        wanted[damaged.name] = f"{name}: damaged ("
    given = {"url": served, "folders": [*wanted], "rows": []}
    found = node(page, ANSWERING, given)
    for message, part in zip(found, wanted.values(), strict=True):
        assert part in message


def test_the_page_in_a_browser(page, served, posted, exports, tmp_path):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("Chromium is not installed")
    (page / "watching.html").write_text(WATCHING)

    def shown(**query):
        url = f"{served}browser/watching.html?{urllib.parse.urlencode(query)}"
        with subprocess.Popen(
            [chromium, *CHROMIUM, f"--user-data-dir={tmp_path}", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as browser:
            try:
                return posted.get(timeout=300)
            finally:
                browser.terminate()

    texts = WRITTEN["English"], WRITTEN["Korean"]
    predictor, folder = exports("pairs")
    given = {"url": served, "folders": [folder.name], "rows": [texts]}
    ((answer,),) = node(page, ANSWERING, given)
    query = {"model": "../pairs", "text": texts[0], "pair": texts[1]}
    dom = shown(**query)
    (prediction,) = re.findall("<output>(.*?)</output>", dom)
    cells = [html.unescape(x) for x in re.findall("<td>(.*?)</td>", dom)]
    assert prediction == answer["prediction"]
    assert cells[::2] == [*predictor.labels]
    probabilities = [each for _, each in answer["probabilities"]]
    assert [*map(float, cells[1::2])] == pytest.approx(probabilities, abs=1e-6)
    assert f"{len(answer['ids'])} tokens" in dom
    assert "task.json: no such file" in shown(model="none")
