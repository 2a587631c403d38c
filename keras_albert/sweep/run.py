"""The command `sweep`: a run for each combination of values.

Optuna keeps the trials in a journal file and decides which runs to stop. A run
is a process of its own, so that one that fails or diverges ends nothing else.
"""

import dataclasses
import hashlib
import itertools
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from keras_albert.data.saved_dataset import (
    checksum_of_table,
    is_saved_dataset,
)
from keras_albert.errors import AlbertError, is_number, optional_import
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.report import COMPARED, ON_TRAINING_ROWS
from keras_albert.settings import flatten
from keras_albert.signals import signals_as_ctrl_c
from keras_albert.storage import (
    IN_USE,
    MANIFEST_FILE,
    REPORT_FILE,
    WorkFolder,
    checksum,
    local_path,
    read_json,
    remove_folder,
    replacing,
    write_json,
)
from keras_albert.sweep.config import SweepRun
from keras_albert.sweep.plan import SearchPlan, read_plan
from keras_albert.sweep.study import (
    STOPPED_EARLY,
    chosen_value,
    ended_trials,
    enqueue_failed,
    hashable,
    minutes_before,
    open_study,
    results_of,
)
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.training.loop import DIVERGED
from keras_albert.training.plots import can_draw, save_figure
from keras_albert.training.run_folder import MADE_OF, SEED_FOLDER, folder_at
from keras_albert.training.run_log import HELD_OUT, LOG_FILE, RunLog

TABLE_FILE, RESULTS_FILE, PLOT_FILE = "table.md", "results.json", "plot.png"
SETTINGS_FILE = "settings.json"  # of a run, in the format of `--file`
OUTPUT_FILE = "output.txt"  # what a run prints
POLL_SECONDS = 0.5
STORED_SECONDS = 30  # after which the minutes of a run are stored again
# Numbers of a report that are no scores of its model, beside losses and errors.
NO_SCORES = (
    *COMPARED,
    *("mlm_baseline", "sop_baseline", "nsp_baseline"),
    *("epoch", "threshold", "temperature", "tokens_per_second"),
    "model_flops_utilization",
)
NONE = "none"  # how `finetune` is told to hold nothing out


def sweep(run: SweepRun) -> list[dict]:
    """Runs or continues a search; prints and returns its results.

    Returns:
        The results, the best first: the values, the score (None if the run
        failed; that of its last evaluation if it was stopped early), how the
        run ended, its minutes and its folder.

    Raises:
        AlbertError: the file is wrong, the folder belongs to another search,
            Optuna is not installed, or the first run refuses its options.
    """
    optuna = optional_import("optuna", "sweep", "`sweep`")
    plan = read_plan(run.file)
    score = _score_name(run, plan)
    folder = WorkFolder(run.output, RESULTS_FILE)
    identity = dataclasses.asdict(plan) | {"method": run.method}
    data = _checksums(plan)
    begun = folder.begun_with()
    if begun is None:
        folder.claim(identity | {MADE_OF: data})
    else:
        _check_same(run, begun, identity, data)
    try:
        # At a signal the run that is trained must end, too.
        with folder.locked("searching there"), signals_as_ctrl_c():
            study = open_study(optuna, run, plan)
            _check_score(study, run, score)
            _check_none_goes_on(run.output)
            if run.retry_failed:
                enqueue_failed(study)
            try:
                _search(optuna, study, run, plan, score)
            except KeyboardInterrupt:  # or another signal
                print("stopped: give the same command again to continue")
                raise
            finally:  # what has ended can be read after an interruption, too
                results = results_of(study, plan)
                write_json(run.output / RESULTS_FILE, {"runs": results})
                _write_table(results, plan, run.output / TABLE_FILE)
            _draw(optuna, study, run.output / PLOT_FILE)
    except _Refused:
        if begun is None:  # so that the corrected file can be given
            remove_folder(run.output)
        raise
    print((run.output / TABLE_FILE).read_text(encoding="utf-8"))
    print(f"-> {run.output}")
    return results


def _checksums(plan: SearchPlan) -> dict[str, str]:
    """Checksums of the data of a search, by their paths.

    These are tables, manifests of shards, and files of an architecture.
    Folders of benchmarks, and models, are not compared.
    """
    options = [(name, [value]) for name, value in plan.options.items()]
    paths = [
        local_path(str(value))
        for name, values in (*options, *plan.search.items())
        if name in ("train", "validation", "data", "config")
        for value in values
    ]
    found = {}
    for path in paths:
        if is_saved_dataset(path) or path.is_file():
            found[str(path)] = checksum_of_table(path)
        elif (path / MANIFEST_FILE).is_file():
            found[str(path)] = checksum(path / MANIFEST_FILE)
    return found


def _check_same(run: SweepRun, begun: dict, identity: dict, data: dict) -> None:
    """Raises AlbertError unless a folder holds a search of this plan and data.

    Data that no longer exist, or that an older version did not record, are
    taken to be unchanged.
    """
    if not begun.keys() >= identity.keys():
        raise AlbertError(
            f"{run.output}: the output folder is not empty, it holds a run of "
            "another command. Choose another output; nothing was changed."
        )
    if begun["method"] != run.method:
        raise AlbertError(
            f"{run.output} holds a search with --method {begun['method']}. "
            f"Received: --method {run.method}. Give the same one, or choose "
            "another output."
        )
    # `options` and `search` have a value for each option.
    there, here = flatten(begun), flatten(identity)
    changed = [
        f"{name}={there.get(name)!r} there, {here.get(name)!r} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name) and not name.startswith(MADE_OF)
    ]
    if changed:
        raise AlbertError(
            f"{run.output} holds another search ({'; '.join(changed)}). "
            "Choose another output, or give the file that began it."
        )
    for path, earlier in begun.get(MADE_OF, {}).items():
        if data.get(path, earlier) != earlier:
            raise AlbertError(
                f"{path} has changed since the search in {run.output} began, "
                "and its runs cannot be compared with new ones. Choose another "
                "output."
            )


class _Refused(AlbertError):
    """The first run of a search refused its options, or measures nothing."""


def _check_score(study, run: SweepRun, name: str) -> None:
    """Raises AlbertError if runs have ended that were ranked by another score.

    A wrong name is found when the first run has ended, and can be corrected.
    """
    used = study.user_attrs.get("score", name)
    if ended_trials(study) and used != name:
        raise AlbertError(
            f"{run.output} holds a search for the best {used}. Received: "
            f"--score {name}. Give the same score, or choose another output."
        )
    study.set_user_attr("score", name)


def _search(optuna, study, run: SweepRun, plan: SearchPlan, name: str) -> None:
    """Runs what is left of the plan; `name` is that of the score."""
    states = optuna.trial.TrialState
    end = None
    if run.max_minutes is not None:
        end = time.monotonic() + 60 * run.max_minutes
    is_first = not any(
        "ended" in trial.user_attrs
        for trial in study.get_trials(deepcopy=False)
    )
    while len(ended_trials(study)) < plan.combinations:
        trial = study.ask()
        values = {}
        for option, choices in plan.search.items():
            known = [*map(hashable, choices)]
            chosen = trial.suggest_categorical(option, known)
            values[option] = chosen_value(chosen, choices)
        output = run.output / _name(values)
        begun = time.monotonic() - 60 * minutes_before(study, output.name)
        trial.set_user_attr("output", output.name)
        shown = ", ".join(f"{k} {v}" for k, v in values.items())
        print(f"{output.name}: {shown}", flush=True)
        printed_before = _printed(output)
        process = _started(plan, values, output)
        try:
            ended = _watch(process, trial, output, name, begun, end)
        finally:
            _store_minutes(trial, begun)
        if ended == "out of time":
            print("out of time: give the same command again to continue")
            return
        if ended == "failed":
            said = _last_line(_printed(output)[len(printed_before) :])
            # The search before was killed. (Of several seeds the folder of one
            # is named.)
            if str(output) in said and IN_USE in said:
                raise AlbertError(_goes_on(output))
            if is_first and _is_refusal(said, output):
                raise _Refused(f"the first run: {said.removeprefix('error: ')}")
        if ended == "finished":  # before it counts as ended
            try:
                score = _score(output, name, is_first)
            except AlbertError as error:
                if is_first:  # the others would have no such score either
                    raise
                ended, said = "failed", f"error: {error}"
            if is_first and run.method == "halving":
                _check_evaluated(output, name)
        is_first = False
        trial.set_user_attr("ended", ended)
        if ended == "failed":
            print(f"{output.name} failed: {said}", flush=True)
            study.tell(trial, state=states.FAIL)
        elif ended == STOPPED_EARLY:
            study.tell(trial, state=states.PRUNED)
            print(f"{output.name}: stopped early", flush=True)
        else:
            study.tell(trial, score)
            print(f"{output.name}: {name} {score:.4g}", flush=True)


def _check_none_goes_on(output: Path) -> None:
    """Raises AlbertError if an earlier command's run is still being trained.

    That command was killed, and could not end it.
    """
    for run in sorted(output.glob("run-*/")):
        # Of several seeds, each has a folder, and locks it.
        for folder in (run, *run.glob(SEED_FOLDER.format("*/"))):
            work = folder_at(folder)
            if work.begun_with() is None or work.finished():
                continue
            try:
                with work.locked("training"):
                    pass
            except AlbertError:
                raise AlbertError(_goes_on(run)) from None


def _goes_on(output: Path) -> str:
    return (
        f"{output.name} goes on in a process that an earlier command has "
        "started. Wait for it, or end it; then give the same command again."
    )


def _check_evaluated(output: Path, name: str) -> None:
    """Raises AlbertError if the log of a run, unlike its report, has no score.

    Successive halving compares the scores of the log.
    """
    if not any(_evaluations(output, name, 0)):
        raise AlbertError(
            f"--method halving compares runs while they are trained, and "
            f"{output / LOG_FILE} has no `{name}`. Search with --method grid "
            "and another output, or for another --score."
        )


def _is_refusal(said: str, output: Path) -> bool:
    """Whether a run, which said this at its end, has not begun to train.

    A run that failed later leaves its folder, unless it diverged before its
    first checkpoint.
    """
    return (
        said.startswith("error: ")
        and DIVERGED not in said
        and not output.exists()
    )


def _name(values: dict) -> str:
    """The folder of a run, the same for the same values."""
    content = json.dumps(values, sort_keys=True)
    return f"run-{hashlib.sha256(content.encode()).hexdigest()[:10]}"


def _started(plan: SearchPlan, values: dict, output: Path) -> subprocess.Popen:
    settings = output.with_name(f"{output.name}.{SETTINGS_FILE}")
    write_json(settings, {**plan.options, **values, "output": str(output)})
    printed = output.with_name(f"{output.name}.{OUTPUT_FILE}")
    with open(printed, "ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "keras_albert.cli", plan.command]
            + ["--file", str(settings)],
            stdout=file,
            stderr=subprocess.STDOUT,
            # Ctrl-C in a terminal is for all processes of a group. With the
            # SIGTERM of `_watch` it would be the second signal, at which a run
            # ends without a checkpoint.
            process_group=0,
        )


def _store_minutes(trial, begun: float) -> None:
    """Stores how long a run has taken; `begun` is by `time.monotonic()`."""
    trial.set_user_attr("minutes", (time.monotonic() - begun) / 60)


def _watch(process, trial, output: Path, name: str, begun: float, end) -> str:
    """Waits for a run, and ends it early if it is hopeless or time is up.

    The study's pruner decides by the score `name`. `begun` is the value of
    `time.monotonic()` when the run began, and `end` the one at which the time
    is up, or None.
    """
    stored = time.monotonic()
    # Before an interruption, too, see `open_study`.
    reported = len(trial.study.trials[trial.number].intermediate_values)
    try:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            if time.monotonic() > stored + STORED_SECONDS:  # it may be killed
                stored = time.monotonic()
                _store_minutes(trial, begun)
            if end is not None and time.monotonic() > end:
                return "out of time"
            for number, value in _evaluations(output, name, reported):
                reported = number
                trial.report(value, number)
                if trial.should_prune():
                    # Now, as the run's checkpoint may take minutes.
                    trial.set_user_attr("ended", STOPPED_EARLY)
                    return STOPPED_EARLY
    finally:
        if process.poll() is None:
            process.terminate()  # it writes a checkpoint
            try:
                process.wait()
            except KeyboardInterrupt:  # a second one: at once
                process.terminate()
                process.wait()
                raise
    if process.returncode:
        return "failed"
    if not (output / REPORT_FILE).exists():  # a signal to the run alone
        raise AlbertError(
            f"{output.name} was stopped before its end. Give the same command "
            "again: it goes on."
        )
    return "finished"


def _evaluations(output: Path, name: str, after: int) -> Iterator[tuple]:
    """The numbers, from 1, and scores of the evaluations after a number."""
    scores = (row.get(HELD_OUT + name) for row in RunLog(output).rows)
    found = (value for value in scores if value is not None)
    return itertools.islice(enumerate(found, start=1), after, None)


def _score_name(run: SweepRun, plan: SearchPlan) -> str:
    """The number to maximize: a key of the report, and of the log."""
    if run.score is not None and not _is_maximized(run.score):
        raise AlbertError(
            "`score` must be a number of which more is better. Received: "
            f"{run.score!r}. Choose a score such as accuracy."
        )
    given = plan.search.get("validation", [plan.options.get("validation")])
    held_out = [str(each).lower() for each in given if each is not None]
    if plan.command == "pretrain":
        if not held_out or NONE in held_out:
            raise AlbertError(
                f"{run.file}: a search of `pretrain` compares scores on "
                "held-out text. Give `validation`, a folder of token shards."
            )
        return run.score or "mlm_accuracy"
    if NONE in held_out:
        raise AlbertError(
            f"{run.file}: a search compares scores on held-out rows, and "
            f"`validation` is {NONE!r}. Remove it."
        )
    seeds = plan.search.get("seeds", [plan.options.get("seeds", 1)])
    if run.method == "halving" and seeds != [1]:
        raise AlbertError(
            "--method halving compares runs while they are trained, and a run "
            f"of several seeds trains one after another. Received: {seeds=}. "
            "Search with one seed, or with --method grid."
        )
    if run.score:
        return run.score
    given = plan.options.get("task", FinetuneRun.task)
    tasks = plan.search.get("task", [given])
    scores = {ALL_TASKS[task].best for task in tasks}
    if len(scores) > 1:
        raise AlbertError(
            f"the tasks {', '.join(tasks)} have no best score in common "
            f"({', '.join(sorted(scores))}). Search one of them, or name a "
            "score that all reports have with --score."
        )
    return scores.pop()


def _is_maximized(name: str) -> bool:
    """Whether a higher value of this number means a better model."""
    return name not in NO_SCORES and not name.endswith(("loss", "error"))


def _score(output: Path, name: str, is_first: bool = False) -> float:
    report = read_json(output / REPORT_FILE)
    if ON_TRAINING_ROWS in report or report.get("best", name) is None:
        raise (_Refused if is_first else AlbertError)(
            "a search compares scores on held-out rows, and the run has none. "
            "Add `validation`, a table with labels, to the options; for texts "
            "without labels (`task` embedding) also `columns.pair`."
        )
    if name in report.get("scores", {}):  # of several seeds
        return report["scores"][name]["median"]
    values = report.get("held_out", report)
    if not is_number(values.get(name)):
        numbers = [
            name
            for name, value in values.items()
            if isinstance(value, float) and _is_maximized(name)
        ]
        raise AlbertError(
            f"{output / REPORT_FILE} has no score `{name}`. It has "
            f"{', '.join(numbers)}: choose one with --score."
        )
    return values[name]


def _printed(output: Path) -> str:
    """What a run has printed, at all its attempts."""
    path = output.with_name(f"{output.name}.{OUTPUT_FILE}")
    return path.read_text(errors="replace") if path.is_file() else ""


def _last_line(printed: str) -> str:
    lines = printed.strip().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["no output"])[-1]


def _write_table(results: list[dict], plan: SearchPlan, path: Path) -> None:
    titles = [*plan.search, "score", "ended", "minutes", "folder"]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += [
        f"| {' | '.join(_number(row[title]) for title in titles)} |"
        for row in results
    ]
    left = plan.combinations - len(results)
    if left:
        lines += ["", f"{left} of {plan.combinations} runs have not ended."]
    with replacing(path) as unfinished:
        unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _number(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _draw(optuna, study, path: Path) -> None:
    """Draws the score against each option, if matplotlib is installed."""
    complete = optuna.trial.TrialState.COMPLETE
    trials = study.get_trials(deepcopy=False)
    if not can_draw() or all(trial.state != complete for trial in trials):
        return
    import matplotlib.pyplot

    matplotlib.use("Agg")
    with matplotlib.rc_context():  # Optuna chooses a style for all figures
        with warnings.catch_warnings():
            # Optuna calls the function experimental, and matplotlib warns if
            # all values of an axis are equal.
            warnings.simplefilter("ignore")
            axes = optuna.visualization.matplotlib.plot_slice(study)
        figure = (axes.flat[0] if hasattr(axes, "flat") else axes).figure
        save_figure(figure, path)
    matplotlib.pyplot.close(figure)
