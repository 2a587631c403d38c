"""A figure that notebooks show. This module imports matplotlib."""

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure that is an image in a notebook, without `%matplotlib inline`.

    IPython shows any object with `_repr_png_`.
    """

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png")
        return image.getvalue()
