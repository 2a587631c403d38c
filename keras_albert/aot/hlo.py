"""Counts the bytes that a compiled program exchanges between devices.

They are read from the text form of XLA's HLO, which consists of computations,
each a list of instructions. A `while` calls its body as often as its trip
count says; a fusion, a call and a branch of a condition are called once:

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
# An array such as f32[2,3]{1,0:T(8,128)}; a scalar has no dimensions, as f32[].
_ARRAY = re.compile(r"\b(pred|bf16|[fsu]\d+)\w*\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
# A collective operation. An asynchronous one has two instructions, of which
# only the second (-done) is counted, as its shape is that of the result alone.
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
    """The collective operations in one run of a program, given as its text.

    For each kind, such as "all-reduce", the result has how often it is
    executed, and the total bytes of its results on one device.
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
            if "-done(" in line:  # the instruction that starts it has the call
                continue
            for called in _CALLED.findall(line):
                for each in re.findall(r"[\w.\-]+", called):
                    open_calls.append((each, repeats))
    return dict(totals)


def array_bytes(shape: str) -> int:
    """The bytes of an array, or of all arrays of a tuple, such as bf16[2,3]."""
    total = 0
    for kind, dimensions in _ARRAY.findall(shape):
        bits = 8 if kind == "pred" else int(_BITS.search(kind)[0])
        size = 1
        for dimension in filter(None, dimensions.split(",")):
            size *= int(dimension)
        total += -(-bits // 8) * size
    return total


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """The instructions of each computation by name, and the entry's name."""
    computations, entry, lines = {}, None, []
    for line in hlo.splitlines():
        if found := _COMPUTATION.match(line):
            lines = computations[found[2]] = []
            entry = found[2] if found[1] else entry
        else:
            lines.append(line)
    return computations, entry
