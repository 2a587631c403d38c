"""Texts in many scripts, and vocabularies that have their characters.

`chosen_texts` are what programs beside the package must tokenize as it does.
"""

import io
import random
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

import keras_albert as ka
from keras_albert.corpus.config import VocabRun
from keras_albert.corpus.vocabulary import train_vocabulary
from keras_albert.text.normalization import to_text

WRITTEN = {
    "English": "The fox sold £9 of tea in 1950, near São Paulo.",
    "Chinese": "狐狸在一九五〇年卖了茶叶，伦敦很冷。",
    "Arabic": "باع الثعلبُ الشايَ في لندن عام ١٩٥٠.",
    "Hindi": "लोमड़ी ने १९५० में लंदन में चाय बेची।",
    "Thai": "สุนัขจิ้งจอกขายน้ำชาในลอนดอน ปี ๒๔๙๓",
    "Korean": "여우가 1950년에 런던에서 차를 팔았다.",
    "Turkish": "İSTANBUL'da ILIK çay içtik, Iğdır'da DEĞİL.",
    "accents": "E\u0301lodie a\u0300\u0323 n\u0303o\u0302 e\u0301\u0301",
    "emoji": "tea 👩\u200d👩\u200d👧 🏳\ufe0f\u200d🌈 👍🏽 sold ☕\ufe0f 🇹🇷",
    "Greek": "ΟΔΟΣ Σ ΑΣ ΣΟΦΟΣ'",
}
# Pieces of `trained_pieces`; the comma rule of the tokenizer concerns the first
# two. Every letter and digit is a piece, too.
EXTRA_PIECES = ["▁9,", "12,", "abc", "▁abc"]


def trained_pieces(
    control: Sequence[str] = ("[CLS]", "[SEP]", "[MASK]"),
    symbols: Sequence[str] = EXTRA_PIECES,
    pad: int = 0,
    **options,
) -> bytes:
    """A file of SentencePiece with `symbols` and single characters as pieces.

    `options` are further ones of its trainer.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g , 1 2 3 9 x y z ' = $"] * 9),
        model_writer=model,
        hard_vocab_limit=False,
        pad_id=pad,
        unk_id=1 - pad,
        bos_id=-1,
        eos_id=-1,
        control_symbols=list(control),
        user_defined_symbols=list(symbols),
        character_coverage=1.0,
        minloglevel=2,
        **{"vocab_size": 60, **options},
    )
    return model.getvalue()


def trained_vocab(folder: Path, lines: list[str], size: int, **options) -> Path:
    """The folder of a vocabulary; `options` are those of VocabRun."""
    corpus, output = folder / "corpus.txt", folder / "vocab"
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    train_vocabulary(VocabRun((corpus,), output, vocab_size=size, **options))
    return output


def trained_tokenizer(
    folder: Path, lines: list[str], vocab_size: int
) -> ka.Tokenizer:
    """A tokenizer whose vocabulary has all characters of the lines."""
    vocab = trained_vocab(folder, lines, vocab_size, character_coverage=1.0)
    return ka.Tokenizer(vocab)


def split_tokenizer(folder: Path, lines: list[str]) -> ka.Tokenizer:
    """One with the pieces, such as "50,", that are encoded once more."""
    lines = [*lines, *WRITTEN.values(), "in 1950, 7, 19, 50, of 1950,"]
    tokenizer = trained_tokenizer(folder, lines * 3, 310)
    assert tokenizer.resplits
    return tokenizer


def texts_of_every_character() -> list[str]:
    """Each character of Unicode after letters, before and after a sigma."""
    codes = [*range(0x323B0), *range(0xE0000, 0xE0200), 0x10FFFF]
    codes = [i for i in codes if i != 10 and not 0xD800 <= i < 0xE000]
    return [f"A{c}Σ{c}b {c}Σ {c}" for c in map(chr, codes)]


def chosen_texts(lines: list[str], count: int = 200) -> list[str]:
    """Texts without line ends and tabs, some of them pathological.

    Many are words of the lines and of WRITTEN in another order.
    """
    chosen = [
        *WRITTEN.values(),
        *["", " ", "\0", "a\0b", "[CLS] [SEP] <unk> [MASK]", "\ufeffThe fox"],
        *["in 1950, 19,50, 7,", "1990,x ²,", "``two'' \"hens\" ‘’ “”", "´"],
        *["ΑΣ. ΑΣ'Α ΑΣ\u0301 ΣΑΣ-Σ", "각각 ᄀ가 ㅏㅑ ㄱ", "ﬁ ½ ℡ ㎏ ４２"],
        *["İi ẞß ŉ ǰ", "\u2028a\u3000b\x85c\x1cd", "Fox " * 300, "é" * 900],
    ]
    chance = random.Random(5)
    words = " ".join([*lines, *WRITTEN.values(), *chosen[-9:-2]]).split()
    odd = [0x7F, 0x250, 0x3000, 0x11000, 0x1FB00, 0x30000]
    while len(chosen) < count:
        some = chance.choices(words, k=chance.randint(1, 30))
        some += [chr(chance.randrange(33, chance.choice(odd)))]
        chance.shuffle(some)
        text = chance.choice([str, str.upper, str.title])(" ".join(some))
        chosen.append(to_text(text))
    assert not any(c in text for text in chosen for c in "\n\r\t")
    return chosen
