"""The ablations: settings, resumption, statistics, and one run of each kind."""

import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import output_of, read_json

import keras_albert as ka
from keras_albert.corpus.config import PrepareRun
from keras_albert.corpus.prepare import prepare

pytestmark = pytest.mark.on_torch

ABLATIONS = Path(__file__).parents[2] / "examples" / "ablations"


@pytest.fixture
def ablations(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(ABLATIONS)
    import run

    handler = signal.getsignal(signal.SIGTERM)  # `main` sets its own
    yield run
    signal.signal(signal.SIGTERM, handler)
    del sys.modules["run"]


@pytest.fixture(scope="module")
def data(tmp_path_factory, tiny_lines, tiny_vocab):
    """Two folders of shards and a task that the words give away."""
    folder = tmp_path_factory.mktemp("ablations")
    for part, lines in (("train", tiny_lines[:400]), ("held_out", tiny_lines)):
        text = folder / f"{part}.txt"
        documents = ["\n".join(lines[i : i + 8]) for i in range(0, 400, 8)]
        text.write_text("\n\n".join(documents))
        prepare(
            PrepareRun(
                (text,), tiny_vocab, folder / part, shard_bytes=2_000, workers=1
            )
        )
    for part, lines in (("train", tiny_lines[:80]), ("dev", tiny_lines[80:])):
        rows = [f"{each}\t{'fox' in each}" for each in lines[:80]]
        table = folder / f"task.{part}.tsv"
        table.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return folder


def test_every_table_has_settings_at_every_scale(ablations, tmp_path):
    scales = ablations._toml("scales")
    tables = {path.stem for path in ABLATIONS.glob("*.toml")} - {"scales"}
    assert len(tables) == 10
    for name in tables:
        table = ablations._toml(name)
        names = [run["name"] for run in table["runs"]]
        assert len(set(names)) == len(names)
        for claim in table["claims"]:
            assert {claim["better"], claim["worse"]} <= set(names)
            assert claim["measure"] in ablations.MEASURES
        for scale in scales.values():
            found = [
                ablations.settings(table, scale, run, 0, tmp_path)
                for run in table["runs"]
            ]
            assert len({json.dumps(each) for each in found}) == len(names)
            assert json.loads(json.dumps(found)) == found
    table = ablations._toml("table6")
    wide = ablations.settings(
        table, scales["base"], table["runs"][2], 0, tmp_path
    )
    config, rate = wide["config"], wide["pretrain"]["optimizer"]
    assert config["hidden_size"] == 1536 and config["embedding_size"] == 384
    base = scales["base"]["pretrain"]["optimizer"]["learning_rate"]
    assert rate["learning_rate"] == base / 2
    assert ablations.folder_name("shared, E = H", 1) == "shared-e-h-1"
    # A trial of the speed has short rows for as large a share of its steps.
    options = {"steps": 6_000, "warmup_steps": 500, "short_steps": 4_500}
    found = ablations.in_steps(options, 50)
    assert found == {"steps": 50, "warmup_steps": 4, "short_steps": 38}
    assert ablations.in_steps(options, 2)["short_steps"] == 1
    options |= {"validate_every": 3_000, "short_steps": 0}
    found = ablations.in_steps(options, 1)
    assert found["validate_every"] == 1 and found["short_steps"] == 0


def test_other_settings_are_refused(ablations, tmp_path):
    ablations._claim(tmp_path / "run", {"name": "a", "seed": 0})
    ablations._check_begun(tmp_path / "run", {"name": "a", "seed": 0})
    with pytest.raises(SystemExit, match="begun with seed=0; now it is 1"):
        ablations._check_begun(tmp_path / "run", {"name": "a", "seed": 1})


@pytest.mark.parametrize("scale", ["tiny", "small", "base"])
def test_every_run_has_an_architecture(ablations, scale):
    """Sizes are fractions of the scale's: none is rounded to what cannot be."""
    sizes, tables = ablations._toml("scales")[scale], 0
    for path in ablations.HERE.glob("*.toml"):
        for run in ablations._toml(path.stem).get("runs", ()):
            config = ablations._config_of(sizes, run)
            ka.AlbertConfig(**{"vocab_size": 97} | config)
            assert config["embedding_size"] > 1, (path.name, run["name"])
            tables += 1
    assert tables > 40


def test_other_data_are_refused(ablations, data, tmp_path):
    table, scale = ablations._toml("table7"), ablations._toml("scales")["tiny"]
    own = tmp_path / "data"
    own.mkdir()
    for path in data.iterdir():
        (own / path.name).symlink_to(path)

    def wanted():
        return ablations.settings(table, scale, table["runs"][0], 0, own)

    ablations._claim(tmp_path / "run", wanted())
    ablations._check_begun(tmp_path / "run", wanted())
    assert wanted()["checksums"].keys() == {*ablations.DATA_FILES}
    (own / "task.dev.tsv").unlink()
    (own / "task.dev.tsv").write_text("text\tlabel\n")
    with pytest.raises(SystemExit, match="was begun with checksums="):
        ablations._check_begun(tmp_path / "run", wanted())


@pytest.mark.parametrize("missing", ["held_out", "task.dev.tsv"])
def test_data_that_are_incomplete(missing, ablations, data, tmp_path):
    for name in ("train", "held_out", "task.train.tsv", "task.dev.tsv"):
        if name != missing:
            (tmp_path / name).symlink_to(data / name)
    with pytest.raises(SystemExit, match=rf"{missing}.*: no such file"):
        ablations._check_data(tmp_path)
    (tmp_path / missing).symlink_to(data / missing)
    ablations._check_data(tmp_path)


def test_verdicts_by_hand(ablations):
    """100 examples: half right has a standard error of 0.05."""

    def runs(*values):
        return [{"mlm_accuracy": v, "mlm_count": 100} for v in values]

    claim = {"measure": "mlm_accuracy", "better": "a", "worse": "b"}
    for a, b, expected in (
        (runs(0.9), runs(0.1), "seen with one seed"),
        (runs(0.1), runs(0.9), "the opposite is seen with one seed"),
        (runs(0.5), runs(0.45, 0.45), "not decidable with one seed"),
        (runs(0.5, 0.5), runs(0.45, 0.45), "not decidable"),
        (runs(0.5), [{}], "not measured"),
    ):
        found = ablations.verdict(claim, {"a": a, "b": b})
        assert found["verdict"] == expected
    half = ablations._half_interval
    assert half({"a": runs(0.5)}, ["a"], "mlm_accuracy") == pytest.approx(
        1.96 * 0.05, rel=1e-3
    )
    # Two seeds that agree are no better known than the examples let them be.
    assert half({"a": runs(0.5, 0.5)}, ["a"], "mlm_accuracy") == pytest.approx(
        1.96 * 0.05, rel=1e-3
    )
    # Seeds that differ by 0.4 and 0.2: their variances 0.08 and 0.02 are pooled
    # to 0.05, with two degrees of freedom, whose quantile is 4.303.
    rows = {"a": runs(0.3, 0.7), "b": runs(0.4, 0.6)}
    assert half(rows, ["a"], "mlm_accuracy") == pytest.approx(
        4.303 * 0.025**0.5, rel=1e-3
    )


def test_a_run_and_its_results(ablations, data, tmp_path, eagerly):
    table, scale = ablations._toml("table7"), ablations._toml("scales")["tiny"]
    run = table["runs"][0]
    wanted = ablations.settings(table, scale, run, 0, data)
    folder = tmp_path / "runs" / ablations.folder_name(run["name"], 0)
    ablations._claim(folder, wanted)
    ablations.make_run(folder)
    part, whole = (
        read_json(shards / "manifest.json")
        for shards in (folder / "shards", data / "train")
    )
    assert 0 < len(part["shards"]) < len(whole["shards"])
    result = read_json(folder / "result.json")
    assert result["steps"] == 6
    assert result["tokens"] == 8 * (4 * 48 + 2 * 64)
    assert 0 <= result["task_accuracy"] <= 1
    assert result["sop_count"] > 0 and result["nsp_count"] > 0
    results = [result, result | {"name": "all text"}]
    arguments = SimpleNamespace(table="table7", scale="tiny", steps=4)
    ablations.write_results(table, arguments, results, tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "Seeds of each mean: 1." in text
    assert "| all text | " in text and "- More text is better" in text
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    written = read_json(tmp_path / "results.json")
    assert len(written["runs"]) == 2 and len(written["claims"]) == 1
    # Of 6 steps 1 warms up, 4 are short and 3 lie between validations.
    said = written["settings"]["pretrain"]
    assert said["steps"] == 4 and said["warmup_steps"] == 1
    assert said["short_steps"] == 3 and said["validate_every"] == 2


def test_some_runs_with_other_steps(
    ablations, data, tmp_path, monkeypatch, capsys
):
    made = []

    def make_all(output, names, arguments):
        """Writes a result for each run."""
        made[:] = names
        for name in names:
            result = {"steps": 3, "minutes": 1, "parameters": 1}
            settings = read_json(output / "runs" / name / "settings.json")
            result |= {"name": settings["name"], "seed": settings["seed"]}
            result |= {"mlm_accuracy": 0.5, "mlm_count": 100}
            ablations._write_json(
                output / "runs" / name / "result.json", result
            )
        return []

    def command(table, *more):
        given = ["run.py", table, "--data", str(data), *more]
        output = tmp_path / table
        monkeypatch.setattr(sys, "argv", [*given, "--output", str(output)])
        ablations.main()
        return output

    monkeypatch.setattr(ablations, "_make_all", make_all)
    steps = ["--steps", "3"]
    output = command("table4", *steps, "--only", "none, E = H", "all, E = H")
    assert made == ["all-e-h-0", "none-e-h-0"]
    wanted = read_json(output / "runs" / "none-e-h-0" / "settings.json")
    assert wanted["config"]["sharing"] == "none"
    assert wanted["pretrain"]["steps"] == 3
    # What an earlier command made stays in the results.
    command("table4", *steps, "--only", "attention, E = H")
    found = read_json(output / "results.json")
    assert [run["name"] for run in found["runs"]] == [
        "all, E = H",
        "none, E = H",
        "attention, E = H",
    ]
    assert found["claims"][0]["verdict"] != "not measured"
    # A command that is refused begins no run.
    with pytest.raises(SystemExit, match="was begun with pretrain="):
        command(
            *("table4", "--steps", "4"),
            *("--only", "feed-forward, E = H", "none, E = H"),
        )
    assert not (output / "runs" / "feed-forward-e-h-0").exists()
    # A run that goes on from another one needs it.
    command("table11", "--only", "4 layers")
    assert made == ["1-layer-0", "2-layers-0", "4-layers-0"]
    for mistake, said in (
        (["--only", "x"], "--only received x, which table4 does not have"),
        (["--steps", "1"], "--steps must be 2 or more"),
    ):
        with pytest.raises(SystemExit):
            command("table4", *mistake)
        assert said in capsys.readouterr().err


def test_runs_of_other_tables_are_not_repeated(ablations, tmp_path):
    """Settings decide, not names; runs that go on from another are made."""
    scale, made = ablations._toml("scales")["small"], {}
    for table in ("table4", "table6", "table7", "table11", "table12"):
        for run in ablations._toml(table)["runs"]:
            folder = tmp_path / table / "runs" / run["name"]
            wanted = ablations.settings(
                ablations._toml(table), scale, run, 0, tmp_path
            )
            ablations._claim(folder, wanted)
            same = ablations._same_run(folder)
            made[table, run["name"]] = same and f"{same.parts[-3]}/{same.name}"
            ablations._write_json(folder / "result.json", {})
    assert {run: same for run, same in made.items() if same} == {
        ("table7", "all text"): "table4/all, E = H",
        ("table12", "H"): "table4/all, E = H",
    }
    (tmp_path / "task.train.tsv").touch()  # which those runs have not learned
    table, folder = (
        ablations._toml("table12"),
        tmp_path / "again" / "runs" / "H",
    )
    (run,) = (run for run in table["runs"] if run["name"] == "H")
    wanted = ablations.settings(table, scale, run, 0, tmp_path)
    ablations._claim(folder, wanted)
    assert ablations._same_run(folder) is None


@pytest.mark.proof
@pytest.mark.parametrize("table", ["table5", "table6", "table11"])
def test_as_a_command(data, tmp_path, table):
    """Runs that start from one another, in two processes; then again."""
    command = [sys.executable, ABLATIONS / "run.py", table, "--jobs", "2"]
    command += ["--data", data, "--output", tmp_path / "out"]
    said = output_of(*command)
    assert ": begins" in said and "The paper: " in said
    assert ": begins" not in output_of(*command)
