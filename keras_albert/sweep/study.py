"""The trials of a search, which Optuna keeps in a journal file."""

import itertools
import json
import math
import os

from keras_albert.sweep.config import SweepRun
from keras_albert.sweep.plan import SearchPlan

JOURNAL_FILE = "trials.journal"
STUDY = "sweep"
STOPPED_EARLY = "stopped early"  # how a run has ended
RETRIED = "retried"  # attribute of the study: numbers of trials that failed
REDUCTION = 2  # successive halving keeps the better half


def open_study(optuna, run: SweepRun, plan: SearchPlan):
    """The study in the journal, with a queue of the combinations to run."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = run.output / JOURNAL_FILE
    if path.exists():  # a full disk may have cut its last line
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    journal = optuna.storages.journal.JournalFileBackend(str(path), _NoLock())
    halving = optuna.pruners.SuccessiveHalvingPruner(
        min_resource=1, reduction_factor=REDUCTION
    )
    storage = optuna.storages.JournalStorage(journal)
    study = optuna.create_study(
        study_name=STUDY,
        storage=storage,
        load_if_exists=True,
        direction="maximize",
        pruner=halving
        if run.method == "halving"
        else optuna.pruners.NopPruner(),
    )
    trials = study.get_trials(deepcopy=False)
    if len(trials) < plan.combinations:  # a new search, or killed just here
        # Optuna's `skip_if_exists` takes seeds such as 100000 and 100001 for
        # the same.
        queued = [trial.system_attrs["fixed_params"] for trial in trials]
        for values in itertools.product(*plan.search.values()):
            values = map(hashable, values)
            named = dict(zip(plan.search, values, strict=True))
            if named not in queued:
                study.enqueue_trial(named)
    states = optuna.trial.TrialState
    id_of_study = storage.get_study_id_from_name(STUDY)
    for trial in trials:
        if trial.state != states.RUNNING:
            continue
        # An earlier command was interrupted.
        if trial.user_attrs.get("ended") == STOPPED_EARLY:
            study.tell(trial.number, state=states.PRUNED)
        else:
            # Back into the queue, with the evaluations that it has reported: a
            # second trial would make them count twice in successive halving.
            id_of_trial = storage.get_trial_id_from_study_id_trial_number(
                id_of_study, trial.number
            )
            storage.set_trial_state_values(id_of_trial, states.WAITING)
    return study


def hashable(value: object) -> object:
    """A list as text, as Optuna's plot cannot show lists; others unchanged."""
    return json.dumps(value) if isinstance(value, list) else value


def chosen_value(value: object, choices: list) -> object:
    """The choice for which Optuna has this value, see `hashable`."""
    return choices[[*map(hashable, choices)].index(value)]


def enqueue_failed(study) -> None:
    """Puts the combinations whose last run failed into the queue again."""
    failed = [
        trial
        for trial in ended_trials(study).values()
        if trial.user_attrs["ended"] == "failed"
    ]
    for trial in failed:  # first: an interrupted command then loses none
        study.enqueue_trial(trial.params)
    before = study.user_attrs.get(RETRIED, [])
    study.set_user_attr(RETRIED, before + [trial.number for trial in failed])


def ended_trials(study) -> dict[str, object]:
    """The last trial of each combination that has come to an end."""
    retried = study.user_attrs.get(RETRIED, [])
    return {
        trial.user_attrs["output"]: trial
        for trial in study.get_trials(deepcopy=False)
        if "ended" in trial.user_attrs
        and trial.state.is_finished()
        and trial.number not in retried
    }


def minutes_before(study, output: str) -> float:
    """How long earlier commands have trained a run that they did not finish."""
    earlier = (
        trial.user_attrs.get("minutes", 0.0)
        for trial in study.get_trials(deepcopy=False)
        if trial.user_attrs.get("output") == output
    )
    return max(earlier, default=0.0)


def results_of(study, plan: SearchPlan) -> list[dict]:
    """The results of the runs that have ended, as `sweep` returns them."""
    results = []
    for name, trial in ended_trials(study).items():
        values = {
            option: chosen_value(trial.params[option], choices)
            for option, choices in plan.search.items()
        }
        about = {each: trial.user_attrs[each] for each in ("ended", "minutes")}
        results.append(
            {**values, "score": trial.value, **about, "folder": name}
        )

    def rank(row: dict) -> float:
        return -math.inf if row["score"] is None else row["score"]

    return sorted(results, key=rank, reverse=True)


class _NoLock:
    """In place of Optuna's lock of the journal.

    The folder is locked already, and a signal in the middle of Optuna's lock
    would leave its file behind, or raise an error about it.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass
