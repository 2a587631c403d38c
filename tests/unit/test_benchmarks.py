"""The benchmark at its tiny size: that it runs, counts and refuses."""

import dataclasses
import importlib.util
import math
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from commands import output_of, read_json

from keras_albert.errors import AlbertError

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "tests" / "benchmarks"
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
PAIRS = 2
DATA = "KERAS_ALBERT_DATA"


@pytest.fixture
def benchmarks(monkeypatch):
    """The folder's modules find each other when run as scripts."""
    monkeypatch.syspath_prepend(BENCHMARKS)


def report_of(name, folder, *options):
    """What a benchmark wrote and printed, run without the real data."""
    path = folder / "report.json"
    environment = {k: v for k, v in os.environ.items() if k != DATA}
    # Two threads that wait for each other are slow on a busy machine.
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = sys.executable, BENCHMARKS / f"{name}.py", *options
    program += "--pairs", str(PAIRS), "--output", path
    said = output_of(*program, env=environment)
    return read_json(path), said


@pytest.mark.proof
def test_a_line_for_each_pair_of_sides(tmp_path):
    installed = importlib.util.find_spec("keras_hub")
    peers = ["keras_hub" if installed else "ours"]
    if BACKEND == "torch" and importlib.util.find_spec("transformers"):
        peers.append("transformers")
    options = ["--size", "tiny", "--backends", BACKEND, "--peers", *peers]
    report, shown = report_of(
        "bench_model", tmp_path, *options, "--dtypes", "bfloat16-float32"
    )
    assert report["versions"]["keras"] and report["cores"] >= 1
    assert [
        (line["mode"], line["peer"], line["ours_dtype"])
        for line in report["lines"]
    ] == [
        (mode, peer, "bfloat16")
        for mode in ("forward", "train")
        for peer in peers
    ]
    for line in report["lines"]:
        assert line["backend"] == BACKEND and line["peer_dtype"] == "float32"
        assert len(line["ours_seconds"]) == len(line["peer_seconds"]) == PAIRS
        for side in ("ours", "peer"):
            rate = 1000 / line[f"{side}_ms"] * 2 * 16
            assert math.isclose(line[f"{side}_tokens_per_second"], rate)
            share = line[f"{side}_utilization"]
            assert share is None if line["mode"] == "forward" else 0 < share < 1
        assert f"{line['ours_ms']:.1f}" in shown


@pytest.mark.any_backend
def test_what_cannot_be_run_is_said(benchmarks, monkeypatch, capsys):
    import bench_finetune
    import bench_model

    with pytest.raises(SystemExit, match="2"):
        bench_model.main(["--pairs", "1"])
    assert "2 or more, received '1'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    options = ["--backends", BACKEND, "--peers", "keras_hub"]
    assert bench_model.main(options) == 2
    shown = capsys.readouterr().out
    assert "keras_hub is not installed" in shown
    assert "pip install keras-hub" in shown
    monkeypatch.delenv(DATA, raising=False)
    assert bench_finetune.main([]) == 0
    assert DATA in capsys.readouterr().out


@pytest.mark.any_backend
def test_every_fact_is_compared(benchmarks):
    from workload import Facts, check_same_work

    names = [field.name for field in dataclasses.fields(Facts)]
    facts = Facts(**dict.fromkeys(names, 5.2))
    check_same_work(facts, dataclasses.replace(facts, first_loss=5.3))
    for name in names:
        # The loss as a sum over two rows.
        other = dataclasses.replace(facts, **{name: 10.4})
        with pytest.raises(AlbertError, match=f"`{name}` differs"):
            check_same_work(facts, other)


@pytest.mark.any_backend
def test_pairs_are_taken_in_turn(benchmarks):
    from pairing import PairedTimes, paired_times

    order = []
    times = paired_times(lambda: order.append(1), lambda: order.append(2), 3)
    assert order == [1, 2, 2, 1, 1, 2]
    assert len(times.ours) == len(times.peer) == 3
    # Ratios 1/2, 1/2, 3/2: the machine was slow in the third pair.
    summary = PairedTimes((1.0, 2.0, 9.0), (2.0, 4.0, 6.0)).summary()
    assert summary == {
        "ratio": 0.5,
        "ratio_quartiles": [0.5, 1.0],
        "pairs": 3,
        "ours_ms": 2000.0,
        "peer_ms": 4000.0,
    }


@pytest.mark.any_backend
def test_warm_up_ends_when_calls_are_no_longer_quicker(benchmarks, monkeypatch):
    import pairing

    durations = iter([9.0, 5.0, 1.0, 1.1, 1.0])
    monkeypatch.setattr(pairing, "seconds", lambda call: next(durations))
    assert pairing.warm_up(None) == 4


@pytest.mark.any_backend
def test_emulated_bfloat16_is_left_out(benchmarks, monkeypatch):
    import worker

    monkeypatch.setattr(worker, "seconds", lambda call: call())
    lines = [
        {"peer": peer, "ours_dtype": "float32", "peer_dtype": dtype}
        for peer in ("keras_hub", "transformers")
        for dtype in ("float32", "bfloat16")
    ]

    def product(name, dtype):
        slow = name == "transformers" and dtype == "bfloat16"
        return lambda: 40.0 if slow else 1.0

    kept, left_out = worker.without_emulated_bfloat16(lines, product)
    assert kept == lines[:3] and left_out == lines[3:]


@pytest.mark.proof
@pytest.mark.any_backend
def test_examples_beside_the_reference(tmp_path, tiny_lines, tiny_vocab):
    (tmp_path / "text.txt").write_text("\n".join(tiny_lines[:20]))
    report, shown = report_of(
        *("bench_examples", tmp_path, "--cores", "1", "--lengths", "128"),
        *("--batch-size", "3", "--batches", "2"),
        *("--text", tmp_path / "text.txt", "--vocab", tiny_vocab),
    )
    (line,) = report["lines"]
    assert line["cores"] == 1 and line["length"] == 128
    (packed,) = report["packed"]
    assert packed["fill"] == pytest.approx(
        packed["peer_fill"] * packed["examples_per_row"]
    )
    # Two batches of three, two thirds of which are not padding at least.
    calls = line["calls"]
    assert all(512 < call["tokens"] <= 6 * 128 for call in calls["ours"])
    assert len(calls["ours"]) == len(calls["peer"]) == PAIRS
    ours, peer = (
        np.array([call["tokens"] / call["seconds"] for call in calls[side]])
        for side in ("ours", "peer")
    )
    assert math.isclose(line["ratio"], np.mean(ours / peer))
    assert f"{line['ratio']:.2f}" in shown


@pytest.fixture
def tiny_sst2(tmp_path, tiny_lines, tiny_vocab):
    """The folder of data that the benchmark of fine-tuning reads."""
    folder = tmp_path / "glue" / "SST-2"
    folder.mkdir(parents=True)
    (tmp_path / "vocab").mkdir()
    shutil.copy(tiny_vocab / "spiece.model", tmp_path / "vocab/30k-clean.model")
    for name, lines in (("train", tiny_lines[:40]), ("dev", tiny_lines[40:47])):
        # Of two lengths; not every side normalizes quotes and accents.
        rows = [
            f"{line[: 8 + 24 * (i % 2)]} ``{line[-1]}''\t{i % 2}"
            for i, line in enumerate(lines)
        ]
        text = "\n".join(["sentence\tlabel", *rows])
        (folder / f"{name}.tsv").write_text(text)
    return tmp_path


@pytest.mark.proof
@pytest.mark.skipif(
    BACKEND == "jax",
    reason="JAX compiles for minutes what TensorFlow and PyTorch run, too",
)
def test_fine_tuning_beside_the_peers(tmp_path, tiny_sst2):
    pytest.importorskip("keras_hub", reason="keras-hub is missing")
    peers = ["keras_hub"]
    if BACKEND == "torch" and importlib.util.find_spec("transformers"):
        peers.append("transformers")
    report, shown = report_of(
        *("bench_finetune", tmp_path, "--size", "tiny", "--backends", BACKEND),
        *("--data", tiny_sst2, "--train-batches", "2", "--dev-batches", "2"),
        *("--batch-size", "4"),
    )
    assert [(line["peer"], line["mode"]) for line in report["lines"]] == [
        (peer, mode)
        for peer in peers
        for mode in ("epoch", "evaluation", "both")
    ]
    for line in report["lines"]:
        assert line["backend"] == BACKEND and line["pairs"] == PAIRS
        assert line["logits_difference"] <= 1e-4
        ours, peer = (line["sides"][side] for side in ("ours", "peer"))
        assert len(ours["calls"]) == len(peer["calls"]) == PAIRS
        # The same texts: as many tokens without padding.
        ours_real, peer_real = (
            (1 - side["padding"])
            * sum(call["tokens"] for call in side["calls"])
            for side in (ours, peer)
        )
        assert math.isclose(ours_real, peer_real)
        assert f"{line['ratio']:.2f}" in shown
    assert shown.count("same predictions") == len(peers)


@pytest.mark.any_backend
def test_a_sample_has_the_lengths_of_all(benchmarks):
    from finetune_sides import Examples

    # Seven batches: five of one short text, two of two long ones.
    plan = [(np.array([i]), 8) for i in range(5)]
    plan = [(np.array([5, 6]), 16), *plan, (np.array([7, 8]), 16)]
    lengths = np.array([3, 4, 5, 6, 7, 11, 12, 13, 14])
    every = Examples([str(n) for n in range(9)], np.arange(9) % 2, lengths)
    assert sorted(every.sample(plan, 7).texts) == every.texts
    third = every.sample(plan, 3)
    # Of the batches at 7/6, 21/6 and 35/6, by length.
    assert sorted(third.texts) == ["1", "3", "5", "6"]
    numbers = np.array(third.texts, int)
    np.testing.assert_array_equal(third.targets, numbers % 2)
    np.testing.assert_array_equal(third.lengths, lengths[numbers])
    assert third.tokens == 4 + 6 + 11 + 12
    with pytest.raises(AlbertError, match="there are 7 batches"):
        every.sample(plan, 8)


@pytest.mark.any_backend
def test_other_predictions_are_refused(benchmarks):
    from finetune_sides import check_same_predictions

    ours = np.array([[0.5, 0.50001], [2.0, -1.0]])
    assert check_same_predictions(ours, ours + 5e-5) == pytest.approx(5e-5)
    with pytest.raises(AlbertError, match=r"by up to 0\.001, .* of 0 of 2"):
        check_same_predictions(ours, ours + 1e-3)
    other_class = ours - [[0, 2e-5], [0, 0]]
    with pytest.raises(AlbertError, match=r"by up to 2e-05, .* of 1 of 2"):
        check_same_predictions(ours, other_class)


@pytest.mark.any_backend
def test_other_training_is_refused(benchmarks):
    from finetune_sides import Side, check_same_training

    def check(weights, loss):
        sides = {
            "ours": Side(None, None, 10),
            "peer": Side(None, None, weights),
        }
        check_same_training(sides, {"ours": 0.69, "peer": loss})

    check(10, 0.6901)
    with pytest.raises(AlbertError, match="as many weights"):
        check(11, 0.69)
    with pytest.raises(AlbertError, match="the same loss"):
        check(10, 0.7)


@pytest.mark.any_backend
def test_a_line_of_fine_tuning(benchmarks):
    from bench_finetune import Call, line, modes

    epoch, evaluation = Call(30, 3.0, 5.0), Call(10, 1.0, 2.0)
    assert modes(epoch, evaluation)["both"] == Call(40, 4.0, 7.0)
    found = line(
        # Ratios 2 and 4 of seconds, 1 and 3 of the processor's.
        {
            "ours": [Call(40, 1.0, 4.0), Call(60, 2.0, 2.0)],
            "peer": [Call(100, 2.0, 4.0), Call(100, 8.0, 6.0)],
        },
        {"ours": 9.0, "peer": 7.0},
        examples=3,
        real_tokens=25,
    )
    assert found["ratio"] == 3 and found["ratio_quartiles"] == [2.5, 3.5]
    assert found["cpu_ratio"] == 2
    ours, peer = found["sides"]["ours"], found["sides"]["peer"]
    assert ours["examples_per_second"] == 2 and ours["padding"] == 0.5
    assert peer["tokens_per_second"] == 5 and peer["padding"] == 0.75
    assert ours["first_seconds"] == 9 and peer["first_seconds"] == 7


@pytest.mark.proof
@pytest.mark.any_backend
def test_early_exit_beside_the_whole_model(tmp_path):
    report, shown = report_of(
        "bench_exits", tmp_path, "--size", "tiny", "--batch-sizes", "2"
    )
    found = {line["rule"]: line for line in report["lines"]}
    assert [line["layers"] for line in found.values()] == [1, 2]
    for rule, line in found.items():
        assert line["rows"] == 2 and line["pairs"] == PAIRS
        assert rule in shown and f"{line['ratio']:.2f}" in shown


@pytest.mark.proof
@pytest.mark.any_backend
def test_students_beside_one_model(tmp_path):
    report, shown = report_of("bench_students", tmp_path, "--size", "tiny")
    lines = {line["what"]: line for line in report["lines"]}
    assert list(lines) == [
        "an ensemble of 3 predicts",
        "a student of 1 of 2 layers predicts",
        "a training step with a teacher",
    ]
    for what, line in lines.items():
        assert line["pairs"] == PAIRS
        assert what in shown and f"{line['ratio']:.2f}" in shown


@pytest.mark.proof
@pytest.mark.any_backend
def test_exports_beside_the_peers(tmp_path, tiny_vocab):
    """ONNX beside torch; the other sides take minutes to be made."""
    for name in ("onnx", "onnxruntime", "torch", "transformers"):
        pytest.importorskip(name, reason=f"{name} is missing")
    report, shown = report_of(
        *("bench_export", tmp_path, "--size", "tiny", "--vocab", tiny_vocab),
        *("--ours", "onnx", "--peers", "torch", "--threads", "1"),
        *("--batch-sizes", "1", "3", "--lengths", "9"),
    )
    assert report["threads"] == 1 and report["versions"]["onnxruntime"]
    assert [
        (line["weights"], line["batch"], line["length"], line["ours"])
        for line in report["lines"]
    ] == [
        (weights, batch, 9, "onnx")
        for weights in ("float32", "int8")
        for batch in (1, 3)
    ]
    for line in report["lines"]:
        ratios = np.divide(line["ours_seconds"], line["peer_seconds"])
        assert len(ratios) == line["pairs"] == PAIRS
        assert math.isclose(line["ratio"], np.median(ratios))
        assert f"{line['ratio']:.3f}" in shown
    assert report["errors"]["float32"]["onnx"] < 1e-4
    assert 1e-4 < report["errors"]["int8"]["onnx"] < 1
    sizes = report["megabytes"]
    assert sizes["int8"]["onnx"] < 0.5 * sizes["float32"]["onnx"]
    assert shown.count("goal below 1") == 4


@pytest.mark.proof
@pytest.mark.any_backend
def test_requests_beside_transformers(tmp_path, tiny_vocab):
    for name in ("torch", "transformers", "tensorflow_text"):
        pytest.importorskip(name, reason=f"{name} is missing")
    report, shown = report_of(
        *("bench_requests", tmp_path, "--size", "tiny", "--vocab", tiny_vocab),
        *("--peers", "torch", "--threads", "1"),
        *("--clients", "1", "3", "--requests", "12"),
    )
    assert [line["clients"] for line in report["lines"]] == [1, 3]
    for line in report["lines"]:
        assert 0 < line["ours_p50_ms"] <= line["ours_p99_ms"]
        assert f"{line['ratio']:.2f}" in shown


@pytest.mark.any_backend
def test_requests_that_wait_are_answered_together(benchmarks):
    """Each client has its own answer; the first one is answered alone."""
    from bench_requests import Together

    sizes, begun, go_on = [], threading.Event(), threading.Event()

    def answer(texts):
        sizes.append(len(texts))
        begun.set()
        go_on.wait()
        return np.array([int(text) for text in texts])

    together = Together(answer)
    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(together.ask, "0")
        begun.wait()
        others = [pool.submit(together.ask, str(n)) for n in range(1, 12)]
        end = time.monotonic() + 60
        while together._waiting.qsize() < 11 and time.monotonic() < end:
            time.sleep(0.001)
        go_on.set()
        found = [each.result() for each in (first, *others)]
    together.end()
    assert found == [*range(12)] and sizes == [1, 11]


@pytest.mark.any_backend
def test_the_fewest_vectors_that_are_searched(benchmarks):
    from bench_search import FOUND, exact

    vectors = np.eye(FOUND, dtype="float32")
    (found,) = exact(vectors)(vectors[:1])
    assert sorted(found) == list(range(FOUND))


@pytest.mark.any_backend
def test_a_failed_answer_ends_the_clients(benchmarks, monkeypatch):
    """The thread that asks for several texts at once ends, too."""
    import bench_requests

    def failing(texts):
        raise ValueError("no answer")

    monkeypatch.setattr(bench_requests, "_side", [failing])
    before = threading.active_count()
    with pytest.raises(ValueError, match="no answer"):
        bench_requests._requests(bench_requests.TOGETHER, 2, ["a"], 4)
    assert threading.active_count() == before


@pytest.mark.any_backend
def test_each_side_has_its_better_way(benchmarks):
    from bench_requests import ALONE, OURS, TOGETHER, lines_of

    def times(*rates):
        return [{"rate": rate, "waits": [1 / rate]} for rate in rates]

    found = {
        OURS: {TOGETHER: times(8.0, 2.0, 9.0), ALONE: times(4.0, 4.0, 9.0)},
        "torch": {TOGETHER: times(1.0, 1.0, 1.0), ALONE: times(2.0, 4.0, 3.0)},
    }
    (line,) = lines_of(5, found)
    assert (line["ours_way"], line["peer_way"]) == (TOGETHER, ALONE)
    assert (line["ours_rate"], line["peer_rate"]) == (8.0, 3.0)
    assert line["ratio"] == 3.0  # of 4, 0.5 and 3
    assert line["ours_p50_ms"] == pytest.approx(125)


@pytest.mark.any_backend
def test_who_is_fastest(benchmarks):
    """Of ours the one that does best where it does worst."""
    from bench_export import verdicts

    point = {"weights": "int8", "batch": 8, "length": 32}
    lines = [
        point | {"ours": ours, "peer": peer, "ratio": ratio}
        for ours, peer, ratio in [
            ("onnx", "torch", 0.5),
            ("onnx", "onnxruntime", 1.1),
            ("litert", "torch", 0.9),
            ("litert", "onnxruntime", 0.8),
        ]
    ]
    (found,) = verdicts(lines)
    assert "8 x 32: litert takes 0.90 of torch's time" in found
    assert found.endswith("reached")
    (found,) = verdicts(lines[:2])
    assert "1.10 of onnxruntime's" in found and found.endswith("missed")


@pytest.fixture
def export_sides(benchmarks):
    pytest.importorskip("torch", reason="torch is missing")
    return importlib.import_module("export_sides")


@pytest.mark.any_backend
def test_other_vectors_are_refused(benchmarks):
    """In float32 one of a thousand may differ, in int8 all a little."""
    check_same = importlib.import_module("bench_embeddings").check_same
    vectors = np.tile([0.6, 0.8], (1000, 1))
    one, two, a_little = vectors.copy(), vectors.copy(), vectors + 1e-3
    one[3] = two[5:7] = 0.8, 0.6
    check_same(vectors, one, int8=False)
    check_same(vectors, a_little, int8=True)
    with pytest.raises(ValueError, match=r"only 99\.80%"):
        check_same(vectors, two, int8=False)
    with pytest.raises(ValueError, match=r"only 0\.9600"):
        check_same(vectors, one, int8=True)


@pytest.mark.any_backend
def test_search_in_vectors(benchmarks, tmp_path, capsys):
    """On a line, the nearest are known; the queries are not among them."""
    import bench_search

    angles = np.linspace(0, 1, 300)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    np.save(tmp_path / "vectors.npy", vectors)
    options = ["--vectors", str(tmp_path / "vectors.npy"), "--pairs", "2"]
    report = tmp_path / "report.json"
    bench_search.main([*options, "--queries", "20", "--output", str(report)])
    assert read_json(report)["vectors"] == [280, 2]
    found = {line["library"]: line for line in read_json(report)["lines"]}
    assert found["exact, faiss"]["recall"] == 1
    assert found["HNSW, faiss"]["recall"] > 0.9
    nearest = bench_search.exact(vectors)(vectors[150:151])[0]
    assert sorted(nearest) in ([*range(145, 155)], [*range(146, 156)])
    capsys.readouterr()
    with pytest.raises(SystemExit, match=r"at least 1010 rows.*\[300, 2\]"):
        bench_search.main(options)


@pytest.mark.any_backend
def test_other_outputs_are_refused(export_sides):
    rows = export_sides.Rows(["a", "b"], np.zeros((2, 5), "int32"))
    exact = np.array([[-0.1, -2.0], [-1.0, -0.5]])

    def side(difference):
        return lambda rows: exact + difference

    same = {"onnx": side(9e-5), "torch": side(0)}
    export_sides.check_same(same, side(0), rows)
    with pytest.raises(AlbertError, match=r"litert differs by up to 0\.0002"):
        export_sides.check_same(same | {"litert": side(-2e-4)}, side(0), rows)


@pytest.mark.any_backend
def test_sides_take_turns(export_sides):
    order = []
    sides = {name: lambda rows, name=name: order.append(name) for name in "abc"}
    wall, cpu = export_sides.times_in_turn(sides, None, 4)
    # Each side is called twice, one call after the other.
    assert order[::2] == order[1::2]
    order = order[::2]
    rounds = ["".join(order[i : i + 3]) for i in range(0, 12, 3)]
    assert {*map(frozenset, rounds)} == {frozenset("abc")}
    assert len({*rounds}) > 1
    assert {len(times) for times in (*wall.values(), *cpu.values())} == {4}


@pytest.mark.any_backend
def test_texts_and_ids_are_the_same_rows(export_sides, tokenizer):
    rows = export_sides.rows_of(tokenizer, 3, 11)
    assert rows.token_ids.shape == (3, 11) and rows.token_ids.dtype == "int32"
    packed = tokenizer(rows.texts, max_length=11)
    np.testing.assert_array_equal(packed["token_ids"][:, :11], rows.token_ids)
    assert (rows.token_ids != 0).all() and len({*rows.texts}) == 3
    with pytest.raises(AlbertError, match="2 tokens a row"):
        export_sides.rows_of(tokenizer, 1, 2)


@pytest.mark.any_backend
def test_albert_and_bert_differ_in_the_two_ideas_alone(benchmarks):
    from albert_and_bert import both, sizes, table
    from workload import SIZES

    found = sizes(both(SIZES["tiny"]))
    narrow, hidden, inner = 8, 32, 64
    block = 4 * hidden * (hidden + 1) + 4 * hidden
    block += 2 * hidden * inner + inner + hidden
    rows = 97 + 32 + 2 + 2  # pieces, positions, segments, normalization
    # A layer less, and narrow embeddings with a projection.
    less = block + rows * (hidden - narrow) - (narrow + 1) * hidden
    albert, bert = (found[name]["parameters"] for name in ("ALBERT", "BERT"))
    assert bert - albert == less
    times = {"ours_ms": 6.0, "peer_ms": 8.0, "ratio": 0.74}
    for side in found.values():
        side |= {"forward_bytes": None, "train_bytes": 3_000_000}
    lines = table(found | {"forward": times, "train": times})
    assert lines[0].startswith("| | ALBERT-base | BERT-base |")
    assert lines[-3:] == [
        "| memory, training step, MB | 3 | 3 | 1.00 |",
        "| time, forward, ms | 6 | 8 | 0.74 |",
        "| time, training step, ms | 6 | 8 | 0.74 |",
    ]
