"""Every document is in exactly one shard, wherever files are cut."""

import itertools
import json

import pytest
from hypothesis import given, strategies as st

from keras_albert.corpus.documents import InputFile, parts_of, read_part
from keras_albert.corpus.write_shards import MOST_SHARDS, plan

pytestmark = pytest.mark.any_backend

LINES = st.lists(
    st.sampled_from(
        ["", "", " ", "\u00a0", "a", " b b", "\u00e9\u4e2d", "\r", "long" * 5]
    )
)
NAMES = st.sampled_from(["a.txt", "b.jsonl", "c.txt.gz"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cuts")


@given(
    lines=LINES,
    last=st.sampled_from(["", "\n"]),
    largest=st.integers(1, 40),
    blank=st.integers(1, 3),
)
def test_documents_of_any_cut_are_those_of_the_whole(
    folder, lines, last, largest, blank
):
    rows = [json.dumps({"text": line * 2}) for line in lines]
    for name, written in (("a.txt", lines), ("a.jsonl", rows)):
        path = folder / name
        path.write_bytes(("\n".join(written) + last).encode())
        file = InputFile.of(path)
        (*whole,) = parts_of(file, max(file.size, 1), "text")
        cut = parts_of(file, largest, "text")
        assert len(whole) <= 1 and all(part.size <= largest for part in cut)
        of_cut, of_whole = (
            [
                line
                for part in parts
                for line in read_part(part, "text", blank_lines=blank)
            ]
            for parts in (cut, whole)
        )
        assert of_cut == of_whole


@given(
    sizes=st.lists(st.tuples(NAMES, st.integers(0, 10**6)), max_size=300),
    shard_bytes=st.integers(1, 10**6),
)
def test_every_byte_is_in_exactly_one_unit(sizes, shard_bytes):
    files = [
        InputFile(f"{i}/{name}", size, 0)
        for i, (name, size) in enumerate(sizes)
    ]
    units = plan(files, shard_bytes, "text")
    assert len(units) <= MOST_SHARDS
    parts = [part for unit in units for part in unit.parts]
    for file, group in itertools.groupby(parts, key=lambda part: part.file):
        edges = [(part.start, part.end) for part in group]
        assert edges[0][0] == 0 and edges[-1][1] == file.size
        assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
    order = [file for file, _ in itertools.groupby(part.file for part in parts)]
    assert order == [
        file for file in files if file.size or file.path.endswith(".gz")
    ]
    # As large as asked for, but for what cannot be cut and for the limit.
    text = sum(part.size for part in parts)
    most = max(shard_bytes, -(-2 * text // (MOST_SHARDS - 1)))
    for unit in units:
        assert len(unit.parts) == 1 or unit.size <= most
        assert unit.size <= most or unit.parts[0].file.path.endswith(".gz")
    for a, b in itertools.pairwise(units):
        assert a.size + b.parts[0].size > most


def test_a_plan_worked_out_by_hand():
    files = [
        InputFile("small.txt", 300, 0),
        InputFile("small.jsonl", 600, 0),
        InputFile("large.txt", 2_500, 0),
        InputFile("packed.txt.gz", 500, 0),  # about 1,500 bytes of text
        InputFile("last.txt", 10, 0),
    ]
    units = plan(files, 1_000, "text")
    assert [
        [(part.file.path, part.start, part.end) for part in unit.parts]
        for unit in units
    ] == [
        [("small.txt", 0, 300), ("small.jsonl", 0, 600)],
        [("large.txt", 0, 833)],
        [("large.txt", 833, 1_666)],
        [("large.txt", 1_666, 2_500)],
        [("packed.txt.gz", 0, 500)],
        [("last.txt", 0, 10)],
    ]
    assert [unit.size for unit in units] == [900, 833, 833, 834, 1_500, 10]
