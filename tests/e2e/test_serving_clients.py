"""TensorFlow Serving's clients and files, with a stand-in for the server.

What is served is exported by the command, asked as a user would, and replaced
while it answers.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.request
from pathlib import Path

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("graphs are traced by TensorFlow", allow_module_level=True)
tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")
pytest.importorskip("grpc", reason="the clients need grpcio")
pytest.importorskip(
    "tensorflow_serving", reason="pip install --no-deps tensorflow-serving-api"
)

import grpc  # noqa: E402
from commands import rows_of, run as command, write_rows  # noqa: E402
from documentation import blocks  # noqa: E402
from google.protobuf import text_format  # noqa: E402
from served_models import ABC, LONGEST, close, random_predictor  # noqa: E402
from serving_stand_in import StandIn  # noqa: E402
from tensorflow_serving.config import model_server_config_pb2  # noqa: E402

import keras_albert as ka  # noqa: E402
from keras_albert.exports import run as exporting  # noqa: E402
from keras_albert.exports.config import ExportRun  # noqa: E402
from keras_albert.exports.saved_model import signatures  # noqa: E402
from keras_albert.exports.saved_model.warm_up import BATCH_SIZES  # noqa: E402
from keras_albert.storage import files_of  # noqa: E402

SERVING = Path(__file__).parents[2] / "examples" / "serving"
README = SERVING / "README.md"
sys.path.insert(0, str(SERVING))
import client_grpc  # noqa: E402
import client_rest  # noqa: E402

CLIENTS = {"rest": client_rest, "grpc": client_grpc}
# Names in the server, and kinds of models.
MODELS = {
    "albert": "classification",
    "better": "classification",
    "pairs": "pairs",
    "answers": "answer",
}
BETTER = ("x", "y", "z")  # the labels of that model
TEXTS = [
    "The fox sold two hens in 1950.",
    "",
    "Élodie 😀 São Paulo\t„한“ \\ \" '",
    "near Prague " * 30,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_vocab):
    """Random models in models/, the export of all but one in served/.

    Of what all kinds of models have, "albert" alone has the signatures.
    """
    folder = tmp_path_factory.mktemp("serving")
    keras.utils.set_random_seed(3)
    for name, kind in MODELS.items():
        predictor = random_predictor(ka.Tokenizer(tiny_vocab), kind)
        if name == "better":
            predictor = dataclasses.replace(predictor, labels=BETTER)
        predictor.save(folder / "models" / name)
        only = functools.partial(
            signatures.serving_module, only={"serving_default", "pair"}
        )
        with pytest.MonkeyPatch.context() as patch:
            if name != "albert":
                patch.setattr(signatures, "serving_module", only)
            if name != "better":
                export(folder, name, f"served/{name}")
    shutil.copytree(folder / "served" / "albert", folder / "versions")
    return folder


def export(folder, model, name):
    command("export", model=folder / "models" / model, output=folder / name)


@pytest.fixture(scope="module")
def config(folder):
    """The example's configuration, with two more models."""
    config = example("models.config")
    models = config.model_config_list.config
    for name in ("pairs", "answers"):
        models.add().CopyFrom(models[0])
        models[-1].name = name
    for each in models:
        each.base_path = str(folder / "served" / each.name)
    return config


def example(name):
    content = (SERVING / name).read_text()
    return text_format.Parse(
        content, model_server_config_pb2.ModelServerConfig()
    )


@pytest.fixture(scope="module")
def server(config):
    with StandIn(config, warm_up=False) as server:
        for model in config.model_config_list.config:
            server.wait_for(model.name, 1)
        yield server


@pytest.fixture(scope="module")
def server_of_versions(folder):
    """A server whose configuration is the example with labels."""
    config = example("labels.config")
    (model,) = config.model_config_list.config
    model.base_path = str(folder / "versions")
    with StandIn(config) as server:
        server.wait_for("albert", 1)
        yield server


@pytest.fixture(scope="module")
def expected(folder):
    """Loads models by their names, to be asked without a server."""
    models = folder / "models"
    return functools.cache(lambda name: ka.Predictor.load(models / name))


def address(server, kind):
    return {"rest": server.rest_address, "grpc": server.grpc_address}[kind]


@pytest.fixture(params=CLIENTS)
def ask(request, server, capsys):
    """Runs a client's command line: returns its status, answers and errors."""

    def ask(*arguments, server_address=None):
        to = server_address or address(server, request.param)
        # The first request of a signature may be slow: there is no warm-up.
        options = ["--server", to, "--timeout", "60"]
        try:
            status = CLIENTS[request.param].main([*options, *arguments])
        except SystemExit as stop:  # of argparse
            status = stop.code
        out, error = capsys.readouterr()
        return status, rows_of(out), error

    ask.kind = request.param
    return ask


# Answers.


@pytest.mark.parametrize("kind", CLIENTS)
def test_as_a_program(server, expected, kind):
    """It runs from any folder and imports neither TensorFlow nor Keras."""
    command = [sys.executable, str(SERVING / f"client_{kind}.py")]
    run = subprocess.run(
        [*command, "--server", address(server, kind), "--timeout=60", *TEXTS],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": "", "PYTHONPROFILEIMPORTTIME": "1"},
    )
    assert run.returncode == 0, run.stderr
    close(
        [answer["probabilities"] for answer in rows_of(run.stdout)],
        expected("albert").probabilities(TEXTS),
    )
    imported = re.findall(r"\| +([\w.]+)$", run.stderr.decode(), re.MULTILINE)
    heavy = {"tensorflow.python", "numpy", "keras"}
    assert "json" in imported and not heavy & {*imported}


def test_texts_in_batches(ask, server, expected):
    texts = [f"The fox sold {n} hens. {TEXTS[n % 4]}" for n in range(70)]
    status, answers, error = ask(*texts, "--batch-size", "32")
    assert (status, error) == (0, "")
    wanted = expected("albert").predict(texts)
    assert [answer["label"] for answer in answers] == wanted
    probabilities = expected("albert").probabilities(texts)
    assert np.ptp(probabilities[:, 0]) > 0.01, "texts differ"
    close([answer["probabilities"] for answer in answers], probabilities)
    close([answer["score"] for answer in answers], probabilities.max(-1))
    assert answers[0]["labels"] == [*ABC]


def test_pairs(ask, expected):
    pairs = [*reversed(TEXTS)]
    options = [f"--pair={pair}" for pair in pairs]
    status, answers, _ = ask(*TEXTS, *options, "--model=pairs")
    assert status == 0
    close(
        [answer["probabilities"] for answer in answers],
        expected("pairs").probabilities(TEXTS, pairs=pairs),
    )


def test_questions(ask, expected):
    """Several questions are asked about one context."""
    context = "The fox sold £9 of tea in 1950. 😀 Élodie remembered. " * 3
    questions = ["Who sold tea?", "When?"]
    status, answers, _ = ask(
        *(f"--question={question}" for question in questions),
        *("--context", context, "--model", "answers"),
    )
    assert status == 0
    wanted = expected("answers").predict([context] * 2, questions=questions)
    assert [answer["answer"] for answer in answers] == wanted
    for answer in answers:
        characters = context[answer["start"] : answer["end"]]
        assert characters == answer["answer"] != ""


def test_rows_of_a_file(ask, expected, tmp_path, monkeypatch):
    """Rows are for any signature; they may come from standard input."""
    predictor, ids = expected("albert"), [[2, 7, 8, 3], [2, 9, 3, 0]]
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"token_ids": row}) for row in ids]
    path.write_text("\n\n".join(lines) + "\n")
    status, answers, _ = ask("--rows", str(path), "--signature=token_ids")
    assert status == 0
    # REST leaves out the name of a single output.
    logits = [a["logits"] if ask.kind == "grpc" else a for a in answers]
    x = {"token_ids": np.array(ids, "int32")}
    close(logits, np.asarray(predictor.model(x)))
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    status, answers, _ = ask("--rows=-", "--signature=tokenize")
    packed = predictor.tokenizer(TEXTS, max_length=LONGEST)
    assert status == 0
    assert [a["token_ids"] for a in answers] == packed["token_ids"].tolist()


def test_curl(server, expected):
    """The README's curl commands are answered as they stand."""
    answered = []
    lines = "".join(block.code for block in blocks(README, "sh"))
    (shown,) = blocks(README, "json")
    for line in lines.replace("\\\n", "").splitlines():
        if not line.startswith("curl -d"):
            continue
        _, _, body, url = shlex.split(line)
        assert url.startswith("http://localhost:8501/")
        to = url.replace("http://localhost:8501", server.rest_address)
        with urllib.request.urlopen(to, body.encode()) as response:
            answer = json.load(response)
        ((kind, (row,)),) = answer.items()
        answered.append(kind)
        sent = json.loads(body)
        (instance,) = sent.get("instances") or sent["examples"]
        (wanted,) = expected("albert").probabilities([instance["text"]])
        if kind == "predictions":
            close(row["probabilities"], wanted)
            assert row.keys() == json.loads(shown.code)[kind][0].keys()
        else:
            assert [label for label, _ in row] == [*ABC]
            close([score for _, score in row], wanted)
    assert answered == ["predictions", "results"]


# What goes wrong.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--model=bert"], "Servable not found for request: Latest(bert)"),
        (["a", "--version=9"], "Servable not found for request: Specific"),
        (["a", "--label=best"], "Unrecognized servable version label: best"),
        (["a", "--signature=translate"], "translate"),
        (["a", "--pair=b"], "pair"),
    ],
)
def test_refused_by_the_server(ask, arguments, message):
    status, answers, error = ask(*arguments)
    assert (status, answers) == (1, [])
    assert error.startswith("error: ") and message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give texts"),
        (["a", "b", "c", "--pair=d", "--pair=e"], "3 text, 2 pair"),
        (["a", "--rows=x"], "Leave out: text"),
        (["--rows={path}.none"], "cannot be read"),
        (["--rows={path}"], "rows.jsonl:2: not JSON"),
        (["a", "--retries=-1"], "--retries: -1 is not 0 or more"),
        (["a", "--timeout=0"], "--timeout: 0 is not between 0 and 1e6"),
    ],
)
def test_mistakes(ask, tmp_path, arguments, message):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n{"text": \n')
    status, answers, error = ask(*(a.format(path=path) for a in arguments))
    assert (status, answers) == (2, [])
    assert message in error and "Traceback" not in error


def test_an_address_without_a_scheme(capsys):
    with pytest.raises(SystemExit, match="2"):
        client_rest.main(["a", "--server=localhost:8501"])
    assert "expected http://HOST:PORT" in capsys.readouterr().err


def test_rows_that_do_not_fit(ask, tmp_path):
    path = tmp_path / "rows.jsonl"
    for content, message in [
        ([{"token_ids": [2, 3]}, {"token_ids": [2, 7, 3]}], "token_ids"),
        ([{"text": 5}], "string"),
        ([{"text": "a"}, {"pair": "b"}], "pair"),
    ]:
        write_rows(path, content)
        signature = "token_ids" if "token_ids" in content[0] else "embed"
        status, _, error = ask(f"--rows={path}", f"--signature={signature}")
        assert status and message in error, content
    path.write_text('["text"]')
    assert "expected an object" in ask(f"--rows={path}")[2]


def listening(kind):
    """A server that never answers, and its address for a client."""
    server = socket.create_server(("127.0.0.1", 0))
    scheme = "http://" if kind == "rest" else ""
    return server, f"{scheme}127.0.0.1:{server.getsockname()[1]}"


def test_no_server(ask, monkeypatch):
    """A client tries again after growing waits; its error has the address."""
    waits = []
    clock = types.SimpleNamespace(sleep=waits.append)
    monkeypatch.setattr(CLIENTS[ask.kind], "time", clock)
    closed, to = listening(ask.kind)
    closed.close()
    status, _, error = ask("a", "--retries=2", server_address=to)
    assert (status, waits) == (1, [0.5, 1.0])
    assert to.removeprefix("http://") in error


def test_no_answer_in_time(ask, monkeypatch):
    """A client does not try again: the server has enough to do."""
    monkeypatch.setattr(CLIENTS[ask.kind], "time", None)
    silent, to = listening(ask.kind)
    with silent:
        status, _, error = ask("a", "--timeout=0.3", server_address=to)
    wanted = {"rest": "within 0.3 s", "grpc": "DEADLINE_EXCEEDED"}[ask.kind]
    assert status == 1 and wanted in error


# Other versions.


@contextlib.contextmanager
def repeated(once, seconds):
    """Does something again and again until the `with` block ends."""
    stopped = threading.Event()

    def run():
        while not stopped.wait(seconds):
            once()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


class Asking:
    """A client that sends one request after another."""

    def __init__(self, ask):
        self.ask = ask
        self.labels, self.errors = [], []

    def once(self):
        try:
            self.labels.append(self.ask())
        except Exception as error:
            self.errors.append(error)

    def wait_for(self, labels):
        """Waits until a request that begins now is answered so."""
        count, end = len(self.labels), time.monotonic() + 60
        while labels not in self.labels[count:]:
            assert time.monotonic() < end and not self.errors, self.errors
            time.sleep(0.01)


def sizes(folder):
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in files_of(folder)
    }


@pytest.mark.proof
def test_other_versions(server_of_versions, folder):
    """An export and a roll-back happen while all requests are answered."""
    old, new = ABC, BETTER
    server, versions = server_of_versions, folder / "versions"
    ask = asking_of(server)
    clients = [Asking(functools.partial(ask, client)) for client in CLIENTS]
    names, found = set(), {}

    def watch():
        """Records what the folder holds, as a server looks and more often."""
        for name in os.listdir(versions):
            names.add(name)
            if name.isdecimal() and name not in found:
                found[name] = sizes(versions / name)

    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.enter_context(repeated(client.once, 0.02))

        def wait_for(labels, *available):
            server.wait_for("albert", *available)
            for client in clients:
                client.wait_for(labels)

        wait_for(old, 1)
        with repeated(watch, 0.001):
            export(folder, "better", "versions")
        watch()
        check_published(versions, names, found)
        wait_for(new, 1, 2)
        version = server.models["albert"].versions[2]
        assert version.warmed_up == 2 * len(BATCH_SIZES) * 5
        for client in CLIENTS:
            assert ask(client, label="stable") == ask(client, version=1) == old
            assert ask(client, label="canary") == ask(client, version=2) == new
        # Back, as the other has another name.
        (versions / "2").rename(versions / "2.bad")
        wait_for(old, 1)
    for client in clients:
        assert not client.errors
        seen = [labels for labels, _ in itertools.groupby(client.labels)]
        assert seen == [old, new, old]


def asking_of(server):
    """Returns a function that asks a version and returns its labels."""
    channel = grpc.insecure_channel(server.grpc_address)

    def ask(client, **which):
        rows = [{"text": TEXTS[0]}]
        if client == "rest":
            url = client_rest.model_url(server.rest_address, "albert", **which)
            answers = client_rest.predict(url, rows, retries=0, timeout=60)
        else:
            answers = client_grpc.predict(
                channel, "albert", rows, retries=0, timeout=60, **which
            )
        (answer,) = answers
        return tuple(answer["labels"])

    return ask


def check_published(versions, names, found):
    """The new version appeared as a whole, under its final name."""
    assert found == {name: sizes(versions / name) for name in ("1", "2")}
    (unfinished,) = names - {"1", "2"}
    assert unfinished.startswith("2.unfinished-")
    assert not (versions / unfinished).exists()
    assert found["2"].keys() >= {
        "saved_model.pb",
        "variables/variables.index",
        "assets.extra/tf_serving_warmup_requests",
    }


def test_killed_in_the_middle(server, folder, monkeypatch):
    """The server and the next export ignore an export that was killed."""
    versions = folder / "served" / "pairs"

    def write_half(predictor, run, unfinished):
        (unfinished / "saved_model.pb").write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(exporting, "_write", write_half)
    nothing = types.SimpleNamespace(long_texts="cut")
    monkeypatch.setattr(exporting.Predictor, "load", lambda *_, **__: nothing)
    run = ExportRun(model=folder / "models" / "pairs", output=versions)
    child = multiprocessing.get_context("fork").Process(
        target=exporting.export_run, args=[run]
    )
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    (left,) = {path.name for path in versions.iterdir()} - {"1"}
    assert left.startswith("2.unfinished-")
    assert (versions / left / "saved_model.pb").read_bytes() == b"half of it"
    time.sleep(0.3)  # several looks into the folder
    assert server.models["pairs"].versions.keys() == {1}
    assert not server.models["pairs"].failed
    assert exporting._target(run).name == "2"
    shutil.rmtree(versions / left)


# Files of the server.


def settings(name):
    """The lines "field: value" and "field { value: number }" of a file."""
    found = re.findall(
        r"^ *(\w+)(?:: | {(?: value: )?)([^}\n]*)",
        (SERVING / name).read_text(),
        re.MULTILINE,
    )
    return {field: value.strip() for field, value in found}


def test_batching_and_monitoring():
    """The fields are those of the server's protocol buffers."""
    found = settings("batching.config")
    assert found.keys() == {
        "max_batch_size",
        "batch_timeout_micros",
        "max_enqueued_batches",
        "num_batch_threads",
        "pad_variable_length_inputs",
    }
    # Warm-up and clients send no more at once.
    assert int(found["max_batch_size"]) >= max(BATCH_SIZES)
    options = client_rest.command_line("", "--server", "").parse_args(["a"])
    assert options.batch_size <= int(found["max_batch_size"])
    assert found["pad_variable_length_inputs"] == "false"
    assert int(found["batch_timeout_micros"]) < 100_000
    found = settings("monitoring.config")
    assert found.keys() == {"prometheus_config", "enable", "path"}
    assert found["enable"] == "true"
    assert f":8501{json.loads(found['path'])}`" in README.read_text()


def test_compose(server):
    """The paths and flags exist; the health check tells models apart."""
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load((SERVING / "compose.yaml").read_text())
    (service,) = content["services"].values()
    assert re.fullmatch(r"tensorflow/serving:\d+\.\d+\.\d+", service["image"])
    mounts = {each["target"]: each["source"] for each in service["volumes"]}
    assert mounts["/models/albert"].startswith("${ALBERT_EXPORT:?")
    for name in ("models.config", "labels.config"):
        (model,) = example(name).model_config_list.config
        assert (model.name, model.base_path) == ("albert", "/models/albert")
    assert mounts["/config"] == "."
    assert all(volume["read_only"] for volume in service["volumes"])
    assert service["ports"] == ["8500:8500", "8501:8501"]
    flags = dict(flag.split("=") for flag in service["command"])
    for value in flags.values():
        if value.startswith("/config/"):
            assert (SERVING / value.removeprefix("/config/")).is_file()
    # Of tensorflow_serving/model_servers/main.cc.
    assert flags.keys() <= {
        "--model_config_file",
        "--model_config_file_poll_wait_seconds",
        "--file_system_poll_wait_seconds",
        "--num_load_threads",
        "--enable_batching",
        "--batching_parameters_file",
        "--monitoring_config_file",
        "--allow_version_labels_for_unavailable_models",
        "--rest_api_timeout_in_ms",
    }
    check = service["healthcheck"]["test"]
    assert check[:2] == ["CMD", "bash"]
    if shutil.which("bash") is None:
        pytest.skip("the health check needs bash")
    for model, healthy in [("albert", True), ("absent", False)]:
        shell, option, script = check[1:]
        port = f"/{server.rest_port}"
        asked = script.replace("/8501", port).replace("/albert", f"/{model}")
        assert asked != script
        done = subprocess.run([shell, option, asked])
        assert (done.returncode == 0) == healthy


# Tensors without TensorFlow.


def test_tensors():
    """The client reads and writes tensors as TensorFlow does."""
    for given in (
        np.array([[0.5, -1.25], [3.0, 4.0]], "float32"),
        np.array([7, -8, 9], "int32"),
        np.array([[[1], [2]], [[3], [2**40]]], "int64"),
        np.array([[True, False]]),
        np.array([["é", "b"]], object),
        np.zeros([2, 0, 3], "float32"),
        np.full([3, 2], 5, "int32"),
        np.array([], object),
    ):
        found = client_grpc.values(tf.make_tensor_proto(given))
        assert found == given.tolist()
    proto = tf.make_tensor_proto([[5, 5], [5, 5]], tf.int32)
    proto.ClearField("tensor_content")
    proto.int_val.append(5)  # stands for all
    assert client_grpc.values(proto) == [[5, 5], [5, 5]]
    for column in (["é", ""], [["a", "b"], ["c", "d"]], [[2, 7], [8, 3]]):
        array = tf.make_ndarray(client_grpc.tensor("x", column))
        text = np.vectorize(lambda v: v.decode() if isinstance(v, bytes) else v)
        assert text(array).tolist() == column
