"""What compiled programs exchange between devices, read from their text.

XLA's text form: computations, each a list of instructions. A `while` calls its
body as often as its trip count says; a fusion, a call and a branch of a
condition are called once.

    body.3 (p: (s32[], f32[7])) -> (s32[], f32[7]) {
      %r = f32[7]{0} all-reduce(%x), to_apply=%add.1
    }
    ENTRY %main (a: f32[7]) -> f32[7] {
      %w = (s32[], f32[7]{0}) while(%t), condition=%c, body=%body.3,
        backend_config={"known_trip_count":{"n":"12"}}
    }
"""

import collections
import re

_BITS = re.compile(r"\d+")
# Such as f32[2,3]{1,0:T(8,128)}; no dimension is a scalar.
_ARRAY = re.compile(r"\b(pred|bf16|[fsu]\d+)\w*\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
# An exchange in two parts is counted where it ends: there its shape is that of
# the result alone.
_EXCHANGE = re.compile(
    r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all"
    r"|collective-permute)(?:-done)?\("
)
_CALLED = re.compile(
    r"\b(?:body|calls|to_apply|branch_computations|true_computation"
    r"|false_computation)=(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def exchanged_bytes(hlo: str) -> dict[str, tuple[int, int]]:
    """Kind of exchange -> (how often, bytes) of one run of the program.

    Bytes are those of the result on one device.
    """
    computations, entry = _computations(hlo)
    totals = collections.defaultdict(lambda: (0, 0))
    open_calls = [(entry, 1)]
    while open_calls:
        name, times = open_calls.pop()
        for line in computations.get(name, ()):
            if found := _EXCHANGE.search(line):
                shape, kind = found.groups()
                count, size = totals[kind]
                size += times * array_bytes(shape)
                totals[kind] = (count + times, size)
            trips = _TRIPS.search(line)
            repeats = times * int(trips[1]) if trips else times
            if "-done(" in line:  # its start has called
                continue
            for called in _CALLED.findall(line):
                for each in re.findall(r"[\w.\-]+", called):
                    open_calls.append((each, repeats))
    return dict(totals)


def array_bytes(shape: str) -> int:
    """Of an array, or of all in a tuple: 4 x 6 + 2 of (f32[2,3], bf16[])."""
    total = 0
    for kind, dimensions in _ARRAY.findall(shape):
        bits = 8 if kind == "pred" else int(_BITS.search(kind)[0])
        size = 1
        for dimension in filter(None, dimensions.split(",")):
            size *= int(dimension)
        total += -(-bits // 8) * size
    return total


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """The instructions of each computation; which one is the program."""
    computations, entry, lines = {}, None, []
    for line in hlo.splitlines():
        if found := _COMPUTATION.match(line):
            lines = computations[found[2]] = []
            entry = found[2] if found[1] else entry
        else:
            lines.append(line)
    return computations, entry
