"""Writes the tables of characters that the tokenizer needs outside Python.

    python unicode_tables.py > unicode_tables.h                      # for C++
    python unicode_tables.py --json > ../browser/unicode_tables.json

The tables are those of this Python's Unicode version, which the tokenizer of
keras_albert uses, too. The script only uses the standard library.
"""

import argparse
import json
import sys
import unicodedata
from collections.abc import Callable

HANGUL = range(0xAC00, 0xD7A4)  # syllables, decomposed by a formula
CHARACTERS = [
    chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i < 0xE000
]


def decomposed(character: str) -> str:
    """The decomposition (NFKD) without combining marks."""
    if ord(character) in HANGUL:
        return character
    parts = unicodedata.normalize("NFKD", character)
    return "".join(part for part in parts if not unicodedata.combining(part))


def is_cased(character: str) -> bool:
    """Whether a capital sigma after the character ends a word."""
    return (character + "Σ").lower()[-1] == "ς"


def is_ignorable(character: str) -> bool:
    """Whether the end of a word is looked for beyond the character."""
    ends = ("A" + character + "Σ").lower()[-1] == "ς"
    return ends and not is_cased(character)


MAPPINGS = {"decomposed": decomposed, "lower": str.lower}
RANGES = {
    "space": str.isspace,
    "digit": str.isdigit,
    "cased": is_cased,
    "ignorable": is_ignorable,
}


def changed(function: Callable[[str], str]) -> dict[str, str]:
    """The characters that a function changes, and to what."""
    pairs = ((character, function(character)) for character in CHARACTERS)
    return {character: text for character, text in pairs if text != character}


def ranges(function: Callable[[str], bool]) -> list[list[int]]:
    """The first and last code points of the characters with a property."""
    found = []
    for code in (ord(c) for c in CHARACTERS if function(c)):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def tables() -> dict[str, dict | list]:
    """All tables by their names."""
    return {
        **{name: changed(function) for name, function in MAPPINGS.items()},
        **{name: ranges(function) for name, function in RANGES.items()},
    }


def for_cpp(name: str, table: dict | list) -> str:
    """A table as an array in C++."""
    if isinstance(table, dict):
        rows = [
            f'    {{0x{ord(character):x}, U"{"".join(map(_escaped, text))}"}},'
            for character, text in table.items()
        ]
        kind = "Mapping"
    else:
        rows = [f"    {{0x{first:x}, 0x{last:x}}}," for first, last in table]
        kind = "Range"
    return "\n".join([f"const {kind} k{name.title()}[] = {{", *rows, "};", ""])


def _escaped(character: str) -> str:
    # C++ refuses \\U for ASCII. An octal escape ends after three digits.
    code = ord(character)
    return f"\\{code:03o}" if code < 0x80 else f"\\U{code:08x}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="not C++")
    if parser.parse_args().json:
        json.dump(tables(), sys.stdout, separators=(",", ":"))
        return
    print(f"// Unicode {unicodedata.unidata_version}. Do not edit.\n")
    print("struct Mapping {\n  char32_t from;\n  const char32_t* to;\n};")
    print("struct Range {\n  char32_t first, last;\n};\n")
    for name, table in tables().items():
        print(for_cpp(name, table))


if __name__ == "__main__":
    main()
