"""Searches over options: what is run, kept, stopped, continued and refused.

The runs are small programs in place of training; one test trains.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import matplotlib
import pytest
from commands import refused, run

from keras_albert.errors import AlbertError
from keras_albert.signals import signals_as_ctrl_c
from keras_albert.sweep import run as sweep_run
from keras_albert.sweep.config import SweepRun
from keras_albert.sweep.plan import SearchPlan, read_plan
from keras_albert.sweep.study import JOURNAL_FILE, minutes_before, open_study
from keras_albert.training.run_folder import folder_at

pytestmark = pytest.mark.any_backend

optuna = pytest.importorskip("optuna", reason="optuna is missing")

STARTED = sweep_run._started
PLAN = """
command = "finetune"
[options]
model = "pretrained"
train = "train.tsv"
[search]
learning_rate = [1e-4, 2e-4, 4e-4]
batch_size = [16, 32]
"""
# Writes a log of four evaluations and a report. The score grows with the
# learning rate, and is 0.1 better with the small batch.
PROGRAM = """
import json, pathlib, sys, time
run = json.loads(sys.argv[1])
output = pathlib.Path(run["output"])
output.mkdir(exist_ok=True)
with open(output.parent / "order.txt", "a") as file:
    print(output.name, file=file)
score = 1000 * run["learning_rate"] + 0.1 * (run["batch_size"] == 16)
if run["learning_rate"] == BAD:
    sys.exit("error: the loss is not finite")
lines = ["step,loss,val_accuracy"]
for step in range(1, 5):
    lines.append(f"{step},1.0,{score * step / 4}")
    (output / "log.new").write_text("\\n".join(lines) + "\\n")
    (output / "log.new").replace(output / "log.csv")  # the search reads it
    time.sleep(PAUSE)
report = {"best": "accuracy", "accuracy": score, "training_loss": 0.5}
(output / "report.json").write_text(json.dumps(report))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "sweep.toml").write_text(PLAN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(monkeypatch):
    """Replaces training by the program; returns a function to change it."""
    settings = {"BAD": "None", "PAUSE": "0"}

    def started(plan, values, output):
        run = {**plan.options, **values, "output": str(output)}
        program = PROGRAM
        for name, value in settings.items():
            program = program.replace(name, value)
        command = [sys.executable, "-c", program, json.dumps(run)]
        with open(output.with_name(f"{output.name}.output.txt"), "ab") as file:
            return subprocess.Popen(command, stdout=file, stderr=file)

    monkeypatch.setattr(sweep_run, "_started", started)
    monkeypatch.setattr(sweep_run, "POLL_SECONDS", 0.02)
    return settings.update


def search(folder, **options):
    return sweep_run.sweep(
        SweepRun(folder / "sweep.toml", folder / "out", **options)
    )


def order(folder):
    return (folder / "out" / "order.txt").read_text().split()


def test_a_grid_is_tried_once(folder, trained):
    style = matplotlib.rcParams["axes.facecolor"]
    results = search(folder)
    assert matplotlib.rcParams["axes.facecolor"] == style
    assert len(results) == 6 and len({*order(folder)}) == 6
    best = results[0]
    assert (best["learning_rate"], best["batch_size"]) == (4e-4, 16)
    scores = [row["score"] for row in results]
    assert scores == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.2, 0.1])
    table = (folder / "out" / "table.md").read_text().splitlines()
    assert table[0] == (
        "| learning_rate | batch_size | score | ended | minutes | folder |"
    )
    assert table[2].startswith("| 0.0004 | 16 | 0.5 | finished | ")
    assert (folder / "out" / "plot.png").read_bytes()[:4] == b"\x89PNG"
    again = search(folder)  # nothing is left to run
    assert again == results and len(order(folder)) == 6


def test_a_search_continues(folder, trained):
    trained({"PAUSE": "9"})
    assert search(folder, max_minutes=0.03) == []
    left = "6 of 6 runs have not ended."
    assert left in (folder / "out" / "table.md").read_text()
    (first,) = order(folder)
    trained({"PAUSE": "0.1"})
    results = search(folder)
    assert len(results) == 6
    # Four evaluations with a pause after each, and Python's start.
    assert all(0.4 / 60 < row["minutes"] < 0.5 for row in results)
    # The time before the interruption counts, too.
    (minutes,) = [r["minutes"] for r in results if r["folder"] == first]
    assert minutes > 0.03 + 0.4 / 60
    # The interrupted run continues in its own folder; the others run once.
    assert order(folder).count(first) == 2 and len(order(folder)) == 7


def test_hopeless_runs_are_stopped(folder, trained):
    """Of those that have come so far, the worse half."""
    trained({"PAUSE": "0.2"})
    results = search(folder, method="halving")
    assert results[0]["score"] == pytest.approx(0.5) and len(results) == 6
    stopped = {
        (row["learning_rate"], row["batch_size"])
        for row in results
        if row["ended"] == "stopped early"
    }
    assert stopped == {(1e-4, 32), (2e-4, 32)}


@pytest.mark.filterwarnings("error:The reported value is ignored")
def test_evaluations_before_an_interruption_count_once(folder, trained):
    """In successive halving, for which two trials would be two runs."""
    trained({"PAUSE": "1"})
    search(folder, method="halving", max_minutes=0.03)
    trained({"PAUSE": "0.2"})
    results = search(folder, method="halving")
    plan = read_plan(folder / "sweep.toml")
    run = SweepRun(folder / "sweep.toml", folder / "out", method="halving")
    trials = open_study(optuna, run, plan).get_trials()
    assert len(trials) == len(results) == 6
    assert all(
        len(trial.intermediate_values) == 4
        for trial in trials
        if trial.state.name == "COMPLETE"
    )


def test_a_decision_outlives_its_search(folder, trained, monkeypatch):
    """A run is rejected, and the search killed before the run has ended."""
    trained({"PAUSE": "0.2"})
    wait = subprocess.Popen.wait
    with monkeypatch.context() as patch:

        def killed(process, *timeout):
            wait(process, *timeout)
            if process.returncode < 0:  # it was told to end
                raise SystemExit

        patch.setattr(subprocess.Popen, "wait", killed)
        with pytest.raises(SystemExit):
            search(folder, method="halving")
    rejected = order(folder)[-1]
    results = search(folder, method="halving")
    assert len(results) == 6 and order(folder).count(rejected) == 1
    (row,) = [row for row in results if row["folder"] == rejected]
    assert row["ended"] == "stopped early"


def test_ctrl_c_is_not_for_the_runs(folder):
    """They get one signal, that of the search: two end them at once."""
    (folder / "out").mkdir()
    process = STARTED(
        read_plan(folder / "sweep.toml"), {}, folder / "out" / "a"
    )
    assert os.getpgid(process.pid) == process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_too(folder, trained, monkeypatch, number):
    trained({"PAUSE": "60"})
    begun, processes = folder / "out" / "order.txt", []
    started = sweep_run._started

    def keep(*options):
        processes.append(started(*options))
        return processes[-1]

    monkeypatch.setattr(sweep_run, "_started", keep)

    def terminate():
        while not begun.is_file():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    # Under `nohup` the tests ignore SIGHUP.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        threading.Thread(target=terminate, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            search(folder)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert [process.returncode for process in processes] == [-signal.SIGTERM]
    table = (folder / "out" / "table.md").read_text()
    assert "6 of 6 runs have not ended." in table


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_ctrl_c():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_median_of_several_seeds(tmp_path):
    scores = {"accuracy": {"median": 0.75, "mean": 0.5}}
    (tmp_path / "report.json").write_text(json.dumps({"scores": scores}))
    assert sweep_run._score(tmp_path, "accuracy") == 0.75


def test_a_run_that_fails_ends_nothing_else(folder, trained):
    (folder / "sweep.toml").write_text(PLAN.replace("[16, 32]", "[16]"))
    trained({"BAD": "0.0002"})
    results = search(folder)
    assert [row["ended"] for row in results] == ["finished"] * 2 + ["failed"]
    assert results[-1]["score"] is None
    table = (folder / "out" / "table.md").read_text()
    assert "| 0.0002 | 16 | - | failed |" in table


@pytest.mark.parametrize(
    "end",
    [  # before a checkpoint, and later
        "output.rmdir(); sys.exit('error: The training diverged at step 1: x')",
        "sys.exit('error: no space left')",
    ],
)
def test_the_first_run_fails_in_training(folder, trained, monkeypatch, end):
    """That is no refusal of its options: the others are run."""
    (folder / "sweep.toml").write_text(PLAN.replace("[16, 32]", "[16]"))
    failing = 'if run["learning_rate"] == 1e-4:\n    ' + end + "\n"
    program = PROGRAM.replace("with open", failing + "with open", 1)
    program = program.replace("file=file)", "file=file)\n", 1)
    monkeypatch.setitem(globals(), "PROGRAM", program)
    results = search(folder)
    assert [row["ended"] for row in results] == ["finished"] * 2 + ["failed"]


def test_values_that_are_lists(folder, trained, monkeypatch):
    given, started = [], sweep_run._started

    def noted(plan, values, output):
        given.append(values["embedding.dimensions"])
        return started(plan, values, output)

    monkeypatch.setattr(sweep_run, "_started", noted)
    sizes = "[[8, 4], [4]]\nbatch_size = [16]"
    plan = PLAN.replace(
        "batch_size = [16, 32]", f"'embedding.dimensions' = {sizes}"
    )
    (folder / "sweep.toml").write_text(plan)
    results = search(folder)
    assert len(results) == 6
    assert given == [[8, 4], [4]] * 3
    assert results[0]["embedding.dimensions"] in given
    assert (folder / "out" / "plot.png").is_file()
    assert search(folder) == results


def test_nothing_is_held_out(folder, trained, monkeypatch):
    """The file must be corrected, and may use the same output."""
    program = PROGRAM.replace('"best": "accuracy"', '"on_training_rows": {}')
    assert program != PROGRAM
    monkeypatch.setitem(globals(), "PROGRAM", program)
    with pytest.raises(AlbertError, match=r"the run has none\. Add"):
        search(folder)
    assert not (folder / "out").exists()


def test_nothing_is_held_out_later(folder, trained, monkeypatch, capsys):
    """Runs without the score have failed, and the others go on."""
    later = 'if run["batch_size"] == 32:\n    report["on_training_rows"] = {}\n'
    program = PROGRAM.replace('(output / "report', later + '(output / "report')
    assert program != PROGRAM
    monkeypatch.setitem(globals(), "PROGRAM", program)
    results = search(folder)
    assert [row["ended"] for row in results] == ["finished"] * 3 + [
        "failed"
    ] * 3
    assert capsys.readouterr().out.count("the run has none. Add") == 3


def test_halving_by_what_no_log_has(folder, trained, monkeypatch):
    program = PROGRAM.replace("val_accuracy", "val_other")
    monkeypatch.setitem(globals(), "PROGRAM", program)
    with pytest.raises(AlbertError, match=r"log\.csv has no `accuracy`\. Sea"):
        search(folder, method="halving")
    assert len(order(folder)) == 1


def test_a_run_outlives_its_search(folder, trained, monkeypatch):
    """It is waited for, and has not failed; of several seeds, one is named."""
    said = "error: {output}/seed-0: another process is at work"
    program = PROGRAM.replace("score =", f"sys.exit(f'{said}')\nscore =", 1)
    monkeypatch.setitem(globals(), "PROGRAM", program)
    with pytest.raises(AlbertError, match="goes on in a process"):
        search(folder)
    assert len(order(folder)) == 1


def test_halving_of_several_seeds(folder, trained):
    plan = PLAN.replace("[search]", "seeds = 3\n[search]")
    (folder / "sweep.toml").write_text(plan)
    with pytest.raises(AlbertError, match=r"Received: seeds=\[3\]"):
        search(folder, method="halving")
    assert not (folder / "out").exists()


def test_a_run_that_fails_late_has_no_score(folder, trained, monkeypatch):
    """Its evaluations were better than those of runs that did not fail."""
    (folder / "sweep.toml").write_text(PLAN.replace("[16, 32]", "[16]"))
    trained({"BAD": "None", "PAUSE": "0.1"})
    failing = PROGRAM + 'sys.exit(run["learning_rate"] == 4e-4)\n'
    monkeypatch.setitem(globals(), "PROGRAM", failing)
    results = search(folder)
    assert [row["ended"] for row in results] == ["finished"] * 2 + ["failed"]
    assert results[-1]["score"] is None


def test_failed_runs_are_tried_again(folder, trained):
    """Only on request, and each once; the others are not run again."""
    (folder / "sweep.toml").write_text(PLAN.replace("[16, 32]", "[16]"))
    trained({"BAD": "0.0002"})
    search(folder)
    trained({"BAD": "None"})
    assert search(folder)[-1]["ended"] == "failed" and len(order(folder)) == 3
    results = search(folder, retry_failed=True)
    assert [row["ended"] for row in results] == ["finished"] * 3
    assert len(order(folder)) == 4
    assert search(folder, retry_failed=True) == results
    assert len(order(folder)) == 4


def test_runs_that_fail_again(folder, trained, capsys, monkeypatch):
    """All of them: none ends the search, and each has its own last error."""
    rates, one = "[1e-4, 2e-4, 4e-4]", "[2e-4]"
    (folder / "sweep.toml").write_text(PLAN.replace(rates, one))
    (folder / "out").mkdir()
    failing = PROGRAM + "sys.exit('Killed')\n"
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "PROGRAM", failing)
        assert {row["ended"] for row in search(folder)} == {"failed"}
    with pytest.raises(AlbertError, match="for the best accuracy"):
        search(folder, score="f1", retry_failed=True)
    assert len(search(folder)) == 2 and len(order(folder)) == 2
    trained({"BAD": "0.0002"})
    capsys.readouterr()
    results = search(folder, retry_failed=True)
    assert [row["ended"] for row in results] == ["failed"] * 2
    said = capsys.readouterr().out
    assert said.count("failed: error: the loss is not finite") == 2
    failing = PROGRAM + "sys.exit('Killed')\n"
    trained({"BAD": "None"})
    monkeypatch.setitem(globals(), "PROGRAM", failing)
    search(folder, retry_failed=True)
    assert capsys.readouterr().out.count("failed: Killed") == 2


@pytest.mark.parametrize("option", ["train", "validation"])
@pytest.mark.parametrize("path", ["data", "data/manifest.json"])
def test_other_data_in_a_search(folder, trained, path, option):
    """A table, or shards; data that no longer exist may be unchanged."""
    plan = PLAN.replace("[search]", 'validation = "held"\n[search]')
    names = {"train": "train.tsv", "validation": "held"}
    (folder / "sweep.toml").write_text(plan.replace(names[option], "data"))
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text("text\tlabel\na\tb\n")
    results = search(folder)
    (folder / path).unlink()
    assert search(folder) == results
    (folder / path).write_text("text\tlabel\na\tc\n")
    with pytest.raises(AlbertError, match="data has changed since"):
        search(folder)
    assert len(order(folder)) == 6


def test_another_architecture_in_a_search(folder, monkeypatch):
    """Its file is compared, too, as an edit would give other models."""
    monkeypatch.setenv("HOME", str(folder))
    (folder / "sizes.json").write_text("{}")
    plan = SearchPlan("pretrain", {"config": "~/sizes.json"}, {"seed": [1, 2]})
    before = sweep_run._checksums(plan)
    (folder / "sizes.json").write_text('{"hidden_size": 48}')
    assert before.keys() == {str(folder / "sizes.json")}
    assert before != sweep_run._checksums(plan)


def test_a_wrong_score_is_corrected(folder, trained):
    """The run that found it out is not lost; later the score is settled."""
    with pytest.raises(AlbertError, match=r"no score `f11`.*accuracy"):
        search(folder, score="f11")
    assert all(row["score"] for row in search(folder))
    with pytest.raises(AlbertError, match=r"the best accuracy.*--score f1"):
        search(folder, score="f1")


def test_failed_runs_are_the_last(folder, trained, monkeypatch):
    """Even of scores below 0, such as Matthews's."""
    (folder / "sweep.toml").write_text(PLAN.replace("[16, 32]", "[16]"))
    below = PROGRAM.replace("score = 1000", "score = -1 + 1000")
    monkeypatch.setitem(globals(), "PROGRAM", below)
    trained({"BAD": "0.0002"})
    scores = [row["score"] for row in search(folder)]
    assert scores == [pytest.approx(-0.5), pytest.approx(-0.8), None]


def test_the_score_of_pretraining(folder):
    """The one on held-out text, which its report has in a part of its own."""
    plan = 'command = "pretrain"\n[options]\ndata = "a"\nvalidation = "b"\n'
    path = folder / "sweep.toml"
    path.write_text(plan + "[search]\nseed = [1]")
    name = sweep_run._score_name(SweepRun(path, folder), read_plan(path))
    assert name == "mlm_accuracy"
    report = {"training_loss": 1.0, "held_out": {"mlm_accuracy": 0.5}}
    (folder / "report.json").write_text(json.dumps(report))
    assert sweep_run._score(folder, name) == 0.5


@pytest.mark.parametrize("name", ["best", "accuracies"])
def test_a_score_that_is_no_number(name, folder, trained, monkeypatch):
    several = PROGRAM.replace('"best":', '"accuracies": [score], "best":')
    monkeypatch.setitem(globals(), "PROGRAM", several)
    with pytest.raises(AlbertError, match=f"no score `{name}`.*accuracy"):
        search(folder, score=name)


def test_values_that_are_equal(folder):
    """Also a number that is written as a text, of an option that takes one."""
    for old, new, name in (
        ("[16, 32]", "[16, 16.0]", "batch_size"),
        ("[16, 32]", "[16, '16']", "batch_size"),
        ("[1e-4, 2e-4, 4e-4]", "['1e-4', 0.0001]", "learning_rate"),
    ):
        (folder / "sweep.toml").write_text(PLAN.replace(old, new))
        with pytest.raises(AlbertError, match=f"{name}` has a value twice"):
            read_plan(folder / "sweep.toml")


def test_a_run_of_a_search_that_was_killed(folder, trained, monkeypatch):
    """It holds its folder: it is no failed run, and is waited for."""
    busy = 'sys.exit(f"error: {output}: another process is at work on it.")\n'
    with monkeypatch.context() as patch:
        start = "output.mkdir(exist_ok=True)\n"
        patch.setitem(
            globals(), "PROGRAM", PROGRAM.replace(start, start + busy)
        )
        with pytest.raises(AlbertError, match="an earlier command has started"):
            search(folder)
    assert {row["ended"] for row in search(folder)} == {"finished"}


def test_a_search_that_is_killed_when_a_run_ends(folder, trained, monkeypatch):
    """The run's score is not stored yet: it counts as interrupted."""
    with monkeypatch.context() as patch:
        killed = Mock(side_effect=KeyboardInterrupt)
        patch.setattr(optuna.study.Study, "tell", killed)
        with pytest.raises(KeyboardInterrupt):
            search(folder)
    results = search(folder)
    assert len(results) == 6 and all(row["score"] for row in results)


def test_a_search_that_is_killed_before_a_run(folder, trained, monkeypatch):
    """While it fills its queue, or reads a combination: none is left out."""
    killed = Mock(side_effect=KeyboardInterrupt)
    calls = iter([optuna.study.Study.enqueue_trial] * 2)
    for owner, name, replacement in (
        (
            optuna.study.Study,
            "enqueue_trial",
            lambda *args: next(calls, killed)(*args),
        ),
        (optuna.trial.Trial, "suggest_categorical", killed),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, replacement)
            with pytest.raises(KeyboardInterrupt):
                search(folder)
    results = search(folder)
    assert len(results) == 6 and len(order(folder)) == 6


def test_a_run_that_was_stopped_alone(folder, trained, monkeypatch):
    """By SIGTERM, after which training ends with the status 0."""
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "PROGRAM", "import sys; sys.exit(0)")
        with pytest.raises(AlbertError, match="stopped before its end"):
            search(folder)
    assert len(search(folder)) == 6


def test_a_journal_whose_last_line_is_cut(folder, trained):
    search(folder)
    with open(folder / "out" / JOURNAL_FILE, "a") as file:
        file.write('{"op_code":8,"worker_id":"3563')
    for _ in range(2):
        assert len(search(folder)) == 6


def test_the_first_run_refuses_the_options(folder, trained):
    """A real command, without its table; then the corrected file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_run, "_started", STARTED)
        with pytest.raises(AlbertError, match=r"the first run: train\.tsv"):
            search(folder)
    assert not (folder / "out").exists()
    (folder / "sweep.toml").write_text(PLAN.replace("train.tsv", "t.tsv"))
    assert len(search(folder)) == 6


def test_another_search_in_the_folder(folder, trained):
    search(folder)
    (folder / "sweep.toml").write_text(PLAN.replace("4e-4", "5e-4"))
    with pytest.raises(
        AlbertError, match=r"search.learning_rate=.*0.0004\] there, .*0.0005\]"
    ):
        search(folder)
    (folder / "sweep.toml").write_text(PLAN)
    with pytest.raises(AlbertError, match=r"--method grid\. .*halving"):
        search(folder, method="halving")
    assert len(order(folder)) == 6


def test_a_run_of_another_command_in_the_folder(folder, trained):
    (folder / "out").mkdir()
    (folder / "out" / "run.json").write_text('{"steps": 5}')
    with pytest.raises(AlbertError, match="a run of another command"):
        search(folder)


def test_minutes_of_a_search_that_is_killed(folder, trained, monkeypatch):
    """They are stored while a run is trained, not only at its end."""
    monkeypatch.setattr(sweep_run, "STORED_SECONDS", 0.1)
    trained({"PAUSE": "0.3"})
    with monkeypatch.context() as patch:
        store = sweep_run._store_minutes
        stored = []

        def killed_later(trial, begun):
            if len(stored) == 2:  # as SIGKILL, nothing is stored any more
                raise KeyboardInterrupt
            stored.append(store(trial, begun))

        patch.setattr(sweep_run, "_store_minutes", killed_later)
        with pytest.raises(KeyboardInterrupt):
            search(folder)
    trained({"PAUSE": "0"})
    first = order(folder)[0]
    (minutes,) = [r["minutes"] for r in search(folder) if r["folder"] == first]
    assert minutes > 0.2 / 60


@pytest.mark.parametrize("place", ["", "seed-1"])
def test_a_run_that_goes_on_is_found_before_another_begins(
    folder, trained, place
):
    """A command that was killed leaves the process of its run."""
    trained({"PAUSE": "9"})
    assert search(folder, max_minutes=0.02) == []
    (first,) = order(folder)
    left = folder_at(folder / "out" / first / place)
    left.output.mkdir(exist_ok=True)
    (left.output / "run.json").write_text("{}")
    trained({"PAUSE": "0"})
    with (
        left.locked("training"),
        pytest.raises(AlbertError, match=f"{first} goes on in a process"),
    ):
        search(folder)
    assert order(folder) == [first]
    assert len(search(folder)) == 6


def test_values_at_equal_ratios(folder):
    for high, expected in (
        ("1e-3", [1e-5, 1e-4, 1e-3]),
        ("2e-5", [1e-5, 1.41e-5, 2e-5]),  # rounded to three digits
    ):
        values = f"{{ low = 1e-5, high = {high}, points = 3 }}"
        plan = PLAN.replace("[1e-4, 2e-4, 4e-4]", values)
        (folder / "sweep.toml").write_text(plan)
        found = read_plan(folder / "sweep.toml")
        assert found.search["learning_rate"] == expected
        assert found.combinations == 6
    values = "{ low = 7, high = 29, points = 3 }"
    (folder / "sweep.toml").write_text(PLAN.replace("[16, 32]", values))
    counts = read_plan(folder / "sweep.toml").search["batch_size"]
    assert counts == [7, 14, 29] and all(type(n) is int for n in counts)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"finetune"', '"fintune"', "finetune, pretrain.*'fintune'"),
        ("batch_size =", "batch_sise =", "no option `batch_sise`.*batch_size"),
        ('model = "p', 'output = "p', "output of its own"),
        (
            PLAN,
            'command = "pretrain"\n[options]\ndata = "a"\n[search]\nseed = [1]',
            "on held-out text. Give `validation`",
        ),
        (
            PLAN,
            'command = "pretrain"\n[options]\ndata = "a"\nvalidation = "None"'
            "\n[search]\nseed = [1]",
            "on held-out text. Give `validation`",
        ),
        ('"pretrained"', "2026-01-01", "`model` must be.*: 2026-01-01. Put a"),
        ("[16, 32]", "[16, 08:00:00]", "`batch_size` must be texts, finite"),
        ("4e-4]", "inf]", "`learning_rate` must be texts, finite numbers"),
        ("4e-4]", "'fast']", "`learning_rate` must be a number.*'fast'"),
        ("[16, 32]", "[16, 1.5]", "`batch_size` must be an integer.*1.5"),
        ('"finetune"', '["finetune"]', "`command` must be .*'finetune'"),
        ("[16, 32]", "{ high = 2, points = 2 }", "must have low, high"),
        ("[16, 32]", "[]", "batch_size.*one or more values"),
        ("[16, 32]", "{ low = 2 }", "low, high .* and points"),
        ("[1e-4, 2e-4, 4e-4]", "{ low = 0, high = 1, points = 2 }", "0 < low"),
        (
            "[1e-4, 2e-4, 4e-4]",
            "{ low = 1e-300, high = 1e300, points = 3 }",
            "must have low, high",
        ),
        (
            "[16, 32]",
            "{ low = 1, high = 9, points = 1001 }",
            "points .2 to 1,000",
        ),
        ('train = "train.tsv"', "batch_size = 8", "in `options` and"),
        ("[search]", "[serach]", "Received also: serach"),
        ('command = "finetune"', "command =", "not a TOML file"),
        ("[16, 32]", str([*range(1, 400)]), "1,197 combinations"),
        (PLAN[PLAN.index("learning_rate") :], "", "`search` is empty"),
        ("[16, 32]", "[16, 16]", r"batch_size` has a value twice: \[16, 16"),
        ("[16, 32]", "{low = 1.0, high = 1.001, points = 3}", "value twice"),
        (PLAN[PLAN.index("[options]") :], "options = 3", "`options` must be a"),
        ("[search]", "[search]\ntask = ['CoLa']", "`task` must be .*'CoLa'"),
        ("[search]", "steps = 9\n[search]\nepochs = [1, 2]", "beside `steps`"),
        ("[search]", "validation = 'None'\n[search]", "`validation` is 'none'"),
        ("[search]", "[search]\nvalidation = ['none', 'b']", "held-out rows"),
        (
            "[search]",
            "[search]\ntask = ['CoLA', 'SST-2']",
            "no best score in common .accuracy, matthews",
        ),
    ],
)
def test_a_wrong_file(folder, old, new, message):
    assert old in PLAN
    (folder / "sweep.toml").write_text(PLAN.replace(old, new))
    with pytest.raises(AlbertError, match=message):
        search(folder)
    assert not (folder / "out").exists()


def test_a_recipe_may_be_an_option(folder):
    """A run reads its settings as `finetune --file`, which takes one."""
    options = '[options]\nrecipe = "paper"\ntask = "RTE"'
    (folder / "sweep.toml").write_text(PLAN.replace("[options]", options))
    assert read_plan(folder / "sweep.toml").options["recipe"] == "paper"


def test_wrong_options(folder, trained):
    for minutes in (0, "soon"):
        with pytest.raises(AlbertError, match=f"max_minutes=.*{minutes}"):
            search(folder, max_minutes=minutes)
    errors = "training_loss", "root_mean_squared_error"
    for name in (*errors, *sweep_run.NO_SCORES):
        with pytest.raises(AlbertError, match=f"more is better.*'{name}'"):
            search(folder, score=name)


def test_the_command_line(folder, trained, capsys):
    said = run("sweep", file="sweep.toml", output="out")
    assert "| 0.0004 | 16 | 0.5 | finished |" in said
    error = refused(capsys, "sweep", file="none.toml", output="new")
    assert "none.toml: no such file" in error


@pytest.mark.proof
def test_training(folder, pretrained_folder):
    rows = [f"a {a} fox\t{a}" for a in ("red", "old") for _ in range(8)]
    (folder / "train.tsv").write_text("\n".join(["text\tlabel", *rows]))
    plan = PLAN
    for old, new in (
        ("pretrained", str(pretrained_folder)),
        ("[1e-4, 2e-4, 4e-4]", "[1e-3, 1e-2]"),
        ("[16, 32]", "[8]"),
        ("[search]", 'steps = 2\nvalidation = "train.tsv"\n[search]'),
    ):
        plan = plan.replace(old, new)
    (folder / "sweep.toml").write_text(plan)
    results = search(folder)
    assert [row["ended"] for row in results] == ["finished"] * 2
    assert all(0 <= row["score"] <= 1 for row in results)


def test_a_score_of_zero_is_an_evaluation(tmp_path):
    """And a row without a score, of an interrupted run, is none."""
    rows = "step,loss,val_f1\n1,1.0,0.0\n2,1.0,\n3,1.0,0.5\n"
    (tmp_path / "log.csv").write_text(rows)
    assert [*sweep_run._evaluations(tmp_path, "f1", 0)] == [(1, 0), (2, 0.5)]
    assert [*sweep_run._evaluations(tmp_path, "f1", 1)] == [(2, 0.5)]


def test_minutes_of_several_interruptions():
    """Each attempt stores the minutes of all until then."""
    stored = [("run-a", 2.0), ("run-b", 9.0), ("run-a", 5.0)]
    trials = [
        Mock(user_attrs={"output": output, "minutes": minutes})
        for output, minutes in stored
    ]
    study = Mock(get_trials=lambda deepcopy: trials)
    assert minutes_before(study, "run-a") == 5
    assert minutes_before(study, "run-c") == 0


def test_the_first_evaluation_stops_a_hopeless_run(folder, trained):
    trained({"PAUSE": "0.2"})
    search(folder, method="halving")
    plan = read_plan(folder / "sweep.toml")
    run = SweepRun(folder / "sweep.toml", folder / "out", method="halving")
    read = {
        (trial.params["learning_rate"], trial.params["batch_size"]): len(
            trial.intermediate_values
        )
        for trial in open_study(optuna, run, plan).get_trials()
        if trial.state.name == "PRUNED"
    }
    assert read[1e-4, 32] == 1
