"""Runs the ablations of the ALBERT paper, at a scale that you can afford.

    python examples/ablations/run.py table5 --scale small

A table is a TOML file beside this one: its runs, what the paper says, and the
claims to compare, perhaps with a note for the reader of the results.
scales.toml says what a run is at each scale. Every run
pretrains one model, measures it on held-out text (masked LM, sentence order and
next sentence), and fine-tunes it if a task is given. Finished runs are not
repeated, not even for another table (if its output folder is beside this one),
and interrupted ones go on. The output folder gets results.json,
table.md and plot.png.

Without --data, the text is the documentation that every Python carries (see
python_corpus.py), and the task is to tell from which chapter a passage is. With
--data FOLDER, it has `train` and `held_out`, two folders of token shards that
`keras-albert prepare` wrote, and perhaps `task.train.tsv` and `task.dev.tsv`.
"""

import argparse
import concurrent.futures
import copy
import importlib.util
import json
import math
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

from scipy import stats

from keras_albert.storage import checksum

HERE = Path(__file__).parent
MEASURES = {  # of the report's names: the title in the table
    "mlm_accuracy": "masked LM",
    "mlm_loss": "its loss",
    "sop_accuracy": "sentence order",
    "nsp_accuracy": "next sentence",
    "task_accuracy": "task",
}
# The data of a run; the last two may be absent.
DATA_FILES = ("train/manifest.json", "held_out/manifest.json")
DATA_FILES += ("task.train.tsv", "task.dev.tsv")
TRIAL_STEPS = 50  # which measure how long a step takes


def main() -> None:
    """Reads the arguments, makes the runs of a table, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    tables = sorted(path.stem for path in HERE.glob("*.toml"))
    tables.remove("scales")
    parser.add_argument("table", choices=tables)
    parser.add_argument(
        "--scale", choices=list(_toml("scales")), default="tiny"
    )
    parser.add_argument("--data", type=Path, help="see above")
    parser.add_argument(
        "--output", type=Path, help="default: ablations/TABLE-SCALE"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at a time, on all cores"
    )
    parser.add_argument(
        "--steps", type=int, help="of each run, in place of the scale's"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="RUN", help="these runs of the table"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cores", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    output = (
        arguments.output
        or Path("ablations", f"{arguments.table}-{arguments.scale}")
    ).resolve()
    if arguments.jobs < 1:
        parser.error("--jobs must be 1 or more")
    if arguments.steps is not None and arguments.steps < 2:
        parser.error("--steps must be 2 or more")
    if arguments.one:
        # All backends count the cores that a process may use.
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, map(int, arguments.cores.split(",")))
        make_run(output / "runs" / arguments.one)
        return
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("the plot needs matplotlib: pip install matplotlib")
    table, scale = _toml(arguments.table), _scale_of(arguments)
    every = [run["name"] for run in table["runs"]]
    chosen = arguments.only or every
    if unknown := {*chosen}.difference(every):
        parser.error(
            f"--only received {', '.join(sorted(unknown))}, which "
            f"{arguments.table} does not have. It has: {'; '.join(every)}"
        )
    for run in reversed(table["runs"]):  # a run comes after its start
        if run["name"] in chosen and "start" in run:
            chosen = [*chosen, run["start"]]
    if arguments.data:  # before the folders of runs name it
        _check_data(arguments.data)
    output.mkdir(parents=True, exist_ok=True)
    data = (arguments.data or _own_text(output)).resolve()
    claimed, made = {}, []
    for seed in scale["seeds"]:
        for run in table["runs"]:
            name = folder_name(run["name"], seed)
            wanted = settings(table, scale, run, seed, data)
            if run["name"] in chosen:
                _check_begun(output / "runs" / name, wanted)
                claimed[name] = wanted
            elif _is_done(output / "runs" / name, wanted):
                made.append(name)  # by an earlier command
    names = [*claimed]
    for name, wanted in claimed.items():  # when none of them is refused
        _claim(output / "runs" / name, wanted)
    # As Ctrl-C; the runs write a checkpoint, from which they go on.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as with nohup
            signal.signal(number, lambda *_: sys.exit("stopped"))
    failed = _make_all(output, names, arguments)
    made += [name for name in names if name not in failed]
    results = [_read(output / "runs" / name / "result.json") for name in made]
    if results:
        write_results(table, arguments, results, output)
    if failed:
        sys.exit(f"error: failed: {', '.join(failed)}")


def _scale_of(arguments) -> dict:
    """The settings of --scale, for as many steps as --steps says."""
    scale = _toml("scales")[arguments.scale]
    if arguments.steps is not None:
        scale["pretrain"] |= in_steps(scale["pretrain"], arguments.steps)
    return scale


def _toml(name: str) -> dict:
    return tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))


# What to run.


def folder_name(name: str, seed: int) -> str:
    """The folder of a run: "shared, E = H" with seed 0 is shared-e-h-0."""
    words = "".join(c if c.isalnum() else " " for c in name.lower()).split()
    return "-".join([*words, str(seed)])


def settings(
    table: dict, scale: dict, run: dict, seed: int, data: Path
) -> dict:
    """Everything that a run depends on, in a form that JSON keeps.

    `sizes` of a run are multiples of the scale's hidden size, or of its number
    of layers; `learning_rate` is a multiple of the scale's.
    """
    config, first = (
        _config_of(scale, each) for each in (run, table["runs"][0])
    )
    pretrain = _merged(
        copy.deepcopy(scale["pretrain"]), run.get("pretrain", {})
    )
    pretrain["optimizer"]["learning_rate"] *= run.get("learning_rate", 1)
    return {
        "name": run["name"],
        "seed": seed,
        "data": str(data),
        "checksums": {
            name: checksum(data / name)
            for name in DATA_FILES
            if (data / name).is_file()
        },
        "task": (data / "task.train.tsv").exists(),
        "share_of_text": run.get("data", 1),
        "as_long_as": first if table.get("equal_time") else None,
        "start": run.get("start") and folder_name(run["start"], seed),
        "config": config,
        "pretrain": pretrain,
        "finetune": scale["finetune"],
    }


def _config_of(scale: dict, run: dict) -> dict:
    config = scale["config"] | run.get("config", {})
    for name, factor in run.get("sizes", {}).items():
        layers = name == "num_hidden_layers"
        unit = scale["config"]["num_hidden_layers" if layers else "hidden_size"]
        # LayerNorm of an embedding of one number is always 0.
        config[name] = max(round(factor * unit), 1 if layers else 2)
    return config


def _merged(base: dict, other: dict) -> dict:
    for key, value in other.items():
        if isinstance(value, dict):
            value = _merged(base.get(key, {}), value)
        base[key] = value
    return base


def _check_begun(folder: Path, wanted: dict) -> None:
    """Stops if a run was begun here with other settings."""
    path = folder / "settings.json"
    begun = _read(path) if path.exists() else {}
    for key, value in wanted.items():
        if begun.get(key, value) != value:
            sys.exit(
                f"error: {folder} was begun with {key}={begun[key]!r}; now it "
                f"is {value!r}. Choose another --output, or remove the folder."
            )


def _claim(folder: Path, wanted: dict) -> None:
    """Writes the settings of a run, unless it was begun."""
    if not (folder / "settings.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / "settings.json", wanted)


def _is_done(folder: Path, wanted: dict) -> bool:
    """Whether a run with these settings has ended."""
    done = (folder / "result.json").exists()
    return done and _read(folder / "settings.json") == wanted


def _check_data(data: Path) -> None:
    train, held_out, *tables = DATA_FILES
    has_task = (data / tables[0]).exists()
    for name in (train, held_out, *(tables if has_task else ())):
        if not (data / name).is_file():
            sys.exit(f"error: {data / name}: no such file. See --help.")


def _own_text(output: Path) -> Path:
    """Token shards and a task from Python's own documentation."""
    sys.path.insert(0, str(HERE.parent))
    import python_corpus

    data = output.with_name("python-documentation")  # for all tables
    if data.exists():
        return data
    unfinished = output / "data.unfinished"  # others may make it, too
    shutil.rmtree(unfinished, ignore_errors=True)
    text = unfinished / "text"
    python_corpus.main(text)
    _albert(
        ["vocab", "--input", text / "train.txt", "--vocab-size", 4000]
        + ["--output", unfinished / "vocab"]
    )
    for part in ("train", "held_out"):
        _albert(
            ["prepare", "--input", text / f"{part}.txt", "--workers", 1]
            + ["--shard-bytes", 50_000]  # so that a table can use a tenth
            + ["--vocab", unfinished / "vocab", "--output", unfinished / part]
        )
    for part, name in (("train", "train"), ("test", "dev")):
        (text / f"chapters.{part}.tsv").rename(unfinished / f"task.{name}.tsv")
    if not data.exists():
        unfinished.rename(data)
    return data


def _albert(arguments: list) -> None:
    command = [sys.executable, "-m", "keras_albert.cli", *map(str, arguments)]
    subprocess.run(command, check=True)


# Running: each run is a process of its own.


def _make_all(output: Path, names: list[str], arguments) -> list[str]:
    """Makes all runs, `--jobs` at a time; returns those that failed.

    A run that starts from the model of another one waits for it.
    """
    jobs, environment = arguments.jobs, dict(os.environ)
    if jobs > 1:  # or the first process takes most of a GPU's memory
        environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        environment.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    every = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    free = queue.SimpleQueue()  # the cores of each job
    for job in range(jobs):
        free.put(every[job::jobs] or every)

    def make(name: str) -> bool:
        folder = output / "runs" / name
        settings = _read(folder / "settings.json")
        start = settings["start"]
        if start and not pending[start].result():
            if not stopped:
                print(f"{name}: not begun, as {start} failed", flush=True)
            return False
        if (folder / "result.json").exists():
            return True
        if made := _same_run(folder):
            print(f"{name}: is {made}", flush=True)
            own = shutil.ignore_patterns("settings.json", "result.json")
            shutil.copytree(made, folder, ignore=own, dirs_exist_ok=True)
            result = _read(made / "result.json") | {"name": settings["name"]}
            _write_json(folder / "result.json", result)
            return True
        cores = free.get()
        if stopped:  # meanwhile
            free.put(cores)
            return False
        print(f"{name}: begins", flush=True)
        with open(folder / "output.txt", "ab") as said:
            running[name] = subprocess.Popen(
                [sys.executable, __file__, arguments.table, "--one", name]
                + ["--output", output, "--cores", ",".join(map(str, cores))],
                env=environment | {"OMP_NUM_THREADS": str(len(cores))},
                stdout=said,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal is for all processes of a group. With
                # the SIGTERM below it would be the second signal, at which a
                # run ends without a checkpoint.
                process_group=0,
            )
            if stopped:  # after the loop below that ends all that run
                running[name].terminate()
            running[name].wait()
        del running[name]
        free.put(cores)
        done = (folder / "result.json").exists()
        end = "done" if done else f"failed, see {folder / 'output.txt'}"
        if stopped and not done:
            end = "stopped; the same command goes on with it"
        print(f"{name}: {end}", flush=True)
        return done

    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    pending, running, stopped = {}, {}, False
    try:
        for name in names:
            pending[name] = pool.submit(make, name)
        return [name for name, run in pending.items() if not run.result()]
    finally:  # after a signal no run is begun, and those that run are ended
        stopped = True
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running.values()):
            process.terminate()
        pool.shutdown()


def _same_run(folder: Path) -> Path | None:
    """A finished run with the same settings, of a table beside this one."""

    def what_differs(folder: Path) -> dict:
        run = _read(folder / "settings.json")
        if run.get("as_long_as") == run["config"]:
            run["as_long_as"] = None  # it is the run that the others wait for
        return run | {"name": None}

    wanted = what_differs(folder)
    if wanted["start"]:  # the name of a run of its own table
        return None
    for result in sorted(folder.parents[2].glob("*/runs/*/result.json")):
        if what_differs(result.parent) == wanted:
            return result.parent
    return None


def make_run(folder: Path) -> None:
    """Pretrains, measures and fine-tunes one model, in this process."""
    run = _read(folder / "settings.json")
    data, model = Path(run["data"]), folder / "pretrained"
    shards = data / "train"
    if run["share_of_text"] < 1:
        shards = _share_of(shards, run["share_of_text"], folder / "shards")
    options = run["pretrain"] | {
        "data": str(shards),
        "validation": str(data / "held_out"),
        "config": str(_write_config(run["config"], data, folder)),
        "seed": run["seed"],
    }
    if run["start"]:
        options["warm_start"] = str(folder.parent / run["start"] / "pretrained")
    if run["as_long_as"] not in (None, run["config"]):
        options |= in_steps(options, _steps_in_time(run, options, folder))
    report = _command("pretrain", options, model)
    result = {
        **{key: run[key] for key in ("name", "seed")},
        "parameters": report["parameters"],
        "steps": options["steps"],
        "text_tokens": _tokens(shards),
        **{key: report["cost"][key] for key in ("minutes", "tokens", "flops")},
        **_measured(model, data / "held_out", options["examples"]),
    }
    if run["task"]:
        # The best epoch is chosen on a tenth of the training rows, which
        # `finetune` holds out, so that the development rows only measure.
        _command(
            "finetune",
            run["finetune"]
            | {
                "model": str(model),
                "train": str(data / "task.train.tsv"),
                "seed": run["seed"],
            },
            folder / "finetuned",
        )
        task = _evaluate(folder / "finetuned", data / "task.dev.tsv")
        result |= {
            "task_accuracy": task["accuracy"],
            "task_count": task["count"],
            "task_baseline": task["baseline"],
        }
    _write_json(folder / "result.json", result)


def _write_config(config: dict, data: Path, folder: Path) -> Path:
    manifest = _read(data / "train" / "manifest.json")
    path = folder / "albert_config.json"
    _write_json(path, config | {"vocab_size": manifest["vocab_size"]})
    return path


def _tokens(shards: Path) -> int:
    entries = _read(shards / "manifest.json")["shards"]
    return sum(shard["counts"]["tokens"] for shard in entries)


def _share_of(shards: Path, share: float, folder: Path) -> Path:
    """A folder with some shards of another one, a share of its tokens.

    They are taken in their order; one that would be too large is left out.
    """
    manifest = _read(shards / "manifest.json")
    wanted, found, kept = share * _tokens(shards), 0, []
    for shard in manifest["shards"]:
        tokens = shard["counts"]["tokens"]
        if found + tokens / 2 < wanted:
            kept.append(shard)
            found += tokens
    if not 0.5 < found / wanted < 2:
        sys.exit(
            f"error: {shards} cannot be cut to {share:g} of its tokens. "
            "Prepare it with a smaller --shard-bytes."
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for shard in kept:
        for name in shard["files"].values():
            (folder / name).symlink_to(shards / name)
    for path in shards.glob("spiece.*"):
        shutil.copy(path, folder)
    _write_json(folder / "manifest.json", manifest | {"shards": kept})
    return folder


def in_steps(options: dict, steps: int) -> dict:
    """The schedule of `options` for another number of steps.

    Warm-up, the short examples at the start, and what is between validations
    keep their shares of the run.
    """
    share = steps / options["steps"]
    limits = {
        "warmup_steps": (0, steps - 1),
        "short_steps": (0, steps - 1),
        "validate_every": (1, steps),
    }
    return {"steps": steps} | {
        name: min(max(round(share * options[name]), least), most)
        for name, (least, most) in limits.items()
        if name in options
    }


def _steps_in_time(run: dict, options: dict, folder: Path) -> int:
    """The steps that take as long as those of the first run of the table.

    A few steps of both models are timed, one after the other.
    """
    speeds = []
    for name, config in (("this", run["config"]), ("first", run["as_long_as"])):
        trial = folder / f"trial-{name}"
        trial.mkdir(exist_ok=True)
        short = {
            "config": str(_write_config(config, Path(run["data"]), trial)),
            **in_steps(options, TRIAL_STEPS),
            "validate_every": TRIAL_STEPS,
            "validation_steps": 1,
        }
        report = _command("pretrain", options | short, trial / "pretrained")
        speeds.append(report["tokens_per_second"])
    return max(round(options["steps"] * speeds[0] / speeds[1]), 1)


def _measured(model: Path, held_out: Path, examples: dict) -> dict:
    """Scores on masked words and on both sentence tasks, with their counts."""
    found = {}
    learned = examples.get("sentence_task", "sop")
    for task in ("sop", "nsp") if learned != "none" else (None,):
        scores = _evaluate(model, held_out, sentence_task=task)["held_out"]
        for name, value in scores.items():
            # Masked words are measured on the examples of the model's task.
            if not name.startswith("mlm") or task in (None, learned):
                found[name] = value
    return found


def _evaluate(model: Path, data: Path, **options) -> dict:
    from keras_albert.finetuning.config import EvaluateRun
    from keras_albert.finetuning.evaluate import evaluate

    return evaluate(EvaluateRun(str(model), data, **options))


def _command(name: str, options: dict, output: Path) -> dict:
    """Runs a command of keras-albert in this process; returns its report."""
    from keras_albert.cli import main as keras_albert

    path = output.with_name(f"{output.name}.options.json")
    _write_json(path, options | {"output": str(output)})
    keras_albert([name, "--file", str(path)])
    return _read(output / "report.json")


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _write_json(path: Path, content: dict) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    unfinished.replace(path)


# What came out.


def write_results(table, arguments, results: list[dict], output: Path) -> None:
    """Writes results.json, table.md and plot.png, of the runs that are done."""
    rows = {
        run["name"]: [each for each in results if each["name"] == run["name"]]
        for run in table["runs"]
    }
    rows = {name: runs for name, runs in rows.items() if runs}
    shown = [m for m in MEASURES if any(m in each for each in results)]
    verdicts = [claim | verdict(claim, rows) for claim in table["claims"]]
    _write_json(
        output / "results.json",
        {
            "table": arguments.table,
            "scale": arguments.scale,
            "settings": _scale_of(arguments),
            "runs": results,
            "claims": verdicts,
        },
    )
    titles = ["", "parameters", "steps", "minutes"]
    titles += [MEASURES[measure] for measure in shown]
    lines = [
        f"# {table['title']}, scale {arguments.scale}",
        "",
        f"The paper: {table['paper']}",
        "",
        "| " + " | ".join(titles) + " |",
        "|" + "---|" * len(titles),
    ]
    for name, runs in rows.items():
        cells = [name, f"{runs[0]['parameters']:,}"]
        cells.append("/".join(f"{run['steps']:,}" for run in _distinct(runs)))
        # Of the seed that took least: other work may have slowed the others.
        known = [run["minutes"] for run in runs if run["minutes"] is not None]
        cells.append(f"{min(known):.1f}" if known else "-")
        cells += [_cell(rows, name, measure) for measure in shown]
        lines.append("| " + " | ".join(cells) + " |")
    seeds = " or ".join(map(str, sorted({len(runs) for runs in rows.values()})))
    lines += ["", f"Seeds of each mean: {seeds}. Behind +- is half of the 95 %"]
    lines += ["interval.", ""]
    if "note" in table:
        lines += [table["note"], ""]
    for claim in verdicts:
        lines.append(f"- {claim['says']}: **{claim['verdict']}** here.")
        if claim["difference"] is not None:
            lines[-1] += (
                f" {MEASURES[claim['measure']]}: {claim['better']} - "
                f"{claim['worse']} = {claim['difference']:+.4f} +- "
                f"{claim['interval']:.4f}."
            )
    (output / "table.md").write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines))
    _draw(rows, shown, table["title"], output / "plot.png")


def _distinct(runs: list[dict]) -> list[dict]:
    """The runs without those that have as many steps as an earlier one."""
    return list({run["steps"]: run for run in runs}.values())


def _cell(rows: dict, name: str, measure: str) -> str:
    runs = rows[name]
    if any(measure not in run for run in runs):
        return "-"
    mean = statistics.fmean(run[measure] for run in runs)
    if measure.endswith("loss"):
        return f"{mean:.3f}"
    return f"{mean:.3f} +- {_half_interval(rows, [name], measure):.3f}"


def _half_interval(rows: dict, names: list[str], measure: str) -> float:
    """Half of the 95 % interval of a mean accuracy, or of the sum of several.

    Two things vary: which examples are held out, and the seed. The larger of
    both intervals counts. (Models of different sentence tasks are measured on
    different examples of the same text, the others on the same.) The
    variance between seeds is pooled over all runs of the table, as each has few
    seeds; with one seed it is unknown and left out.
    """
    groups = [
        [run[measure] for run in runs]
        for runs in rows.values()
        if all(measure in run for run in runs)
    ]
    freedom = sum(len(values) - 1 for values in groups)
    pooled = sum(
        (value - statistics.fmean(values)) ** 2
        for values in groups
        for value in values
    ) / max(freedom, 1)
    squared = 0.0
    for name in names:
        values = [run[measure] for run in rows[name]]
        mean = statistics.fmean(values)
        count = rows[name][0][measure.replace("accuracy", "count")]
        of_examples = stats.norm.ppf(0.975) ** 2 * mean * (1 - mean) / count
        # How much seeds differ is itself estimated, from few of them.
        quantile = stats.t.ppf(0.975, freedom or math.inf)
        squared += max(of_examples, quantile**2 * pooled / len(values))
    return math.sqrt(squared)


def verdict(claim: dict, rows: dict[str, list[dict]]) -> dict:
    """Whether a claim of the paper is seen, with the interval."""
    measure, names = claim["measure"], [claim["better"], claim["worse"]]
    runs = [rows.get(name, []) for name in names]
    if not all(runs) or any(measure not in run for run in runs[0] + runs[1]):
        return {"verdict": "not measured", "difference": None, "interval": None}
    better, worse = (
        statistics.fmean(r[measure] for r in each) for each in runs
    )
    interval = _half_interval(rows, names, measure)
    difference = better - worse
    seen = "not decidable"
    if abs(difference) > interval:
        seen = "seen" if difference > 0 else "the opposite is seen"
    if any(len(each) == 1 for each in runs):
        seen += " with one seed"
    return {"verdict": seen, "difference": difference, "interval": interval}


def _draw(rows: dict, shown: list[str], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [each for each in shown if each.endswith("accuracy")]
    figure, axes = pyplot.subplots(
        1,
        len(shown),
        figsize=(4 * len(shown), 1 + 0.5 * len(rows)),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for axis, measure in zip(axes[0], shown, strict=True):
        for height, (name, runs) in enumerate(rows.items()):
            if any(measure not in run for run in runs):
                continue
            values = [run[measure] for run in runs]
            error = _half_interval(rows, [name], measure)
            axis.errorbar(
                statistics.fmean(values), height, xerr=error, fmt="o", capsize=3
            )
            axis.plot(values, [height] * len(values), "|", color="gray")
        axis.set_title(MEASURES[measure])
        axis.set_yticks(range(len(rows)), list(rows))
        axis.grid(axis="x", alpha=0.3)
    axes[0][0].invert_yaxis()
    figure.suptitle(title)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
