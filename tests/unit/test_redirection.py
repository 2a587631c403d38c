"""What one thread prints is redirected for it alone."""

import copy
import io
import subprocess
import sys
import threading

import pytest

from keras_albert.redirection import own_stream, redirected

pytestmark = pytest.mark.any_backend


def test_each_thread_has_its_own(capsys):
    """Redirections of two threads that neither begin nor end in one another."""
    before, told = sys.stdout, {name: io.StringIO() for name in "ab"}
    steps = threading.Barrier(2, timeout=20)

    def work(name):
        steps.wait()
        if name == "b":  # begins after a, and ends after it
            steps.wait()
        with redirected(told[name]):
            if name == "a":
                steps.wait()
            print(name, "prints")
            steps.wait()
        print(name, "is plain")
        steps.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {name: text.getvalue() for name, text in told.items()} == {
        "a": "a prints\n",
        "b": "b prints\n",
    }
    assert sys.stdout is before
    plain = capsys.readouterr().out.split("\n")
    assert sorted(plain) == ["", "a is plain", "b is plain"]


def test_one_inside_another(capsys):
    inner, outer = io.StringIO(), io.StringIO()
    with redirected(outer, outer):
        assert own_stream("stdout") is own_stream("stderr") is outer
        print("1")
        with pytest.raises(ZeroDivisionError), redirected(inner):
            kept = sys.stdout  # as the handler of a logger keeps it
            print("2")
            print("3", file=sys.stderr)
            raise ZeroDivisionError
        print("4")
    print("5", file=kept)
    assert (inner.getvalue(), outer.getvalue()) == ("2\n", "1\n3\n4\n")
    assert capsys.readouterr() == ("5\n", "")


def test_a_process_without_streams(monkeypatch):
    """As a daemon; other threads may print while one thread redirects."""
    monkeypatch.setattr("sys.stdout", None)
    said = io.StringIO()
    with redirected(said):
        print("kept")
        stream = sys.stdout
    assert sys.stdout is None and said.getvalue() == "kept\n"
    print("lost", file=stream, flush=True)
    assert not stream.isatty()
    assert copy.copy(stream).targets() == []


@pytest.mark.parametrize("closed", ["0", "1", "2", "0 1 2"])
def test_closed_streams_are_not_taken_by_files(closed, tmp_path):
    """A command that gets no standard error must not write it into a file."""
    child = "print(open('main.py').fileno(), file=open('child', 'w'))"
    program = (
        "import subprocess, sys, keras_albert.cli as cli\n"
        "def run(arguments):\n"
        "    open(arguments[0], 'w').write(str(open(__file__).fileno()))\n"
        f"    subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
        "cli._run = run\n"
        "cli.main()"
    )
    (tmp_path / "main.py").write_text(program)
    closing = " ".join(f"{number}>&-" for number in closed.split())
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", sys.executable]
        + [str(tmp_path / "main.py"), str(tmp_path / "number")],
        capture_output=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for name in ("number", "child"):
        assert int((tmp_path / name).read_text()) > 2
