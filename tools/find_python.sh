#!/bin/sh
# Prints the command of a Python interpreter that can run keras_albert, or ends
# with one sentence that says what was found and what to install.
#
#     sh tools/find_python.sh [COMMAND ...]
#
# Each COMMAND is tried in turn; without one, the usual names are. TensorFlow,
# which feeds the data on every backend, decides what is supported: it has
# wheels for Python 3.10 to 3.13, JAX has them from 3.11 on.

FIRST=11
LAST=13
NEEDS="Python 3.$FIRST to 3.$LAST"

# One line about the interpreter that runs it, also where that is Python 2:
# version, system, processor, C library ("-" for none), and "yes" if it can
# make virtual environments (Debian packages that part separately).
PROBE='
import platform
try:
    import ensurepip, venv
    makes_environments = "yes"
except ImportError:
    makes_environments = "no"
print(" ".join([
    platform.python_version(),
    platform.system() or "-",
    platform.machine() or "-",
    platform.libc_ver()[0] or "-",
    makes_environments,
]))
'

fail() {
  echo "error: $1" >&2
  exit 1
}

# Sets `unfit` to a sentence if the libraries have no wheels for the system of
# the interpreter, else to nothing.
check_system() {  # system, processor, C library
  unfit=
  case "$1 $2" in
    "Linux x86_64" | "Linux aarch64" | "Linux arm64")
      [ "$3" = glibc ] || unfit="TensorFlow's wheels for Linux need glibc, \
which this system lacks: use a distribution or container image with glibc, \
such as Debian (python:3.$LAST-slim)." ;;
    "Darwin arm64") ;;
    "Darwin "*) unfit="TensorFlow, JAX and PyTorch no longer have wheels for \
Python on Intel Macs ($2): use Linux, or on Apple silicon an arm64 build of \
$NEEDS." ;;
    Windows* | MINGW* | MSYS* | CYGWIN*) unfit="make needs Linux or macOS, as \
tensorflow-text has no wheels for Windows: use WSL 2, or without make run \
pip install '.[tensorflow]', where all but SavedModels that take text and \
tokenizing inside a TensorFlow graph (GraphTokenizer, Preprocessor) is \
expected to work." ;;
    *) unfit="TensorFlow has no wheels for $1 on $2: use Linux on x86_64 or \
aarch64, or macOS on Apple silicon." ;;
  esac
}

named=yes
if [ $# = 0 ]; then
  named=no
  set -- python3 "python3.$LAST" python3.12 "python3.$FIRST" python
fi
found=""
system=""
for python in "$@"; do
  # An interpreter of a version manager may be there and yet not run.
  if ! line=$("$python" -c "$PROBE" 2>/dev/null); then
    [ $named = no ] || found="$found${found:+, }$python does not run"
    continue
  fi
  # shellcheck disable=SC2086 # words of the probe's line
  set -- $line
  version=$1 minor=${1#3.}
  minor=${minor%%.*}
  check_system "$2" "$3" "$4"
  if [ -n "$unfit" ]; then
    system=${system:-$unfit}
    continue
  fi
  case "$version" in
    3.*) ;;
    *) minor=0 ;;
  esac
  if [ "$minor" -lt "$FIRST" ] || [ "$minor" -gt "$LAST" ]; then
    found="$found${found:+, }$python is $version"
  elif [ "$5" = no ]; then
    found="$found${found:+, }$python is $version without the module venv \
(Debian and Ubuntu: apt install python3.$minor-venv)"
  else
    echo "$python"
    exit 0
  fi
done
[ -z "$system" ] || fail "$system"
fail "keras_albert needs $NEEDS, but found: ${found:-no Python}. Install \
one of them (for example python3.$LAST from your system's packages or from \
python.org) and name it, as in make PYTHON=python3.$LAST demo."
