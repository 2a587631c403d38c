"""Tables in memory: frames of pandas and polars, datasets, lists of rows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_albert.errors import AlbertError, reason_of

_MISSING = ("NAType", "NaTType")  # classes of pandas

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
        AlbertError: something else, or columns that do not fit together.
    """
    columns = {name: _listed(name, v) for name, v in _columns(data).items()}
    if len(set(map(len, columns.values()))) > 1:
        counts = ", ".join(f"{len(v)} {name}" for name, v in columns.items())
        raise AlbertError(
            f"the columns must be equally long. Received: {counts}."
        )
    return columns


def _columns(data: Frame) -> Mapping[str, Any]:
    """The columns, with values as the table has them."""
    if isinstance(data, Mapping):
        if any(
            hasattr(part, "features") or hasattr(part, "columns")
            for part in data.values()
        ):
            raise AlbertError(
                f"the dataset has the splits {', '.join(data)}. Give one of "
                f"them: dataset[{next(iter(data))!r}]."
            )
        return data
    # A frame of pandas has a column of this name as an attribute.
    if isinstance(getattr(data, "features", None), Mapping):  # datasets
        return {
            name: _named(values, data.features[name])
            for name, values in data.to_dict().items()
        }
    if hasattr(data, "to_pydict"):  # pyarrow
        check_named_once(data.column_names, "the table")
        try:
            return data.to_pydict()
        except (ValueError, OverflowError) as error:  # such as a distant date
            raise AlbertError(
                "a value of the table cannot be converted "
                f"({reason_of(error)}). Leave its column out."
            ) from None
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # pandas
        check_named_once(data.columns, "the table")
        known = data.astype(object).where(data.notna(), None)
        return known.to_dict(orient="list")
    if hasattr(data, "to_dicts"):  # polars
        return data.to_dict(as_series=False)
    if hasattr(data, "as_numpy_iterator"):  # tf.data
        if not isinstance(data.element_spec, Mapping):
            raise AlbertError(
                "expected a tf.data.Dataset of dicts. Received: one of "
                f"{type(data.element_spec).__name__}s, as `as_supervised` "
                "gives them. Name their parts: data.map(lambda text, label: "
                "{'text': text, 'label': label})."
            )
        return _columns_of_rows(data.as_numpy_iterator())
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _columns_of_rows(data)
    raise AlbertError(
        "expected a file, or a table in memory: a dict of columns, a frame of "
        "pandas or polars, a pyarrow.Table, a Hugging Face dataset, a "
        "tf.data.Dataset of dicts, or a list of dicts. Received: "
        f"{type(data).__name__}."
    )


def check_named_once(names: Iterable, table: str) -> None:
    """Raises AlbertError, which begins with `table`, for two equal names."""
    names = [*map(str, names)]
    if len(set(names)) < len(names):
        raise AlbertError(
            f"{table} names a column twice: {', '.join(names)}. Rename one."
        )


def _columns_of_rows(rows: Iterable) -> dict[str, list]:
    rows = list(rows)
    for row in rows:
        if not isinstance(row, Mapping):
            raise AlbertError(
                "expected rows that are dicts of columns. Received: a row "
                f"that is a {type(row).__name__}."
            )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _listed(name: object, values: Any) -> list:
    if not isinstance(name, str):
        raise AlbertError(
            "the columns must have names that are texts. Received: "
            f"{name!r}. Rename it."
        )
    plain = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(plain, str | bytes) or not isinstance(plain, Iterable):
        raise AlbertError(
            f"the column `{name}` must be a list of values, one for each row. "
            f"Received: {plain!r:.60}."
        )
    return [_plain(value) for value in plain]


def _plain(value: Any) -> object:
    """A value of Python: bytes are UTF-8, and NaN or NA is no value."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):  # such as the answers of SQuAD's questions
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None
    return None if type(value).__name__ in _MISSING else value


def _named(values: list, feature: Any) -> list:
    """Class labels of a Hugging Face dataset by name; -1 is no label."""
    if hasattr(feature, "feature"):  # a list of them in each row
        return [
            None if each is None else _named(each, feature.feature)
            for each in values
        ]
    if not hasattr(feature, "int2str"):
        return values
    return [
        None if value is None or value < 0 else feature.int2str(value)
        for value in values
    ]
