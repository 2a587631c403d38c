"""Writes the tables of characters that albert_device.cc needs, for C++.

    python unicode_tables.py > unicode_tables.h

The tables are those of this Python's Unicode version, which the tokenizer of
keras_albert uses, too. The script only uses the standard library.
"""

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


def mapping(name: str, function: Callable[[str], str]) -> str:
    """A C++ array of the characters that a function changes."""
    lines = []
    for character in CHARACTERS:
        text = function(character)
        if text != character:
            literal = "".join(map(_escaped, text))
            lines.append(f'    {{0x{ord(character):x}, U"{literal}"}},')
    return "\n".join([f"const Mapping {name}[] = {{", *lines, "};", ""])


def _escaped(character: str) -> str:
    # C++ refuses \\U for ASCII. An octal escape ends after three digits.
    code = ord(character)
    return f"\\{code:03o}" if code < 0x80 else f"\\U{code:08x}"


def ranges(name: str, function: Callable[[str], bool]) -> str:
    """A C++ array of the ranges of characters with a property."""
    found = []
    for code in (ord(c) for c in CHARACTERS if function(c)):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    lines = [f"    {{0x{first:x}, 0x{last:x}}}," for first, last in found]
    return "\n".join([f"const Range {name}[] = {{", *lines, "};", ""])


if __name__ == "__main__":
    print(f"// Unicode {unicodedata.unidata_version}. Do not edit.\n")
    print("struct Mapping {\n  char32_t from;\n  const char32_t* to;\n};")
    print("struct Range {\n  char32_t first, last;\n};\n")
    print(mapping("kDecomposed", decomposed))
    print(mapping("kLower", str.lower))
    print(ranges("kSpace", str.isspace))
    print(ranges("kDigit", str.isdigit))
    print(ranges("kCased", is_cased))
    print(ranges("kIgnorable", is_ignorable))
