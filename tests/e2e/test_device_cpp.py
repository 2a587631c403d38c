"""examples/device, the loop in C++, answers as Predictor does.

It is built with the compiler at hand, from Debian's libsentencepiece-dev and
nlohmann-json3-dev and the library of ai-edge-litert.
"""

import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

if pytest.importorskip("keras").backend.backend() != "tensorflow":
    pytest.skip("LiteRT files are made by TensorFlow", allow_module_level=True)
pytest.importorskip("tensorflow_text")
pytest.importorskip("ai_edge_litert")

from served_models import expected, exporter, ids_of, inputs_of
from small import marked
from written_texts import split_tokenizer, texts_of_every_character

from keras_albert.text.normalization import normalize

LITERT = importlib.util.find_spec("ai_edge_litert")
LIBRARY = Path(LITERT.origin).parent / "libLiteRt.so"
SOURCE = Path(__file__).parents[2] / "examples" / "device"
ANSWERED = ("classification", "pairs", "regression", "multilabel")
ANSWERED += ("early exit", "ensemble")
# Prints each line of the input as the tokenizer normalizes it, in both ways.
NORMALIZING = """
#define main unused
#include "albert_device.cc"
#undef main
int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const std::u32string text = Joined(Decoded(line));
    std::cout << Encoded(Lowered(WithoutMarks(text))) << '\\n'
              << Encoded(Lowered(text)) << '\\n';
  }
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the folder, with the program."""
    if not LIBRARY.is_file():
        pytest.skip(f"ai-edge-litert has no {LIBRARY.name}")
    release = importlib.metadata.version("ai-edge-litert").split(".")[:2]
    if [*map(int, release)] < [2, 3]:
        pytest.skip("litert.h is for LiteRT 2.3 and newer")
    for tool in ("g++", "make"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    for header, package in (
        ("sentencepiece_processor.h", "libsentencepiece-dev"),
        ("nlohmann/json.hpp", "nlohmann-json3-dev"),
    ):
        found = subprocess.run(
            ["g++", "-E", "-x", "c++", "-"],
            input=f"#include <{header}>",
            capture_output=True,
            text=True,
        )
        if found.returncode:
            pytest.skip(f"{package} is not installed")
    folder = tmp_path_factory.mktemp("built") / "device"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("*_tables.h"))
    make = ["make", "-B", f"PYTHON={sys.executable}", "CXXFLAGS=-O1 -Werror"]
    subprocess.run(make, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def exports(tmp_path_factory, tiny_lines):
    """Returns the predictor and the LiteRT export of a kind of task."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = split_tokenizer(folder, tiny_lines)
    return exporter(folder / "exports", folder, tokenizer, "litert")


def run(program, *arguments, lines=(), code=0):
    """The lines that the program writes, or its message if it fails."""
    done = subprocess.run(
        [program, *arguments],
        input=b"".join(line + b"\n" for line in lines),
        capture_output=True,
    )
    assert done.returncode == code, done.stderr
    return (done.stderr if code else done.stdout).decode().split("\n")[:-1]


@pytest.mark.filterwarnings("ignore")  # of unknown characters
@pytest.mark.parametrize(
    "kind", [*ANSWERED[:2], *marked("proof", *ANSWERED[2:])]
)
def test_same_ids_and_answers(built, exports, texts, kind):
    predictor, folder = exports(kind)
    inputs = inputs_of(kind, texts)
    rows = zip(*inputs.values(), strict=True)
    lines = ["\t".join(row).encode() for row in rows]
    found = run(built / "albert_device", folder, "--ids", lines=lines)
    found = [*map(json.loads, found)]
    _, answers = expected(predictor, **inputs)
    rows = ids_of(predictor, *inputs.values())
    assert sum(len(ids) == 24 for ids in rows) > 20
    for ids, row, answer in zip(rows, found, answers, strict=True):
        assert row.pop("ids") == ids
        assert row.keys() == answer.keys()
        for name, value in answer.items():
            assert_same(row[name], value)


def assert_same(found, wanted):
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        found, wanted = [*found.values()], [*wanted.values()]
    if isinstance(wanted, float) or (wanted and isinstance(wanted[0], float)):
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    else:
        assert found == wanted


def test_what_is_no_pair_and_no_utf8(built, exports):
    """A line without a tab is one text; malformed bytes are left out."""
    predictor, folder = exports("pairs")
    lines = [b"the f\xffox\r", b"the fox\t"]
    lines += [b"\xed\xa0\x80a\xe2\x82 \xf0\x9f\xc0"]
    lines += [b"a\xf4\x90\x80\x80b\tc\xc1\xbfd\te"]
    found = run(built / "albert_device", folder, "--ids", lines=lines)
    encode, pack = predictor.tokenizer.encode, predictor.tokenizer.pack
    wanted = [pack(encode(line), None)[0] for line in lines[:3]]
    wanted.append(pack(encode(b"ab"), encode("cd e"))[0])
    assert [json.loads(line)["ids"] for line in found] == wanted


@pytest.mark.proof
def test_every_character_is_normalized_as_in_python(built):
    source = built / "normalizing.cc"
    source.write_text(NORMALIZING)
    subprocess.run(
        ["g++", "-std=c++17", "-O1", source, "-o", source.with_suffix("")]
        + ["-lsentencepiece", LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}"],
        check=True,
    )
    texts = texts_of_every_character()
    lines = [text.encode() for text in texts]
    found = run(source.with_suffix(""), lines=lines)
    wanted = [
        normalize(text, keep_accents=keep)
        for text in texts
        for keep in (False, True)
    ]
    assert found == wanted


def test_messages(built, exports, tmp_path):
    program = built / "albert_device"
    assert "usage: albert_device FOLDER" in run(program, code=2)[0]
    (message,) = run(program, tmp_path, code=2)
    assert "task.json: no such file. Give the output folder" in message
    _, folder = exports("tokens")
    (message,) = run(program, folder, code=2)
    assert "a model for tokens. This program answers" in message
    _, folder = exports("classification")
    shutil.copytree(folder, tmp_path / "damaged")
    settings = json.loads((folder / "task.json").read_text())
    settings["task"] = "similarity"
    (tmp_path / "damaged" / "task.json").write_text(json.dumps(settings))
    (message,) = run(program, tmp_path / "damaged", code=2)
    assert "a model for similarity. This program answers" in message
    shutil.copy(folder / "task.json", tmp_path / "damaged")
    for name, part in (
        ("task.json", "task.json: not a JSON object"),
        ("spiece.model", "spiece.model: "),
        ("model.tflite", "model.tflite: damaged, or no LiteRT model"),
    ):
        (tmp_path / "damaged" / name).write_bytes(b"no")
        (*_, message) = run(program, tmp_path / "damaged", code=2)
        assert part in message
        shutil.copy(folder / name, tmp_path / "damaged")
