"""Text to token shards: processes, and whatever may stop them."""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import filelock
import pytest
from commands import output_of
from reference_examples import documents_of

from keras_albert.corpus import prepare as prepare_module
from keras_albert.corpus.config import PrepareRun
from keras_albert.corpus.prepare import NOTES, prepare
from keras_albert.corpus.shards import ShardSet
from keras_albert.errors import AlbertError
from keras_albert.storage import MANIFEST_FILE

pytestmark = pytest.mark.any_backend

DOCUMENTS = [
    ["The fox chased two hens.", "A dog found nothing."],
    ["My uncle sold the old barn in 1923."],
    ["\u00c9lodie painted a letter.", "near Prague", "\u00a39 of tea"],
]


def as_text(documents):
    return "\n\n".join("\n".join(lines) for lines in documents) + "\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(as_text(DOCUMENTS))
    return path


@pytest.fixture(scope="module")
def large_corpus(tiny_lines, tmp_path_factory):
    """3 MB in 30 shards: a second's work."""
    rng = random.Random(3)
    path = tmp_path_factory.mktemp("large") / "corpus.txt"
    documents = (rng.choices(tiny_lines, k=20) for _ in range(2_000))
    path.write_text(as_text(documents))
    return path


def large_run(corpus, vocab, output, workers):
    return PrepareRun(
        (corpus,), vocab, output, shard_bytes=100_000, workers=workers
    )


@pytest.fixture(scope="module")
def large_shards(large_corpus, tiny_vocab, tmp_path_factory):
    """What an undisturbed process makes of it."""
    output = tmp_path_factory.mktemp("whole") / "shards"
    prepare(large_run(large_corpus, tiny_vocab, output, workers=1))
    return content(output)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def verified(folder):
    shards = ShardSet.open(folder)
    shards.verify()
    return documents_of(shards)


def test_shards_of_any_size_hold_the_same_documents(
    corpus, tiny_vocab, tokenizer, tmp_path
):
    expected = [tokenizer.encode_batch(lines) for lines in DOCUMENTS]
    for shard_bytes, documents in ((1_000, [3]), (60, [1, 2]), (1, [1, 1, 1])):
        output = tmp_path / str(shard_bytes)
        run = PrepareRun((corpus,), tiny_vocab, output, workers=1)
        manifest = prepare(replace(run, shard_bytes=shard_bytes))
        counts = [shard.counts["documents"] for shard in manifest.shards]
        assert counts == documents
        assert verified(output) == expected


def test_processes_write_the_same_bytes(
    large_corpus, large_shards, tiny_vocab, tmp_path
):
    output = tmp_path / "shards"
    prepare(large_run(large_corpus, tiny_vocab, output, workers=2))
    assert content(output) == large_shards
    assert len(large_shards) > 60
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_a_finished_run_is_not_run_again(corpus, tiny_vocab, tmp_path, capsys):
    """Unless the text has changed since."""
    text = tmp_path / "a.txt"
    text.write_bytes(corpus.read_bytes())
    run = PrepareRun((text,), tiny_vocab, tmp_path / "shards")
    manifest, before = prepare(run), content(run.output)
    assert prepare(run) == manifest
    assert content(run.output) == before
    assert "they are finished" in capsys.readouterr().out
    text.write_bytes(corpus.read_bytes() * 2)
    with pytest.raises(AlbertError, match="not empty"):
        prepare(run)


def test_names_of_files(tiny_vocab, tmp_path, monkeypatch, capsys):
    """The home folder is "~"; a name may not be UTF-8, or in capitals."""
    monkeypatch.setenv("HOME", str(tmp_path))
    latin = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.TXT")
    Path(latin).write_text(as_text(DOCUMENTS))
    run = PrepareRun(("~/*.TXT",), tiny_vocab, "~/shards")
    prepare(run)
    assert len(documents_of(ShardSet.open(tmp_path / "shards"))) == 3
    prepare(run)
    assert "they are finished" in capsys.readouterr().out
    report = tmp_path / "shards" / "report.json"
    report.write_text("[]")
    with pytest.raises(AlbertError, match="not empty"):
        prepare(run)


def test_nobody_reads_the_standard_error(corpus, tiny_vocab, tmp_path):
    """The shards are published all the same."""
    with open(os.devnull, "w") as closed, pytest.MonkeyPatch.context() as patch:
        patch.setattr(closed, "write", Mock(side_effect=BrokenPipeError))
        patch.setattr(sys, "stderr", closed)
        prepare(PrepareRun((corpus,), tiny_vocab, tmp_path / "out"))
    assert verified(tmp_path / "out")


def test_a_pipe_is_no_file(corpus, tiny_vocab, tmp_path):
    """It would count as a file of 0 bytes, and be left out."""
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    run = PrepareRun((corpus, pipe), tiny_vocab, tmp_path / "out")
    with pytest.raises(AlbertError, match=r"pipe\.txt: a pipe or a device"):
        prepare(run)


def test_the_output_may_be_a_link_to_an_empty_folder(
    corpus, tiny_vocab, tmp_path
):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    prepare(PrepareRun((corpus,), tiny_vocab, tmp_path / "link"))
    assert verified(tmp_path / "there") == verified(tmp_path / "link")


def test_what_has_no_token_is_dropped(tiny_vocab, tmp_path):
    text = tmp_path / "a.txt"
    # U+0301 alone is a combining accent: normalization removes it.
    text.write_text("\u0301\n\ntwo hens\n\u0301\nnothing\n")
    output = tmp_path / "out"
    prepare(PrepareRun((text,), tiny_vocab, output))
    (document,) = documents_of(ShardSet.open(output))
    assert len(document) == 2
    for nothing in ("\u0301\n", "", "\n \n"):
        text.write_text(nothing)
        with pytest.raises(AlbertError, match="the text gives no tokens"):
            prepare(PrepareRun((text,), tiny_vocab, tmp_path / "no"))
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "out"}


def test_sentences_are_split_where_wanted(tiny_vocab, tmp_path):
    pytest.importorskip("sentencex")
    text = tmp_path / "a.txt"
    text.write_text("The fox chased two hens. A dog found nothing.\n")
    for language, expected in ((None, 1), ("en", 2)):
        run = PrepareRun((text,), tiny_vocab, tmp_path / str(language))
        prepare(replace(run, split_sentences=language))
        (document,) = documents_of(ShardSet.open(run.output))
        assert len(document) == expected


def test_a_log_gets_two_lines(tiny_vocab, tmp_path, capsys):
    text = tmp_path / "text.txt"
    run = PrepareRun((text,), tiny_vocab, tmp_path / "shards")
    text.write_text("One line.\n\nAnd one.\n\n\nTwo\nlines.\n")
    prepare(run)
    counts, single = capsys.readouterr().err.splitlines()
    assert counts.startswith("3 documents, ") and "tokens/s" in counts
    assert counts.endswith("; 1 shard")
    assert single.startswith("66.7% of the documents are a single line")
    assert "--blank-lines 2" in single
    run = replace(run, output=tmp_path / "joined", blank_lines=2)
    prepare(run)
    assert capsys.readouterr().err.splitlines()[1] == (
        "0.0% of the documents are a single line and give no example of "
        "sentence order"
    )
    first, second = documents_of(ShardSet.open(run.output))
    assert len(first) == len(second) == 2


def test_a_terminal_gets_a_bar(
    corpus, tiny_vocab, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    run = PrepareRun(
        (corpus,), tiny_vocab, tmp_path / "shards", shard_bytes=60, workers=1
    )
    prepare(run)
    shown = capsys.readouterr().err
    assert "0 of 3 shards" in shown and "3 of 3 shards" in shown
    assert "%" in shown and "tokens/s" in shown


def test_a_mistake_leaves_nothing_behind(corpus, tiny_vocab, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\n\n\xff\n")
    work = tmp_path / "work"
    work.mkdir()
    gone = tmp_path / "gone"
    for changes, message in (
        ({"input": (corpus, bad)}, r"bad\.txt:3"),
        ({"vocab": gone}, "no such file or folder"),
        ({"workers": 0}, "workers=0"),
        ({"workers": 2, "beam": ()}, "workers=2. Leave --workers out"),
        ({"shard_bytes": 0}, "shard_bytes=0"),
    ):
        arguments = {"input": (corpus,), "vocab": tiny_vocab, **changes}
        with pytest.raises(AlbertError, match=message):
            prepare(PrepareRun(**{"output": work / "out", **arguments}))
        assert list(work.iterdir()) == []


def test_an_output_in_use_is_left_alone(corpus, tiny_vocab, tmp_path):
    (tmp_path / "theirs").write_text("x")
    with pytest.raises(AlbertError, match="not empty"):
        prepare(PrepareRun((corpus,), tiny_vocab, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    output = tmp_path / "new"
    leftover = tmp_path / "new.unfinished"
    leftover.mkdir()
    (leftover / "shard-00000.mine").write_text("x")
    with pytest.raises(AlbertError, match=r"something else\. Move it away"):
        prepare(PrepareRun((corpus,), tiny_vocab, output))
    assert (leftover / "shard-00000.mine").exists()


def test_of_two_runs_at_once_one_is_refused(corpus, tiny_vocab, tmp_path):
    notes = tmp_path / "out.unfinished" / NOTES
    notes.mkdir(parents=True)
    run = PrepareRun((corpus,), tiny_vocab, tmp_path / "out")
    with (
        filelock.FileLock(notes / "lock"),
        pytest.raises(AlbertError, match="another process is preparing"),
    ):
        prepare(run)
    prepare(run)


# A run that stopped.

CORRECTED = "two hens\n" * 20


@pytest.fixture
def stopped(corpus, tiny_vocab, tmp_path):
    """A run that finished its first shard and failed in its second."""
    bad = tmp_path / "bad.txt"
    bad.write_bytes(CORRECTED.encode() + b"\xff\n")
    good = shutil.copy(corpus, tmp_path / "good.txt")
    run = PrepareRun(
        (good, bad), tiny_vocab, tmp_path / "out", shard_bytes=150, workers=1
    )
    with pytest.raises(AlbertError, match=r"bad\.txt:21"):
        prepare(run)
    return run


def leftover(run):
    return run.output.with_name("out.unfinished")


def test_an_error_of_a_network_disk(stopped, monkeypatch):
    """It is no mistake of the user, and finished shards stay."""
    shards = {path.name for path in leftover(stopped).glob("shard-*")}
    assert shards
    stale = OSError(errno.ESTALE, "Stale file handle")
    monkeypatch.setattr(prepare_module, "checksum", Mock(side_effect=stale))
    with pytest.raises(OSError, match="Stale"):
        prepare(stopped)
    assert {path.name for path in leftover(stopped).glob("shard-*")} == shards


def assert_as_if_undisturbed(run, other_output):
    prepare(replace(run, output=other_output))
    assert content(run.output) == content(other_output)


def test_a_corrected_run_goes_on(stopped, tmp_path, capsys):
    kept = leftover(stopped) / "shard-00000.tokens.npy"
    assert kept.exists() and not (leftover(stopped) / MANIFEST_FILE).exists()
    with pytest.raises(AlbertError, match="not a folder of token shards"):
        ShardSet.open(leftover(stopped))
    stopped.input[1].write_text(CORRECTED)
    inode = kept.stat().st_ino
    prepare(stopped)
    moved = stopped.output / kept.name
    assert moved.stat().st_ino == inode, "it was made again"
    assert "again" not in capsys.readouterr().err
    assert_as_if_undisturbed(stopped, tmp_path / "fresh")
    assert not leftover(stopped).exists()


def test_the_way_on_is_named(stopped, capsys):
    with pytest.raises(AlbertError, match=r"bad\.txt:21"):
        prepare(stopped)
    shown = capsys.readouterr().err
    assert "1 shard finished, in " in shown
    assert "out.unfinished: the same command goes on" in shown
    assert not list(leftover(stopped).glob(f"{NOTES}/work-*"))


def test_an_option_that_an_older_version_did_not_note(stopped):
    notes = leftover(stopped) / NOTES / "command.json"
    command = json.loads(notes.read_text())
    del command["blank_lines"]
    notes.write_text(json.dumps(command))
    stopped.input[1].write_text(CORRECTED)
    with pytest.raises(AlbertError, match="blank_lines=1; now it is 2"):
        prepare(replace(stopped, blank_lines=2))
    prepare(stopped)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"column": "body"}, "column='text'; now it is 'body'"),
        ({"shard_bytes": 151}, "shard_bytes=150; now it is 151"),
        ({"vocab": "other"}, "vocabulary='[0-9a-f]{64}'; now"),
        ({"input": "more"}, r"input='no file'; now it is '.*more\.txt'"),
    ],
)
def test_another_command_is_refused(stopped, tmp_path, changes, message):
    if "vocab" in changes:
        model = (stopped.vocab / "spiece.model").read_bytes()
        other = tmp_path / "other.model"
        # A protobuf file followed by a field that nobody knows.
        other.write_bytes(model + b"\xf8\x7f\x01")
        changes = {"vocab": other}
    if changes.get("input") == "more":
        more = tmp_path / "more.txt"
        more.write_text("nothing\n")
        changes = {"input": (*stopped.input, more)}
    before = content(leftover(stopped) / NOTES)
    with pytest.raises(AlbertError, match=message) as refused:
        prepare(replace(stopped, **changes))
    assert "another command" in str(refused.value)
    assert "remove the folder" in str(refused.value)
    assert content(leftover(stopped) / NOTES) == before


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("shard-00000.tokens.npy", lambda data: data[:-1] + b"x"),
        ("shard-00000.sentences.npy", None),  # lost
        (f"{NOTES}/unit-00000.json", lambda _: b"{"),
        ("../good.txt", lambda data: data.replace(b"hens", b"dogs")),
    ],
)
def test_what_is_not_sound_is_made_again(
    stopped, tmp_path, file, change, capsys
):
    stopped.input[1].write_text(CORRECTED)
    path = leftover(stopped) / file
    if change:
        path.write_bytes(change(path.read_bytes()))
    else:
        path.unlink()
    prepare(stopped)
    assert "shard 00000: its text has changed, or it is damaged" in (
        capsys.readouterr().err
    )
    assert_as_if_undisturbed(stopped, tmp_path / "fresh")


def test_a_shard_no_longer_planned_is_removed(stopped, capsys):
    stopped.input[0].write_text("")
    stopped.input[1].write_text(CORRECTED)
    parts = ("tokens", "sentences", "documents")
    for part in parts:
        (leftover(stopped) / f"shard-00009.{part}.npy").write_bytes(b"x")
    (leftover(stopped) / NOTES / "unit-00009.json").write_text("{}")
    capsys.readouterr()
    prepare(stopped)
    removed, again, *_ = sorted(capsys.readouterr().err.splitlines())[::-1]
    assert removed.startswith("shard 00009: ") and "is removed" in removed
    assert again.startswith("shard 00000: ") and "made again" in again
    assert {path.name for path in stopped.output.glob("shard-*")} == {
        f"shard-00000.{part}.npy" for part in parts
    }


def test_text_that_changes_meanwhile(corpus, tiny_vocab, tmp_path, monkeypatch):
    text = shutil.copy(corpus, tmp_path / "a.txt")
    write_shard = prepare_module.write_shard

    def slow(*arguments):
        report = write_shard(*arguments)
        with open(text, "a") as file:
            file.write("more\n")
        return report

    monkeypatch.setattr(prepare_module, "write_shard", slow)
    with pytest.raises(AlbertError, match=r"a\.txt: changed while it was read"):
        prepare(PrepareRun((text,), tiny_vocab, tmp_path / "out"))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk(corpus, tiny_vocab, tmp_path, workers, capsys, small_disk):
    large = tmp_path / "large.txt"
    large.write_text("two hens in the old barn\n" * 60_000)  # 1.5 MB
    run = PrepareRun((corpus, large), tiny_vocab, tmp_path / "out")
    run = replace(run, shard_bytes=750_000, workers=workers)
    message = r"cannot be written \(.*too large.*Make room"
    with pytest.raises(AlbertError, match=message), small_disk(400_000):
        prepare(run)
    if workers == 1:  # two may fail before the first shard is finished
        assert "the same command goes on" in capsys.readouterr().err
    prepare(run)
    assert ShardSet.open(run.output).num_documents == 4


# Processes that are stopped from outside.


@contextlib.contextmanager
def started(corpus, vocab, output, workers, program=("-m", "keras_albert.cli")):
    """A process, killed in the end if it has not ended before."""
    command = [sys.executable, *program, "prepare"]
    command += ["--input", corpus, "--vocab", vocab, "--output", output]
    command += ["--shard-bytes", "100_000", "--workers", str(workers)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        try:
            yield run
        finally:
            run.kill()


# Every process of the run reads it: two shards are made, no other ends.
ENDLESS = """
import signal

# Started in the background, a shell has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
import time
from keras_albert.cli import main
from keras_albert.corpus import prepare

made = prepare.write_shard

def write_shard(unit, index, recipe, folder, advance):
    while index > 1:
        advance(0, 0)
        time.sleep(0.01)
    return made(unit, index, recipe, folder, advance)

prepare.write_shard = write_shard
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def endless(tmp_path):
    """A program as `keras_albert.cli`, whose `prepare` never ends."""
    path = tmp_path / "endless.py"
    path.write_text(ENDLESS)
    return (path,)


def wait_for(condition, process):
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def finished_shards(output):
    notes = output.with_name("out.unfinished") / NOTES
    return {path.name for path in notes.glob("unit-*.json")}


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_killed_at_random_moments(
    large_corpus, large_shards, tiny_vocab, tmp_path
):
    rng = random.Random(5)
    output = tmp_path / "out"
    unfinished = output.with_name("out.unfinished")
    kept = {}  # shard file -> inode: a file that is made again has another
    before = set()

    def went_on():
        return finished_shards(output) > before or output.exists()

    for attempt in range(6):
        before = finished_shards(output)
        with started(
            large_corpus, tiny_vocab, output, 1 + attempt % 2
        ) as process:
            wait_for(went_on, process)
            time.sleep(rng.uniform(0, 0.2))
        if output.exists() or (unfinished / "manifest.json").exists():
            break  # all is written, and perhaps not renamed
        with pytest.raises(AlbertError, match="not a folder of token shards"):
            ShardSet.open(unfinished)
        now = {p.name: p.stat().st_ino for p in unfinished.glob("shard-*")}
        assert kept.items() <= now.items(), "a finished shard was made again"
        finished = {name[5:10] for name in finished_shards(output)}
        kept = {name: now[name] for name in now if name[6:11] in finished}
    if not output.exists():
        prepare(large_run(large_corpus, tiny_vocab, output, workers=1))
    shutil.rmtree(output / NOTES, ignore_errors=True)  # killed while it tidied
    assert content(output) == large_shards


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc")
def test_processes_end_with_their_parent(
    large_corpus, tiny_vocab, tmp_path, endless
):
    output = tmp_path / "out"
    with started(large_corpus, tiny_vocab, output, 2, endless) as process:
        wait_for(lambda: finished_shards(output), process)
        tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        children = tasks.read_text().split()
    assert len(children) >= 2
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{child}/exe") for child in children):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(
    large_corpus, large_shards, tiny_vocab, tmp_path, number, endless
):
    output = tmp_path / "out"
    workers = 1 + (number == signal.SIGTERM)
    with started(large_corpus, tiny_vocab, output, workers, endless) as process:
        wait_for(lambda: finished_shards(output), process)
        process.send_signal(number)
        _, shown = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished, in" in shown and shown.count("\n") == 1
    assert not list(tmp_path.glob(f"out.unfinished/{NOTES}/work-*"))
    prepare(large_run(large_corpus, tiny_vocab, output, workers=1))
    assert content(output) == large_shards


@pytest.mark.proof
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc")
def test_the_benchmark_runs(corpus, tiny_vocab):
    script = Path(__file__).parents[1] / "benchmarks" / "bench_prepare.py"
    program = sys.executable, script, "--vocab", tiny_vocab, "--input", corpus
    _, line = output_of(*program, "--copies=2", "--workers=1").splitlines()
    size, workers, *numbers = line.replace(",", "").split()
    assert (size, workers) == ("0.0", "1")
    assert all(float(number) > 0 for number in numbers)
