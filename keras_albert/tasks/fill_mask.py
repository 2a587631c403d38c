"""The pieces that "[MASK]" may stand for, from a pretrained model.

Letters: B texts, M masks of a text, K best pieces.
"""

import numpy as np

from keras_albert.data.bad_rows import place_of
from keras_albert.data.batches import Features
from keras_albert.data.tables import Field, read_text
from keras_albert.errors import AlbertError
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import FILL_MASK_CHOICES
from keras_albert.modeling.masked_texts import (
    MASK,
    best_pieces,
    fills,
    masked_ids,
)
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.tasks.serving import Serving
from keras_albert.tasks.task import Task
from keras_albert.text.model_inputs import Row
from keras_albert.text.normalization import to_text
from keras_albert.text.special_tokens import MASK_ID

# What the heads predict.
PRETRAINED = "masked words and the order of sentences"
MASKED_WORDS = "masked words"


def _read_masked(value: object) -> str:
    """Reads a text; raises AlbertError if it has nothing to fill in."""
    text = read_text(value)
    if MASK not in text:
        raise AlbertError(f'has no "{MASK}". Received: {text!r:.80}.')
    return text


class _MaskServing(Serving):
    """The signatures of an exported model that fills in masks.

    `fill_mask`, the default, takes `text`, string [B]; `token_ids` takes int32
    [B, S]. Both return the K most probable pieces for each mask, with their
    scores and ids, [B, M, K]. The scores of the whole vocabulary would be too
    many to return.
    """

    needs_pieces = True

    def signatures(self, graph):
        from keras_albert.tasks.fill_mask_graph import serve_masks

        fill_mask, fill_ids = serve_masks(graph)
        return {
            "serving_default": fill_mask,
            "fill_mask": fill_mask,
            "token_ids": fill_ids,
        }

    def answer(self, outputs, given):
        # The batch is padded to the largest number of masks in a text.
        count = given["text"].count(MASK)
        return outputs["pieces"][:count], outputs["scores"][:count]

    def example(self, length):
        text, ids = super().example(length)
        ids[1] = MASK_ID
        return MASK + text.removeprefix("a"), ids


class FillMask(Task):
    """The most probable pieces for each "[MASK]" of each text."""

    heads = {PRETRAINED: AlbertForPretraining, MASKED_WORDS: AlbertForMaskedLM}
    serving = _MaskServing()

    def inputs(self, columns):
        return {"text": Field(columns.text, _read_masked)}

    def features(self, tokenizer, table, names, length):
        rows = []
        texts = [*map(to_text, table.values["text"])]
        for line, text in zip(table.lines, texts, strict=True):
            ids = masked_ids(tokenizer, text)
            tokens, segments = tokenizer.pack(ids, None, length)
            written = text.count(MASK)
            is_blank = not text.strip()  # as a line of a .txt file may be
            if tokens.count(MASK_ID) != written or not (written or is_blank):
                raise AlbertError(
                    f'{place_of(table.path, line)}: each text needs "{MASK}" '
                    f"within the first {length} tokens. Received: "
                    f"{text!r:.80}. Write one, or shorten the text."
                )
            is_cut = len(ids) + 2 > length
            rows.append(Row(np.array(tokens, "int32"), len(segments), is_cut))
        return Features(rows, source=texts)

    def compute(self, model, x):
        """The best `pieces` for each mask, their `scores` and `ids`, [B, M, K].

        An exported graph has the same outputs. M is the largest number of masks
        in a row; where a row has fewer, the last values have no meaning
        (`unpadded` removes them).
        """
        if not isinstance(model, AlbertModel):  # an exported graph
            return model.predict_on_batch(x)
        return best_pieces(model, x, FILL_MASK_CHOICES)

    def unpadded(self, output, row):
        count = int((row.token_ids == MASK_ID).sum())
        return {name: values[:count] for name, values in output.items()}

    def decode(self, outputs, features, names):
        decoded = []
        for output in outputs:
            scores = np.round(output["scores"].astype("float64"), 6).tolist()
            pieces = output["pieces"].tolist()
            decoded.append({"prediction": pieces, "score": scores})
        return decoded

    def answers(self, outputs, features, names):
        """A list of Fill for each mask of each text, as `model.fill_mask`."""
        return [
            fills(text, output["pieces"], output["scores"])
            for text, output in zip(features.source, outputs, strict=True)
        ]
