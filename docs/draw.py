"""Draws the pictures of README.md and of the documentation as SVG files.

    python docs/draw.py

All numbers come from `VARIANTS["base_v2"]`, the released ALBERT-base, and from
the same configuration without its two ideas, which is BERT-base with ALBERT's
vocabulary. `tests/unit/test_docs.py` checks that the files are up to date.
"""

import html
from pathlib import Path

from keras_albert.modeling.config import VARIANTS, AlbertConfig

PICTURES = Path(__file__).parent / "pictures"
ALBERT = VARIANTS["base_v2"]
BERT = ALBERT.replace(sharing="none", embedding_size=ALBERT.hidden_size)

WIDTH = 760
INK, PALE, PAPER = "#1f2933", "#52606d", "#ffffff"
SHARED = "#f0b429"  # the weights that ALBERT's layers share
# A colour for the own weights of each layer of BERT.
OWN = tuple(f"hsl({(200 + 47 * i) % 360}, 60%, 42%)" for i in range(12))


def parameters(config: AlbertConfig) -> dict[str, int]:
    """The trainable numbers of an encoder, by part.

    >>> sum(parameters(ALBERT).values())
    11683584
    """
    embedding, hidden = config.embedding_size, config.hidden_size
    inner = config.intermediate_size
    rows = (
        config.vocab_size
        + config.max_position_embeddings
        + config.type_vocab_size
    )
    block = (
        4 * (hidden * hidden + hidden)  # query, key, value, output
        + 2 * hidden * inner
        + inner
        + hidden  # the feed-forward network
        + 4 * hidden  # two LayerNorms
    )
    blocks = config.num_hidden_layers if config.sharing == "none" else 1
    return {
        "embedding": rows * embedding + 2 * embedding,
        "projection": embedding * hidden + hidden
        if config.has_projection
        else 0,
        "layers": blocks * block,
        "pooler": hidden * hidden + hidden,
    }


def main() -> None:
    """Writes all pictures."""
    PICTURES.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (PICTURES / name).write_text(picture, encoding="utf-8")


def pictures() -> dict[str, str]:
    """The SVG text of each picture, by the name of its file."""
    return {
        "sharing.svg": sharing(),
        "embedding.svg": embedding(),
        "sentence-order.svg": sentence_order(),
    }


def sharing() -> str:
    """Both ideas: twelve layers on a table of embeddings, BERT and ALBERT."""
    layers = ALBERT.num_hidden_layers
    across, height, gap, top = 320, 19, 4, 62
    parts = []
    for left, config, name in ((30, BERT, "BERT"), (410, ALBERT, "ALBERT")):
        shared = config.sharing == "all"
        middle = left + across / 2
        ink = INK if shared else PAPER
        colours = [SHARED] * layers if shared else OWN
        numbers = parameters(config)
        sets = 1 if shared else layers
        same = "the same" if shared else "its own"
        parts += [
            text(middle, 26, f"{name}-base", size=17, bold=True),
            text(middle, 46, f"every layer uses {same} weights", colour=PALE),
        ]
        for layer in range(layers):
            y = top + (layers - 1 - layer) * (height + gap)
            label = f"layer {layer + 1}"
            parts += [
                box(left, y, across, height, colours[layer]),
                text(middle, y + 14, label, size=12, colour=ink),
            ]
        y = top + layers * (height + gap)
        parts += table_of_pieces(config, left, across, y)
        parts += [
            text(
                middle,
                y + 98,
                f"layers: {sets} x {millions(numbers['layers'] // sets)} = "
                f"{millions(numbers['layers'])} parameters",
            ),
            text(
                middle,
                y + 120,
                f"{millions(sum(numbers.values()))} in all, with positions "
                "and pooler",
                bold=True,
            ),
        ]
    bottom = top + layers * (height + gap) + 156
    parts.append(
        text(
            WIDTH / 2,
            bottom,
            f"Both compute {layers} layers for every token: fewer parameters, "
            "the same arithmetic.",
            colour=PALE,
        )
    )
    return svg("ALBERT's two ideas", bottom + 16, parts)


def table_of_pieces(
    config: AlbertConfig, left: float, across: float, top: float
) -> list[str]:
    """The table of embeddings below the layers, as wide as its vectors.

    `across` pixels are as many numbers as the layers' vectors have.
    """
    vocab, hidden = config.vocab_size, config.hidden_size
    narrow = config.embedding_size
    middle, deep = left + across / 2, 28
    if not config.has_projection:
        rows = f"embeddings: {vocab:,} x {hidden} = {millions(vocab * hidden)}"
        return [
            box(left, top, across, 2 * deep, PALE),
            text(middle, top + deep + 5, rows, colour=PAPER),
        ]
    half = across * narrow / hidden / 2
    corners = (
        f"{left:g},{top:g} {left + across:g},{top:g} "
        f"{middle + half:g},{top + deep:g} {middle - half:g},{top + deep:g}"
    )
    return [
        f'<polygon points="{corners}" fill="{PALE}"/>',
        text(middle, top + 18, f"{narrow} x {hidden}", size=12, colour=PAPER),
        box(middle - half, top + deep + 1, 2 * half, deep, PALE),
        text(
            middle,
            top + 2 * deep + 18,
            f"embeddings: {vocab:,} x {narrow}, then to {hidden} = "
            f"{millions(narrow * (vocab + hidden))}",
        ),
    ]


def embedding() -> str:
    """One large table beside a narrow table and a projection, to scale."""
    vocab, hidden = ALBERT.vocab_size, ALBERT.hidden_size
    narrow = ALBERT.embedding_size
    across, down, top = 0.25, 0.008, 66  # pixels for a number, along each side
    tall = vocab * down
    parts = [
        text(130, 26, "BERT", size=17, bold=True),
        text(130, 46, "one table, V x H", colour=PALE),
        box(130 - hidden * across / 2, top, hidden * across, tall, OWN[0]),
        text(130, top + tall / 2, f"{vocab:,} x {hidden}", colour=PAPER),
        text(130, top + tall + 24, millions(vocab * hidden), bold=True),
        text(500, 26, "ALBERT", size=17, bold=True),
        text(500, 46, "a narrow table, V x E, then E x H", colour=PALE),
        box(360, top, narrow * across, tall, SHARED),
        text(376, top + tall + 24, f"{vocab:,} x {narrow}"),
        text(440, top + tall / 2, "x", size=20),
        # E is drawn as long as it is wide in the other table.
        box(
            480,
            top + tall / 2 - narrow * across / 2,
            hidden * across,
            narrow * across,
            SHARED,
        ),
        text(576, top + tall / 2 + 42, f"{narrow} x {hidden}"),
        text(
            576,
            top + tall + 24,
            f"{millions(vocab * narrow)} + {millions(narrow * hidden)} = "
            f"{millions(narrow * (vocab + hidden))}",
            bold=True,
        ),
        text(
            WIDTH / 2,
            top + tall + 56,
            f"V = {vocab:,} pieces of the vocabulary, H = {hidden}, "
            f"E = {narrow}. V is drawn at a smaller scale than E and H.",
            colour=PALE,
        ),
    ]
    return svg("Factorized embedding", top + tall + 72, parts)


def sentence_order() -> str:
    """The two orders of two neighbouring segments, with their labels."""
    first, second = "She opened the door.", "The room was empty."
    parts = [
        text(WIDTH / 2, 26, "Two neighbouring pieces of a text", bold=True)
    ]
    rows = (
        ("in order: label 0", first, second, (OWN[0], SHARED)),
        ("swapped: label 1", second, first, (SHARED, OWN[0])),
    )
    for row, (label, one, two, colours) in enumerate(rows):
        y = 46 + 56 * row
        for left, words, colour in (
            (100, one, colours[0]),
            (340, two, colours[1]),
        ):
            dark = colour == SHARED
            parts.append(box(left, y, 190, 34, colour))
            parts.append(
                text(left + 95, y + 22, words, colour=INK if dark else PAPER)
            )
        parts.append(text(52, y + 22, "[CLS]"))
        parts.append(text(315, y + 22, "[SEP]"))
        parts.append(text(556, y + 22, "[SEP]"))
        parts.append(text(664, y + 22, label, bold=True))
    return svg("Sentence-order prediction", 160, parts)


def millions(count: int) -> str:
    """A count as it stands in the tables of the documentation.

    >>> millions(11_683_584), millions(98_304)
    ('11.68 M', '0.10 M')
    """
    return f"{count / 1e6:.2f} M"


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A filled rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'rx="3" fill="{colour}"/>'
    )


def text(
    x: float,
    y: float,
    words: str,
    size: int = 14,
    colour: str = INK,
    bold: bool = False,
) -> str:
    """A line of text, centred at `x`."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"'
        f"{weight}>{html.escape(words)}</text>"
    )


def svg(title: str, height: float, parts: list[str]) -> str:
    """A whole file, with a background that suits dark pages, too."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} '
        f'{height:g}" width="{WIDTH}" height="{height:g}" role="img" '
        'font-family="system-ui, sans-serif" text-anchor="middle">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height:g}" fill="{PAPER}"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
