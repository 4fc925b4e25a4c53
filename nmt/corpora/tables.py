"""Tables with a pair a row: TSV, CSV (RFC 4180) and JSONL.

TSV has no quoting: every tab separates two columns, and a quote is a character like any other. In CSV, a field in
quotes may hold commas, doubled quotes and line breaks. A line break inside a text becomes a space. Bytes that are not
UTF-8 are kept, as by `escaped_lines`: the caller that decodes a text refuses or drops it.
"""

import csv
import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nmt.config.formats import pairs_format
from nmt.corpora.lines import decode_line, escaped_lines, opened, undecoded
from nmt.errors import DataError

_LINE_BREAKS = re.compile(r"[\r\n]+")
_MAX_NAMES = 20  # listed in a message

_KINDS = {
    type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list",
    dict: "an object",
}  # fmt: skip

Column = int | str
"""A column's number, from 1, or its name in the header"""


class NumberedPair(NamedTuple):
    """A pair with its number. The texts are as from `escaped_lines`."""

    number: int
    """That of its line, from 1; in a TMX, of its unit."""
    src: str
    tgt: str


def one_line(text: str) -> str:
    """Replace line breaks by a space.

    >>> one_line("a\\r\\nb")
    'a b'
    """
    return _LINE_BREAKS.sub(" ", text) if "\n" in text or "\r" in text else text


def read_tsv(path: Path, src_column: Column, tgt_column: Column) -> Iterator[NumberedPair]:
    """Yield the pairs of a TSV; `DataError` with the line number for a row that is too short."""
    yield from _columns(path, _tsv_rows(path), src_column, tgt_column, "tabs")


def read_csv(path: Path, src_column: Column, tgt_column: Column) -> Iterator[NumberedPair]:
    """Yield the pairs of a CSV; `DataError` with the line number for a row that is too short or breaks RFC 4180."""
    for number, src, tgt in _columns(path, _csv_rows(path), src_column, tgt_column, "commas"):
        yield NumberedPair(number, one_line(src), one_line(tgt))


def first_row(path: Path) -> list[str]:
    """The first row of a TSV or CSV; empty if there is none. `DataError` if it is no row, or not UTF-8."""
    _, row = next(_csv_rows(path) if pairs_format(path) == "csv" else _tsv_rows(path), (1, []))
    _refuse_undecodable("".join(row), path, 1)
    return row


def _tsv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    with opened(path) as file:
        yield from ((number, line.split("\t")) for number, line in enumerate(escaped_lines(file), start=1))


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with the number of its first line."""
    with opened(path) as file:
        reader = csv.reader((f"{line}\n" for line in escaped_lines(file)), strict=True)
        while True:
            first = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise DataError(
                    f"{path}:{first}: the row that begins here is not CSV ({error}); double each quote inside a field, "
                    "and put the field in quotes"
                ) from None
            yield first, row


def _columns(
    path: Path, rows: Iterator[tuple[int, list[str]]], src_column: Column, tgt_column: Column, separator: str
) -> Iterator[NumberedPair]:
    """Yield two columns of each row. If a column is given by its name, the first row is the header."""
    columns = [src_column, tgt_column]
    if any(isinstance(column, str) for column in columns):
        _, header = next(rows, (1, None))
        if header is None:
            raise DataError(f"{path}: is empty; its first line should be the header, since a column is given by name")
        columns = [_number_of(column, header, path) for column in columns]
    src, tgt = (int(column) - 1 for column in columns)
    if src == tgt:
        raise DataError(f"{path}: src_column and tgt_column are both column {src + 1}; change one of them")
    for number, row in rows:
        try:
            pair = NumberedPair(number, row[src], row[tgt])
        except IndexError:
            key, column = ("src_column", src + 1) if src >= len(row) else ("tgt_column", tgt + 1)
            _refuse_undecodable("".join(row), path, number)
            count = f"{len(row)} column{'' if len(row) == 1 else 's'}"
            raise DataError(
                f"{path}:{number}: has {count}, and {key} is number {column}; separate columns by {separator}"
            ) from None
        yield pair


def _refuse_undecodable(text: str, path: Path, number: int) -> None:
    """Raise the `DataError` for a text that is not UTF-8, before another error that follows from it."""
    decode_line(undecoded(text), str(path), number)


def _number_of(column: Column, header: Sequence[str], path: Path) -> int:
    """A column's number, from 1."""
    if isinstance(column, int):
        return column
    names = [name.strip() for name in header]
    if names.count(column) > 1:
        raise DataError(f"{path}:1: several columns are named {column!r}; rename all but one")
    if column not in names:
        _refuse_undecodable("".join(header), path, 1)
        raise DataError(f"{path}:1: no column is named {column!r}; name one of {listed(names)}")
    return names.index(column) + 1


def listed(names: Sequence[str]) -> str:
    """The first names, in quotes, long ones abbreviated, and the number of others."""
    shortened = reprlib.Repr()
    shortened.maxstring = 50
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(map(shortened.repr, names[:_MAX_NAMES])) + more


def read_jsonl(path: Path, src_field: str, tgt_field: str) -> Iterator[NumberedPair]:
    """Yield the pairs of a file with a JSON object a line; `translation.en` is a field inside another.

    Raises `DataError` with the line number unless the line is an object with both fields as text.
    """
    with opened(path) as file:
        for number, line in enumerate(escaped_lines(file), start=1):
            place = f"{path}:{number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                _refuse_undecodable(line, path, number)
                raise DataError(f"{place}: is not JSON ({error}); a JSONL file has one object per line") from None
            yield NumberedPair(number, _text(value, src_field, place), _text(value, tgt_field, place))


def _text(value: object, field: str, place: str) -> str:
    """The text of an object's field."""
    if not isinstance(value, Mapping):
        raise DataError(f'{place}: is {_KINDS[type(value)]}, not an object such as {{"en": ..., "de": ...}}')
    inner: object = value
    for part in (field,) if field in value else field.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            raise DataError(f"{place}: has no field {field!r}; its fields are {listed(_fields(value))}")
        inner = inner[part]
    if not isinstance(inner, str):
        raise DataError(f"{place}: the field {field!r} is {_KINDS[type(inner)]}, not text")
    return one_line(inner)


def _fields(value: Mapping[str, object], prefix: str = "") -> list[str]:
    """The names of an object's fields, and of the fields of objects in it."""
    return [
        name
        for key, inner in value.items()
        for name in (_fields(inner, f"{key}.") if isinstance(inner, Mapping) and not prefix else [prefix + key])
    ]
