"""Reads folders that `save_to_disk` of Hugging Face `datasets` wrote."""

from collections.abc import Collection, Iterator
from pathlib import Path

from keras_albert.data.frames import columns_of
from keras_albert.data.table_files import TABLE_ROWS_AT_ONCE, NumberedRow
from keras_albert.errors import AlbertError, optional_import, reason_of
from keras_albert.storage import checksum, checksum_of_folder

_STATE_FILE, _SPLITS_FILE = "state.json", "dataset_dict.json"


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder holds a Dataset or the splits of a DatasetDict."""
    return any((path / name).is_file() for name in (_STATE_FILE, _SPLITS_FILE))


def _check_one_split(path: Path) -> None:
    if not (path / _SPLITS_FILE).is_file():
        return
    splits = sorted(each.parent.name for each in path.glob(f"*/{_STATE_FILE}"))
    example = f", such as {path / splits[0]}" if splits else ""
    raise AlbertError(
        f"{path}: a DatasetDict with the splits {', '.join(splits) or 'none'}. "
        f"Give the folder of one of them{example}."
    )


def read_saved_dataset(
    path: Path, columns: Collection[str]
) -> Iterator[NumberedRow]:
    """The rows, with class labels by name; they are numbered from 1."""
    _check_one_split(path)
    datasets = optional_import("datasets", "datasets", f"{path}: its format")
    try:
        data = datasets.load_from_disk(str(path))
        for begin in range(0, len(data), TABLE_ROWS_AT_ONCE):
            end = min(begin + TABLE_ROWS_AT_ONCE, len(data))
            found = columns_of(data.select(range(begin, end)))
            rows = zip(*found.values(), strict=True)
            for number, row in enumerate(rows, begin + 1):
                yield number, dict(zip(found, row, strict=True))
    except AlbertError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AlbertError(
            f"{path}: damaged, or not a folder of `save_to_disk` "
            f"({reason_of(error)}). Save the dataset again."
        ) from None


def checksum_of_table(path: Path) -> str:
    """SHA-256 of a file, or of the files of a saved dataset."""
    return (checksum if path.is_file() else checksum_of_folder)(path)
