"""RACE (Lai et al. 2017): passages with questions of four options each.

The folder is the original one, `RACE/{train,dev,test}/{middle,high}/*.txt`,
where each file is a JSON object with a passage; or, as the reference's
race_utils.py also reads it, each folder has one `all.txt` with an object a
line. `text.model_inputs.choice_rows` joins questions and options.
"""

from collections.abc import Iterator
from pathlib import Path

from keras_albert.data.bad_rows import BadRows
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError, check_choice
from keras_albert.text.files import check_files, decode_line, json_object

SPLITS = ("train", "dev", "test")
# Questions (Lai et al. 2017, Table 2).
RACE_SIZES = {"train": 87_866, "dev": 4_887, "test": 4_934}
LEVELS = ("middle", "high")  # schools, in the reference's order
ANSWERS = "ABCD"
ALL_PASSAGES = "all.txt"
_KEYS = ("questions", "options", "answers")  # lists of a passage

# Characters that the reference turns into "_", the blank of a question.
_BLANKS = str.maketrans(dict.fromkeys("︳︴﹍﹎﹏＿", "_"))


def read_race(
    folder: str | Path, split: str, *, skip_bad: bool = False
) -> Table:
    """The questions of a split, those of the middle schools first.

    Files are read by name; an `all.txt` alone, since it repeats the others.
    Whitespace in questions and options is collapsed, as in the reference.

    Returns:
        `values` has the passage as text, the question ("_" if an option fills
        a blank), four choices and the index of the right one as label; `rows`
        the id, such as "high1048.txt-2"; `groups` "middle" or "high".
    """
    check_choice("split", split, SPLITS)
    examples, groups, bad = [], [], BadRows(skip_bad)
    for level in LEVELS:
        for path in _files(Path(folder) / split / level):
            for place, question in _questions(path):
                if isinstance(question, AlbertError):
                    bad.add(place, question)
                else:
                    examples.append(question)
                    groups.append(level)
    path = Path(folder) / split
    if not examples:
        count = len(bad.messages)
        but = f" but {count} bad ones: {bad.messages[0]}" if count else "."
        raise AlbertError(f"{path}: no questions{but}")
    ids, lines, *columns = map(list, zip(*examples, strict=True))
    values = dict(zip(_FIELDS, columns, strict=True))
    rows = [{"id": each} for each in ids]
    return Table(path, values, rows, lines, bad.messages, groups)


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise AlbertError(
            f"{folder}: no passages. Expected *.txt in this folder, as in "
            "RACE/train/middle of the original archive. Give its folder RACE."
        )
    whole = folder / ALL_PASSAGES
    return check_files([whole] if whole in files else files)


_FIELDS = ("text", "question", "choices", "label")  # of `Table.values`
# The id, the line in its file, and the fields.
_Question = tuple[str, int, str, str, list[str], int]


def _questions(path: Path) -> Iterator[tuple[str, _Question | AlbertError]]:
    """Yields the place and each question, or the error of it or its passage."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            place = f"{path}:{number}"
            try:
                passage = _passage(line, number)
            except AlbertError as error:
                yield place, error
                continue
            name = passage.get("id", path.name)
            fields = zip(*(passage[key] for key in _KEYS), strict=True)
            for position, parts in enumerate(fields, start=1):
                try:
                    question = _question(*parts)
                except AlbertError as error:
                    yield f"{place}: question {position}", error
                else:
                    key = f"{name}-{position}"
                    yield place, (key, number, passage["article"], *question)


def _passage(line: bytes, number: int) -> dict:
    """A passage with equally many questions, options and answers."""
    passage = json_object(decode_line(line, is_first=number == 1))
    needed = ["article", *_KEYS]
    if missing := [key for key in needed if key not in passage]:
        raise AlbertError(
            f"a passage needs {', '.join(needed)}. Missing: "
            f"{', '.join(missing)}."
        )
    _check_text("article", passage["article"])
    lists = {key: passage[key] for key in _KEYS}
    if not all(isinstance(value, list) for value in lists.values()):
        kinds = ", ".join(type(value).__name__ for value in lists.values())
        raise AlbertError(
            f"{', '.join(_KEYS)} must be lists. Received: {kinds}."
        )
    if len({len(value) for value in lists.values()}) > 1:
        counts = ", ".join(f"{len(v)} {key}" for key, v in lists.items())
        raise AlbertError(f"a passage must have as many of each: {counts}.")
    return passage


def _question(question, options, answer) -> tuple[str, list[str], int]:
    _check_text("question", question)
    if not isinstance(options, list) or len(options) != len(ANSWERS):
        raise AlbertError(
            f"expected a list of {len(ANSWERS)} options. Received: "
            f"{options!r:.60}."
        )
    for letter, option in zip(ANSWERS, options, strict=True):
        _check_text(f"option {letter}", option)
    if answer not in tuple(ANSWERS):
        raise AlbertError(
            f"the answer must be one of {', '.join(ANSWERS)}. Received: "
            f"{answer!r:.60}."
        )
    return (
        _collapsed(question).translate(_BLANKS),
        [_collapsed(option) for option in options],
        ANSWERS.index(answer),
    )


def _collapsed(text: str) -> str:
    return " ".join(text.split())


def _check_text(name: str, text) -> None:
    if not isinstance(text, str):
        raise AlbertError(f"the {name} must be a text. Received: {text!r:.60}.")
    if not text.strip():
        raise AlbertError(f"the {name} is empty.")
