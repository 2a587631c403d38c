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
    """Twelve layers with their own weights beside twelve that share one set."""
    layers = ALBERT.num_hidden_layers
    height, gap, top = 19, 4, 62
    parts = []
    for left, config, name in ((30, BERT, "BERT"), (410, ALBERT, "ALBERT")):
        shared = config.sharing == "all"
        parts.append(text(left + 160, 26, f"{name}-base", size=17, bold=True))
        parts.append(
            text(
                left + 160,
                46,
                "every layer uses the same weights"
                if shared
                else "every layer has its own weights",
                colour=PALE,
            )
        )
        for layer in range(layers):
            y = top + (layers - 1 - layer) * (height + gap)
            colour = SHARED if shared else OWN[layer]
            parts.append(box(left, y, 320, height, colour))
            parts.append(
                text(
                    left + 160,
                    y + 14,
                    f"layer {layer + 1}",
                    size=12,
                    colour=INK if shared else PAPER,
                )
            )
        numbers = parameters(config)
        one = numbers["layers"] // (1 if shared else layers)
        y = top + layers * (height + gap) + 22
        parts.append(
            text(
                left + 160,
                y,
                f"{1 if shared else layers} x {millions(one)} = "
                f"{millions(numbers['layers'])} parameters in the layers",
            )
        )
        parts.append(
            text(
                left + 160,
                y + 22,
                f"{millions(sum(numbers.values()))} with embedding and pooler",
                bold=True,
            )
        )
    bottom = top + layers * (height + gap) + 74
    parts.append(
        text(
            WIDTH / 2,
            bottom,
            f"Both compute {layers} layers for every token: fewer parameters, "
            "the same arithmetic.",
            colour=PALE,
        )
    )
    return svg("Cross-layer parameter sharing", bottom + 16, parts)


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
