"""Tables in memory: frames of pandas and polars, datasets, lists of rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_albert.errors import AlbertError

# Columns by their names, or another table that `columns_of` takes.
Frame = Any


def columns_of(data: Frame) -> dict[str, list]:
    """The columns of a table in memory, as lists of Python's values.

    Args:
        data: a dict of columns of equal length; a frame of pandas or polars; a
            pyarrow.Table; a split of a Hugging Face dataset, whose class
            labels become their names; a tf.data.Dataset of dicts, as
            tensorflow_datasets has them; or a list of dicts.

    Raises:
        AlbertError: it is something else, several splits, or columns of
            unequal length.
    """
    if isinstance(data, Mapping):
        if any(hasattr(part, "features") for part in data.values()):
            raise AlbertError(
                f"the dataset has the splits {', '.join(data)}. Give one of "
                f"them: dataset[{next(iter(data))!r}]."
            )
        columns = {name: _listed(values) for name, values in data.items()}
    elif hasattr(data, "features") and hasattr(data, "to_dict"):  # datasets
        columns = {
            name: _named(values, data.features[name])
            for name, values in data.to_dict().items()
        }
    elif hasattr(data, "to_pydict"):  # pyarrow
        columns = data.to_pydict()
    elif hasattr(data, "iloc"):  # pandas, whose missing values are NaN
        known = data.astype(object).where(data.notna(), None)
        columns = known.to_dict(orient="list")
    elif hasattr(data, "to_dicts"):  # polars
        columns = data.to_dict(as_series=False)
    elif hasattr(data, "as_numpy_iterator"):  # tf.data
        columns = _columns_of_rows(data.as_numpy_iterator())
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes):
        columns = _columns_of_rows(data)
    else:
        raise AlbertError(
            "expected a file, or a table in memory: a dict of columns, a frame "
            "of pandas or polars, a Hugging Face dataset, a tf.data.Dataset "
            f"of dicts, or a list of dicts. Received: {type(data).__name__}."
        )
    if len(set(map(len, columns.values()))) > 1:
        counts = ", ".join(f"{len(v)} {name}" for name, v in columns.items())
        raise AlbertError(
            f"the columns must be equally long. Received: {counts}."
        )
    return columns


def _columns_of_rows(rows: Iterable) -> dict[str, list]:
    rows = list(rows)
    for row in rows:
        if not isinstance(row, Mapping):
            raise AlbertError(
                "expected rows that are dicts of columns. Received: a row "
                f"that is a {type(row).__name__}."
            )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _listed([row.get(name) for row in rows]) for name in names}


def _listed(values: Iterable) -> list:
    """The values of a column as Python's; bytes are UTF-8, as in tf.data."""
    plain = values.tolist() if hasattr(values, "tolist") else values
    return [_plain(value) for value in plain]


def _plain(value: object) -> object:
    value = value.tolist() if hasattr(value, "tolist") else value
    return value.decode("utf-8", "replace") if type(value) is bytes else value


def _named(values: list, feature: Any) -> list:
    """Class labels of a Hugging Face dataset by name; -1 is no label."""
    if not hasattr(feature, "int2str"):
        return values
    return [
        None if value is None or value < 0 else feature.int2str(value)
        for value in values
    ]
