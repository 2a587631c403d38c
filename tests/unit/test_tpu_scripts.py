"""The scripts of tpu/, against a `gcloud` that records what it is asked."""

import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import output_of

from keras_albert.cli import _parse

pytestmark = pytest.mark.any_backend

TPU = Path(__file__).parents[2] / "tpu"
SCRIPTS = ["create", "run", "watch", "babysit", "delete"]
PLACE = ["--zone=us-west4-a", "--project=my-project"]
DATA = "gs://my-bucket/shards"
VALIDATION = "gs://my-bucket/shards-held-out"
OUTPUT = "gs://my-bucket/runs/albert-base"
IN_BUCKET = OUTPUT.replace("gs://", "buckets/")  # where the fake keeps it
# How host 0 is asked whether a training runs there.
ASK = "flock --nonblock .keras_albert.lock echo idle || echo busy"

# Records its arguments, a line each call. `storage` works on the folder
# $BUCKETS in place of gs://; answers of `describe` come from $STATES, a line
# each call, the last one for ever. Host 0 is asked in $HOME what runs there.
FAKE_GCLOUD = r"""
import os, sys  # others would take longer to import than all of it

arguments = sys.argv[1:]
print(arguments, file=open(os.environ["CALLS"], "a"))

def local(url):
    return url.replace("gs://", os.environ["BUCKETS"] + "/")

def fail(message):
    sys.exit("ERROR: (gcloud) " + message)

def read(path):
    return open(path).read()

def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    print(text, end="", file=open(path, "w"))

def files_below(folder):
    for parent, _, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(parent, name), folder)

if os.environ.get("FAILING", "nothing") in " ".join(arguments):
    fail("asked to fail")
if os.environ.get("SLOW", "nothing") in " ".join(arguments):
    import time

    time.sleep(1)
words = [each for each in arguments if not each.startswith("--")]
if "ssh" in words and "echo idle" in arguments[-1]:
    os.chdir(os.environ["HOME"])
    os.execlp("bash", "bash", "-c", arguments[-1].removeprefix("--command="))
elif "describe" in words:
    first, *rest = read(os.environ["STATES"]).splitlines()
    if rest:
        write(os.environ["STATES"], "\n".join(rest))
    if first == "ABSENT":
        fail("NOT_FOUND: Resource not found")
    state, _, said = first.partition(" ")
    if said:  # what the run says from now on
        write(local("gs://my-bucket/runs/albert-base/status"), said + "\n")
    print(state)
elif words[:2] == ["storage", "cat"]:
    print(read(local(words[2])).strip())
elif words[:2] == ["storage", "cp"]:
    source, target = words[2:]
    text = sys.stdin.read() if source == "-" else read(source)
    write(local(target), text)
elif words[:2] == ["storage", "ls"]:
    found = list(files_below(local(words[2]).removesuffix("/**")))
    for name in found:
        print(words[2].removesuffix("**") + name)
    found or fail("matched no objects")
elif words[:2] == ["storage", "rm"]:
    path = local(words[2])
    for name in list(files_below(path)):
        os.remove(os.path.join(path, name))
    if not os.path.isdir(path):
        os.remove(path)
elif words[:2] == ["storage", "rsync"]:
    source, target = (local(url) for url in words[2:])
    os.listdir(source)  # must be there
    excluded = [each[10:] for each in arguments if each[:10] == "--exclude="]
    if excluded:
        import re
    for name in files_below(source):
        if "/" in name and "--recursive" not in arguments:
            continue
        if excluded and re.match(excluded[0], name):
            continue
        write(os.path.join(target, name), read(os.path.join(source, name)))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a fake `gcloud` in front of PATH, and settings."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "gcloud", FAKE_GCLOUD)
    program(programs / "git", "")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for name in ("CALLS", "STATES", "BUCKETS", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    (tmp_path / "home").mkdir()
    (tmp_path / "states").write_text("ACTIVE")
    settings(tmp_path)
    return tmp_path


@pytest.fixture
def busy(place):
    """Host 0 while a training runs there."""
    with open(place / "home/.keras_albert.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def program(path, text):
    # Nothing of the environment that it starts in: it starts at once.
    path.write_text(f"#!{sys.executable} -IS\n{text}")
    path.chmod(0o755)


def settings(place, **changes):
    """The example with some settings changed, as my.env."""
    text = (TPU / "example.env").read_text()
    changes = {"pause": "0", **changes}
    lines = [f"{name}={value}" for name, value in changes.items()]
    (place / "my.env").write_text("\n".join([text, *lines, ""]))


def run(place, script, *options, status=0, **environment):
    finished = subprocess.run(
        [TPU / f"{script}.sh", *(options or [place / "my.env"])],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert finished.returncode == status, finished.stderr
    return finished


def started(script, option, **environment):
    """A script that runs while the test does something else."""
    return subprocess.Popen(
        [TPU / f"{script}.sh", option],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def calls(place):
    file = place / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    return [eval(line) for line in lines]


def is_look(call):
    """Whether a call only asks how things are."""
    return bool({"describe", "cat"} & {*call}) or "echo idle" in call[-1]


def verbs(place):
    """The verbs of all calls that change something."""
    changing = (call for call in calls(place) if not is_look(call))
    return [call[1 if call[0] == "storage" else 3] for call in changing]


def tpu(kind, verb, *options):
    """The arguments of a call of `gcloud compute tpus`."""
    command = ["compute", "tpus", kind, verb, "albert-base"]
    return [*command, *PLACE, "--quiet", *options]


SCOPES = "--scopes=https://www.googleapis.com/auth/cloud-platform"
ON_TF = {"route": "tf", "type": "v3-8"}


@pytest.mark.parametrize(
    ("changes", "image"),
    [
        ({"type": "v6e-16", "train": "()"}, "v2-alpha-tpuv6e"),
        ({"type": "v5p-8"}, "v2-alpha-tpuv5"),
        ({"type": "v5litepod-16"}, "v2-alpha-tpuv5-lite"),
        ({"type": "v4-32"}, "tpu-ubuntu2204-base"),
        ({"type": "v3-8", "runtime": "another"}, "another"),
    ],
)
def test_create_and_delete(place, changes, image):
    """The image is that of the generation."""
    settings(place, **changes)
    run(place, "create")
    run(place, "delete")
    kind = changes["type"]
    wanted = f"--runtime-version={image}", f"--accelerator-type={kind}"
    options = "--node-id=albert-base", *wanted, SCOPES, "--spot"
    assert calls(place) == [
        tpu("queued-resources", "create", *options),
        tpu("queued-resources", "delete", "--force"),
    ]


def test_a_tpu_vm_for_tensorflow(place):
    direct = {"request": "direct", "tier": "on-demand"}
    settings(place, **direct, **ON_TF, train="(--distribution=tpu)")
    run(place, "create")
    run(place, "delete")
    assert calls(place) == [
        tpu(
            *("tpu-vm", "create", "--version=tpu-vm-tf-2.19.1-pjrt"),
            *("--accelerator-type=v3-8", SCOPES),
        ),
        tpu("tpu-vm", "delete"),
    ]


def test_run_installs_and_starts_on_every_host(place):
    settings(place, train="(--distribution data --variant 'a b')")
    run(place, "run")
    copy, install, status, start = calls(place)
    archive = str(TPU.parent / "build" / "keras_albert.tar.gz")
    assert copy == [
        *("compute", "tpus", "tpu-vm", "scp", archive),
        "albert-base:keras_albert.tar.gz",
        *PLACE,
        *("--quiet", "--worker=all"),
    ]
    assert install[:-1] == tpu("tpu-vm", "ssh", "--worker=all")
    assert install[-1].startswith("--command=flock --nonblock")
    assert install[-1].endswith("keras_albert/tpu/worker.sh install jax")
    assert status == ["storage", "cp", "-", f"{OUTPUT}/status"]
    assert start == tpu(
        *("tpu-vm", "ssh", "--worker=all"),
        f"--command=ROUTE=jax DATA={DATA} VALIDATION={VALIDATION} "
        f"OUTPUT={OUTPUT} bash keras_albert/tpu/worker.sh start "
        "--distribution data --variant a\\ b ",
    )
    assert said(place) == "running"


def test_watch(place):
    """It shows the state and the log; of a slice that is absent, no log."""
    (place / "states").write_text("ABSENT\nACTIVE running")
    found = run(place, "watch")
    assert found.stdout == "slice: ABSENT; run: not started\n"
    assert verbs(place) == []
    (place / "calls").unlink()
    found = run(place, "watch")
    assert found.stdout == "slice: ACTIVE; run: running\n"
    assert calls(place) == [
        tpu("queued-resources", "describe", "--format=value(state.state)"),
        ["storage", "cat", f"{OUTPUT}/status"],
        tpu(
            *("tpu-vm", "ssh", "--worker=0"),
            "--command=tail -n 20 -F keras_albert.log",
        ),
    ]


START = ["scp", "ssh", "cp", "ssh"]


def babysit(place, *states, status=0, **environment):
    """Runs babysit.sh; the slice has these states, one after another."""
    (place / "states").write_text("\n".join(states))
    return run(place, "babysit", status=status, **environment)


def said(place):
    """What the run said last."""
    return (place / IN_BUCKET / "status").read_text().strip()


@pytest.mark.usefixtures("busy")
def test_babysit_a_run_that_is_preempted(place):
    found = babysit(
        place,
        *("ABSENT", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"),
        *("ACTIVE", "ACTIVE", "SUSPENDING", "SUSPENDED"),
        *("ABSENT", "ACTIVE", "ACTIVE", "ACTIVE finished"),
    )
    # The word "running" of the lost slice does not keep the run from starting.
    assert verbs(place) == [
        *("create", *START, "delete"),
        *("create", *START, "delete"),
    ]
    assert "the slice was SUSPENDED; the next attempt" in found.stdout
    assert found.stdout.endswith("the run is finished\n")


def test_babysit_deletes_the_slice_of_a_finished_run(place):
    """It costs money: where that fails, it is tried again."""
    settings(place, attempts="2")
    found = babysit(place, "ACTIVE finished", status=1, FAILING="delete")
    assert verbs(place) == ["delete"] * 2
    assert "deleting albert-base failed, failure 2 of at most 2" in found.stderr


def test_without_gcloud(place):
    few = place / "few"
    few.mkdir()
    for name in ("bash", "dirname"):
        (few / name).symlink_to(shutil.which(name))
    for script in SCRIPTS:
        found = run(place, script, status=2, PATH=str(few))
        assert "gcloud is not installed, or not in PATH" in found.stderr


@pytest.mark.usefixtures("busy")
def test_babysit_a_tpu_vm(place):
    settings(place, request="direct")
    babysit(place, "READY running", "PREEMPTED", "ABSENT", "READY finished")
    assert verbs(place) == ["delete", "create", "delete"]
    assert tpu("tpu-vm", "describe", "--format=value(state)") in calls(place)


@pytest.mark.usefixtures("busy")
def test_babysit_goes_on_watching_a_run_that_runs(place):
    babysit(place, "ACTIVE running", "ACTIVE", "ACTIVE finished")
    assert verbs(place) == ["delete"]
    look = tpu("tpu-vm", "ssh", "--worker=0", f"--command={ASK}")
    assert calls(place).count(look) == 2


def test_babysit_starts_again_what_ended_without_a_word(place):
    """A host was rebooted; in the end the script gives up."""
    settings(place, attempts="3")
    found = babysit(place, "ACTIVE running", status=1)
    assert verbs(place) == START * 3
    assert "the run has ended without a status; the next" in found.stdout
    assert "ended without a status, failure 3 of at most 3" in found.stderr


def test_babysit_believes_the_last_word(place):
    """The run writes "finished" between the script's two looks."""
    word = 'write(local("gs://my-bucket/runs/albert-base/status"), "finished")'
    fake = FAKE_GCLOUD.replace("os.chdir", f"{word}\n    os.chdir")
    program(place / "bin" / "gcloud", fake)
    babysit(place, "ACTIVE running", "ACTIVE")
    assert verbs(place) == ["delete"]


def test_babysit_waits_for_a_host_that_does_not_answer(place):
    found = babysit(
        *(place, "ACTIVE running", "ACTIVE", "ACTIVE finished"),
        FAILING="--worker=0",
    )
    assert verbs(place) == ["delete"]
    assert found.stderr.count("host 0 of albert-base does not answer") == 2


@pytest.mark.parametrize("state", ["ABSENT", "SUSPENDED"])
def test_babysit_a_run_that_was_finished_before(place, state):
    (place / IN_BUCKET).mkdir(parents=True)
    (place / IN_BUCKET / "status").write_text("finished")
    babysit(place, state)
    assert verbs(place) == ([] if state == "ABSENT" else ["delete"])


def test_babysit_starts_a_run_that_broke_again(place):
    """Unless its status 2 says that the command is wrong."""
    states = "ACTIVE stopped 1", "ACTIVE stopped 134", "ACTIVE stopped 2"
    found = babysit(place, *states, status=2)
    assert verbs(place) == START * 2
    assert "the run was given a mistake" in found.stderr


@pytest.mark.parametrize(
    ("failing", "state", "tried"),
    [
        (" create", "ABSENT", ["create"]),
        (" install", "ACTIVE", ["scp", "ssh"]),
        (" delete", "FAILED", ["delete"]),
    ],
)
def test_babysit_gives_up(place, failing, state, tried):
    settings(place, attempts="2")
    found = babysit(place, state, FAILING=failing, status=1)
    assert verbs(place) == tried * 2
    assert "failure 2 of at most 2 ('attempts' in" in found.stderr


def test_babysit_gives_up_where_no_slice_ever_starts(place):
    settings(place, attempts="3")
    found = babysit(place, *["ABSENT", "FAILED"] * 4, status=1)
    assert verbs(place) == ["create", "delete"] * 3
    assert "the slice was FAILED, failure 3 of at most 3" in found.stderr


def test_babysit_waits_longer_after_each_failure(place):
    program(place / "bin" / "sleep", "")
    settings(place, attempts="8", pause="60")
    found = babysit(place, "ABSENT", FAILING=" create", status=1)
    waits = re.findall(r"next attempt.* (\d+) \S+$", found.stdout, re.M)
    assert [*map(int, waits)] == [60, 120, 240, 480, 960, 960, 960]


def test_babysit_waits_where_the_state_cannot_be_asked(place):
    waiting = started("babysit", place / "my.env", FAILING="describe")
    wait_until(lambda: any("cat" in call for call in calls(place)))
    waiting.terminate()
    waiting.wait(10)
    assert verbs(place) == []


# What holds for every script.


@pytest.mark.parametrize("script", SCRIPTS)
def test_dry_run_prints_the_commands_and_runs_none(place, script):
    dry = run(place, script, place / "my.env", "--dry-run").stdout
    assert calls(place) == []
    assert not (place / "buckets").exists()
    printed = [shlex.split(line) for line in dry.splitlines()]
    printed = [line[1:] for line in printed if line[0] == "gcloud"]
    (place / "states").write_text("ABSENT\nACTIVE\nACTIVE finished")
    run(place, script)
    status = ["storage", "cp", "-", f"{OUTPUT}/status"]
    ran = [call for call in calls(place) if call != status]
    if script == "watch":  # found no slice
        assert printed[: len(ran)] == ran
        assert printed[-1][3] == "ssh"
    else:
        changing = [call for call in ran if not is_look(call)]
        assert [call for call in printed if not is_look(call)] == changing
    if script == "babysit":
        assert [*filter(is_look, printed)][-1][-1].endswith("|| echo busy")


TRAIN = 'source "$0" && printf "%s\\n" "${train[@]}"'


@pytest.mark.parametrize("example", ["example.env", "example-tf.env"])
def test_examples(place, example):
    """The scripts and `pretrain` accept both examples as they are."""
    settings = TPU / example
    dry = run(place, "babysit", settings, "--dry-run").stdout
    image, kind, route = {
        "example.env": ("v2-alpha-tpuv5-lite", "v5litepod-16", "jax"),
        "example-tf.env": ("tpu-vm-tf-2.19.1-pjrt", "v5litepod-8", "tf"),
    }[example]
    dry = dry.replace("\\", "")
    assert f"--runtime-version={image}" in dry
    assert f"--accelerator-type={kind}" in dry
    assert f"ROUTE={route}" in dry
    train = output_of("bash", "-c", TRAIN, settings)
    folders = ["--data=data", "--validation=held-out", "--output=output"]
    options = _parse(["pretrain", *folders, *train.splitlines()])
    assert (options.variant, options.batch_size) == ("base_v2", 4096)


def test_help(place):
    for script in [*SCRIPTS, "worker"]:
        found = run(place, script, "--help").stdout
        assert f"usage: {script}.sh" in found
        assert "--dry-run" in found
        assert "set -euo" not in found
    assert calls(place) == []


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        *((script, [], "no settings file given") for script in SCRIPTS),
        ("create", ["--verbose"], "unknown option --verbose"),
        ("create", ["none.env"], "none.env: no such file"),
        ("create", ["a", "b"], "one settings file expected"),
        ("worker", [], "expected install, start, train"),
        ("worker", ["train"], "ROUTE must be jax or tf"),
        ("worker", ["install", "torch"], "expected install jax or install tf"),
    ],
)
def test_wrong_options(script, options, message):
    found = subprocess.run(
        [TPU / f"{script}.sh", *options],
        env=os.environ | {"ROUTE": "torch", "DATA": DATA, "OUTPUT": OUTPUT},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert found.returncode == 2 and found.stderr.startswith("error: ")
    assert message in found.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "'name' is not set. Add a line name=..."),
        ({"name": "Albert"}, "'name' must be lower-case"),
        ({"type": "v5e-16"}, "Received: 'v5e-16'"),
        ({"tier": "cheap"}, "'tier' must be spot or on-demand"),
        ({"request": "now"}, "'request' must be queued or direct"),
        ({"route": "torch"}, "'route' must be jax or tf"),
        ({"attempts": "0"}, "'attempts' must be a positive integer"),
        ({"pause": "1m"}, "'pause' must be seconds"),
        ({"data": "/home/shards"}, "'data' must be gs://BUCKET/FOLDER"),
        ({"output": "gs://b/run/"}, "without a slash at the end"),
        ({"route": "tf"}, "a slice of one host (size 8 at most)"),
        ({"train": "(--distribution)"}, "Received: ''. Leave it out"),
        ({"train": "(--distribution tpu)"}, "model on the route jax. Received"),
        (
            {"train": "()", **ON_TF},
            "tpu on the route tf. Received: --distribution 'auto' (auto when",
        ),
        ({"train": "(--distribution=data)", **ON_TF}, "--distribution 'data'"),
        (
            {"train": "(--distribution data --output=x)"},
            "'train' must not hold --output. Use the setting 'output'",
        ),
    ],
)
def test_wrong_settings(place, changes, message):
    settings(place, **changes)
    found = run(place, "create", status=2)
    assert found.stderr.startswith(f"error: {place}/my.env: ")
    assert message in found.stderr
    assert calls(place) == []


def test_files_that_the_hosts_do_not_have(place):
    """They have those of the last commit, and what a hub has."""
    only = "sys.exit('cat-file' in sys.argv and sys.argv[-1] != 'HEAD:a.json')"
    program(place / "bin" / "git", f"import sys\n{only}")
    settings(
        place,
        train="(--config keras_albert/a.json --warm-start=hf://a/b --file /x)",
    )
    run(place, "create")
    for option in ("--config b.json", "--file=keras_albert/b.json"):
        settings(place, train=f"({option})")
        found = run(place, "create", status=2)
        name = re.split("[= ]", option)[0]
        assert f"{name} in 'train' names. Commit it" in found.stderr
        assert found.stderr.endswith("keras_albert/b.json.\n")


# worker.sh, with a `keras-albert` that trains for as long as it is told.

FAKE_TRAINING = r"""import os, pathlib, signal, sys, time
run = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
found = sorted(path.name for path in run.rglob("*") if path.is_file())
print("arguments", sys.argv[1:], "found", found, flush=True)
(run / "checkpoints").mkdir(exist_ok=True)
for folder in run.glob("checkpoints/step-*"):
    if folder.name != "step-00000020":
        folder.rename(run / "gone")  # no longer kept
for name in ("step-00000030", "unfinished-1"):
    folder = run / "checkpoints" / name
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "d").write_text(name)
    (folder / "manifest.json").write_text("{}")
for name in ("run.json", "log.csv", ".lock", "unfinished-log.csv"):
    (run / name).write_text("30")
if os.environ["TRAINING"] == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(20)
if os.environ["TRAINING"] == "finish":
    (run / "report.json").write_text("{}")
else:
    sys.exit(int(os.environ["TRAINING"]))
"""


@pytest.fixture
def host(place, monkeypatch):
    """A host, and a bucket with shards and nothing else."""
    program(place / "bin" / "keras-albert", FAKE_TRAINING)
    shards = place / "buckets/my-bucket/shards"
    shards.mkdir(parents=True)
    (shards / "manifest.json").write_text("{}")
    environment = {"ROUTE": "jax", "DATA": DATA, "OUTPUT": OUTPUT}
    environment |= {"TPU_WORKER_ID": "0", "TRAINING": "finish"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return place


def bucket(host):
    """The names of the run's files in the bucket."""
    folder = host / IN_BUCKET
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in files}


def checkpoint(step):
    folder = f"checkpoints/step-{step:08d}"
    return {f"{folder}/state/d", f"{folder}/manifest.json"}


TOP = {"started", "status", "run.json", "log.csv"}


def test_worker_trains_and_uploads_what_is_complete(host):
    found = run(host, "worker", "train", "--distribution", "data")
    work = host / "home/keras_albert_work"
    arguments = [
        *("pretrain", "--data", f"{work}/data", "--output", f"{work}/run"),
        *("--distribution", "data"),
    ]
    assert found.stdout == f"arguments {arguments} found []\n"
    assert bucket(host) == TOP | {"report.json"} | checkpoint(30)
    assert said(host) == "finished"


def test_worker_goes_on_from_the_bucket(host):
    """It loads the checkpoints that have a manifest."""
    local = host / "home/keras_albert_work/run"
    complete = ["run.json", "status", *checkpoint(10), *checkpoint(20)]
    cut_short = "checkpoints/step-00000025/state/d"
    paths = [host / IN_BUCKET / name for name in (*complete, cut_short)]
    for path in (*paths, local / "of another slice"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    found = run(host, "worker", "train")
    names = ["d", "d", "manifest.json", "manifest.json", "run.json"]
    assert found.stdout.endswith(f"found {names}\n")
    kept = checkpoint(20) | checkpoint(30)
    assert bucket(host) == TOP | {"report.json"} | kept
    # A manifest is uploaded last, and deleted first.
    storage = [call[1:] for call in calls(host)]
    work = local / "checkpoints/step-00000030"
    there = f"{OUTPUT}/checkpoints/step-00000030"
    state = ["rsync", f"{work}/state", f"{there}/state", "--recursive"]
    assert storage.index(state) < storage.index(["rsync", str(work), there])
    old = f"{OUTPUT}/checkpoints/step-00000010"
    removed = [["rm", f"{old}/manifest.json"], ["rm", old, "--recursive"]]
    assert [call for call in storage if call in removed] == removed


@pytest.mark.parametrize("failing", ["storage ls", "storage rsync", "cp -"])
def test_worker_does_not_begin_anew_where_the_bucket_fails(host, failing):
    run(host, "worker", "train", FAILING=failing, status=1)
    assert not (host / "home/keras_albert_work/run/run.json").exists()


def test_worker_keeps_what_could_not_be_uploaded(host):
    """After uploads that failed; a checkpoint that the bucket has is not."""
    local = host / "home/keras_albert_work"
    run(host, "worker", "train", FAILING="checkpoints", status=1)
    assert (local / "run/checkpoints/step-00000030/manifest.json").exists()
    run(host, "worker", "train", FAILING="storage ls", status=1)
    assert (local / "run/checkpoints/step-00000030/manifest.json").exists()
    found = run(host, "worker", "train")
    assert "does not have step-00000030" in found.stderr
    kept = local / "run-step-00000030/checkpoints/step-00000030"
    assert (kept / "manifest.json").exists()
    assert "warning" not in run(host, "worker", "train").stderr
    # The bucket is ahead: what is here is of no use.
    (local / "run/checkpoints/step-00000030").rename(
        local / "run/checkpoints/step-00000025"
    )
    assert "warning" not in run(host, "worker", "train").stderr
    assert not (local / "run-step-00000025").exists()


# What is made before the training, the training, and what is made after it.
@pytest.mark.parametrize(
    ("environment", "status", "word"),
    [
        ({"VALIDATION": VALIDATION}, 1, "stopped 1"),  # is not there
        ({"FAILING": "storage rsync"}, 1, "stopped 1"),
        ({"TRAINING": "2"}, 2, "stopped 2"),
        # Ended with 0 before the end: a restart has to follow.
        ({"TRAINING": "0"}, 143, "stopped 0"),
        ({"FAILING": f"/run {OUTPUT}"}, 1, "stopped 1"),  # every upload
        ({"FAILING": f"/run {OUTPUT}", "TRAINING": "134"}, 134, "stopped 134"),
    ],
)
def test_worker_says_that_it_stopped_whatever_ends_it(
    host, environment, status, word
):
    run(host, "worker", "train", status=status, **environment)
    assert said(host) == word


def test_worker_says_that_a_signal_ended_it(host):
    """The signal arrives before the training has started."""
    worker = started("worker", "train", SLOW="storage rsync")
    wait_until(lambda: "rsync" in str(calls(host)))
    worker.terminate()
    assert worker.wait(10) == 143
    assert said(host) == "stopped 143"


def test_worker_is_seen_until_all_of_it_has_ended(host):
    """The lock is held although the script was killed."""

    def activity():
        return output_of("bash", "-c", ASK, cwd=host / "home")

    assert activity() == "idle\n"
    worker = started("worker", "train", TRAINING="wait", PUSH_EVERY="1")
    wait_until(lambda: checkpoint(30) <= bucket(host))
    of_worker = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    training, _ = map(int, of_worker.read_text().split())
    worker.kill()
    worker.wait(10)
    assert activity() == "busy\n"
    os.kill(training, signal.SIGTERM)
    wait_until(lambda: activity() == "idle\n")
    assert "status" not in bucket(host)


def test_a_host_without_a_number(host):
    """Nobody would know who uploads: nothing is trained."""
    program(host / "bin" / "curl", "import sys\nsys.exit(22)")
    for number in ("", "first"):
        found = run(host, "worker", "train", status=1, TPU_WORKER_ID=number)
        assert "the number of this host is unknown" in found.stderr
    assert bucket(host) == set()
    program(host / "bin" / "curl", "print(0)")
    run(host, "worker", "train", TPU_WORKER_ID="")
    assert said(host) == "finished"


def test_only_a_training_has_a_dry_run(host):
    for command in ("start", "install"):
        found = run(host, "worker", "--dry-run", command, status=2)
        assert f"--dry-run is for train. Received: '--dry-run {command}'" in (
            found.stderr
        )
    assert not (host / "home/keras_albert.log").exists()


def test_other_hosts_upload_nothing(host):
    run(host, "worker", "train", TPU_WORKER_ID="1")
    missing = {"VALIDATION": VALIDATION}
    run(host, "worker", "train", status=1, TPU_WORKER_ID="1", **missing)
    assert bucket(host) == {"started"}


def test_worker_passes_sigterm_on(host):
    """It also uploads meanwhile, and refuses a second training."""
    training = started("worker", "train", TRAINING="wait", PUSH_EVERY="1")
    wait_until(lambda: checkpoint(30) <= bucket(host))
    second = run(host, "worker", "train", status=2)
    assert "a training runs on this host already" in second.stderr
    training.terminate()
    assert training.wait(10) == 143
    assert said(host).startswith("stopped")
    assert bucket(host) == TOP | checkpoint(30)


def test_worker_starts_detached(host):
    log = host / "home/keras_albert.log"
    log.write_text("what ended the last start\n")
    run(host, "worker", "start", "--distribution=data")
    wait_until(lambda: "status" in bucket(host))
    first, start, *others = log.read_text().splitlines()
    assert first == "what ended the last start"
    assert start.startswith("== 20") and start.endswith("Z start")
    assert "--distribution=data" in "".join(others)


def test_worker_prepares_tensorflow(host):
    """TensorFlow gets the library that the installed libtpu names."""
    libtpu = host / "libtpu.py"
    libtpu.write_text("def get_library_path(): return '/l/libtpu.so'")
    training = """import os
for name in ("KERAS_BACKEND", "PJRT_DEVICE", "TF_XLA_FLAGS"):
    print(name, os.environ[name])
print(os.environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"])
"""
    program(host / "bin" / "keras-albert", training)
    program(
        host / "bin" / "python",
        f"import sys; sys.path.insert(0, {str(host)!r}); exec(sys.argv[2])",
    )
    found = run(
        *(host, "worker", "train", "--distribution=tpu"),
        **{"ROUTE": "tf", "TF_XLA_FLAGS": "--mine"},
        status=143,
    )
    assert found.stdout.splitlines() == [
        "KERAS_BACKEND tensorflow",
        "PJRT_DEVICE TPU",
        "TF_XLA_FLAGS --tf_mlir_enable_mlir_bridge=true "
        "--tf_mlir_enable_convert_control_to_data_outputs_pass=true "
        "--tf_mlir_enable_merge_control_flow_pass=true --mine",
        "/l/libtpu.so",
    ]


def test_worker_does_nothing(host):
    """In a dry run, or without data."""
    found = run(host, "worker", "--dry-run", "train", "--variant", "base_v2")
    assert "--variant base_v2\n" in found.stdout
    assert calls(host) == []
    found = run(host, "worker", "train", DATA="", status=2)
    assert found.stderr.startswith("error: DATA is not set")
    assert not (host / "home/keras_albert_work").exists()


# The files as such.


def test_shellcheck():
    # Beside the interpreter, whether or not its environment is activated.
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    shellcheck = shutil.which("shellcheck", path=os.pathsep.join(places))
    if shellcheck is None:
        pytest.skip("no shellcheck: pip install 'keras-albert[dev]'")
    output_of(shellcheck, "--external-sources", *sorted(TPU.glob("*.sh")))


def test_jobset():
    yaml = pytest.importorskip("yaml")
    text = (TPU / "gke-jobset.yaml").read_text()
    values = {"DATA": DATA, "OUTPUT": OUTPUT, "VALIDATION": VALIDATION}
    values |= {"HOSTS": "4", "CHIPS": "4"}
    values |= {"IMAGE": "image:1", "SERVICE_ACCOUNT": "trainer"}
    values |= {"ACCELERATOR": "tpu-v5-lite-podslice", "TOPOLOGY": "4x4"}
    for name, value in values.items():
        assert f"#   export {name}" in text or f" {name}=" in text
        text = text.replace("${" + name + "}", value)
    jobset = yaml.safe_load(text)
    assert "${" not in str(jobset)
    (slice_,) = jobset["spec"]["replicatedJobs"]
    job = slice_["template"]["spec"]
    assert (job["parallelism"], job["completions"]) == (4, 4)
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy asks for it
    (container,) = pod["containers"]
    assert container["command"] == ["bash", "tpu/worker.sh", "train"]
    _parse(["pretrain", "--data=data", "--output=output", *container["args"]])
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    for name in ("DATA", "OUTPUT", "VALIDATION"):
        assert {"name": name, "value": values[name]} in container["env"]
    rule = job["podFailurePolicy"]["rules"][0]
    assert rule["onExitCodes"]["containerName"] == container["name"]


def test_requirements_have_the_versions_of_the_tests():
    """The two routes never share an environment."""
    constraints = (TPU.parent / "constraints.txt").read_text().splitlines()
    jax = (TPU / "requirements-jax.txt").read_text().splitlines()
    pinned = {line.replace("[tpu]", "") for line in jax if "==" in line}
    assert pinned <= {*constraints}
    tensorflow = (TPU / "requirements-tf.txt").read_text()
    assert "tensorflow-tpu==2.19.1\n" in tensorflow
    assert "\njax" not in tensorflow
