"""Reading pairs from a file with one pair a row: TSV, CSV (RFC 4180) and JSONL.

TSV has no quoting: every tab separates two columns, and a quote is a character like any other. In CSV, a field in
quotes may hold commas, doubled quotes and line breaks. A line break inside a text becomes a space. Bytes that are not
UTF-8 are kept as `escaped_lines` does: whether a text with them is refused or left out is decided where it is decoded.
"""

import csv
import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

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
    """A pair, and where it is: the number of its line, from 1. (In a TMX: of its unit.)

    The texts are as from `escaped_lines`.
    """

    number: int
    src: str
    tgt: str


def one_line(text: str) -> str:
    """The text with a space in place of line breaks.

    >>> one_line("a\\r\\nb")
    'a b'
    """
    return _LINE_BREAKS.sub(" ", text) if "\n" in text or "\r" in text else text


def read_tsv(path: Path, src_column: Column, tgt_column: Column) -> Iterator[NumberedPair]:
    """The pairs of a TSV; `DataError` with the line for a row that is too short."""
    with opened(path) as file:
        rows = ((number, line.split("\t")) for number, line in enumerate(escaped_lines(file), start=1))
        yield from _columns(path, rows, src_column, tgt_column, "tabs")


def read_csv(path: Path, src_column: Column, tgt_column: Column) -> Iterator[NumberedPair]:
    """The pairs of a CSV; `DataError` with the line for a row that is too short, or that RFC 4180 does not allow."""
    for number, src, tgt in _columns(path, _csv_rows(path), src_column, tgt_column, "commas"):
        yield NumberedPair(number, one_line(src), one_line(tgt))


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Each row with the number of its first line."""
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
                    f"{path}:{first}: the row that begins here is not CSV ({error}); a quote inside a field is "
                    "doubled, and the field is in quotes"
                ) from None
            yield first, row


def _columns(
    path: Path, rows: Iterator[tuple[int, list[str]]], src_column: Column, tgt_column: Column, separator: str
) -> Iterator[NumberedPair]:
    """Two columns of each row. If one of them has a name, the first row is the header."""
    columns = [src_column, tgt_column]
    if any(isinstance(column, str) for column in columns):
        _, header = next(rows, (1, None))
        if header is None:
            raise DataError(f"{path}: is empty; a column has a name, so its first line should be the header")
        columns = [_number_of(column, header, path) for column in columns]
    src, tgt = (int(column) - 1 for column in columns)
    if src == tgt:
        raise DataError(f"{path}: src_column and tgt_column are the same column, number {src + 1}")
    for number, row in rows:
        try:
            pair = NumberedPair(number, row[src], row[tgt])
        except IndexError:
            key, column = ("src_column", src + 1) if src >= len(row) else ("tgt_column", tgt + 1)
            _refuse_undecodable("".join(row), path, number)
            count = f"{len(row)} column{'' if len(row) == 1 else 's'}"
            raise DataError(
                f"{path}:{number}: has {count}, and {key} is number {column}; columns are separated by {separator}"
            ) from None
        yield pair


def _refuse_undecodable(text: str, path: Path, number: int) -> None:
    """`DataError` for what is not UTF-8: it is said before what is wrong because of it."""
    decode_line(undecoded(text), str(path), number)


def _number_of(column: Column, header: Sequence[str], path: Path) -> int:
    """A column's number, from 1."""
    if isinstance(column, int):
        return column
    names = [name.strip() for name in header]
    if names.count(column) > 1:
        raise DataError(f"{path}:1: several columns are named {column!r}; give both columns another name in the header")
    if column not in names:
        _refuse_undecodable("".join(header), path, 1)
        raise DataError(f"{path}:1: no column is named {column!r}; the header has {listed(names)}")
    return names.index(column) + 1


def listed(names: Sequence[str]) -> str:
    """Names in quotes, the first few of many, long ones abbreviated."""
    shortened = reprlib.Repr()
    shortened.maxstring = 50
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(map(shortened.repr, names[:_MAX_NAMES])) + more


def read_jsonl(path: Path, src_field: str, tgt_field: str) -> Iterator[NumberedPair]:
    """The pairs of a file with a JSON object a line; a field inside another is named with a dot, `translation.en`.

    Raises `DataError` with the line for what is not an object with both fields as text.
    """
    with opened(path) as file:
        for number, line in enumerate(escaped_lines(file), start=1):
            place = f"{path}:{number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                _refuse_undecodable(line, path, number)
                raise DataError(f"{place}: is not JSON ({error}); a JSONL has one object a line") from None
            yield NumberedPair(number, _text(value, src_field, place), _text(value, tgt_field, place))


def _text(value: object, field: str, place: str) -> str:
    """The text of an object's field."""
    if not isinstance(value, Mapping):
        raise DataError(f'{place}: is {_KINDS[type(value)]}, not an object such as {{"en": ..., "de": ...}}')
    found: object = value
    for part in (field,) if field in value else field.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise DataError(f"{place}: has no field {field!r}; it has {listed(_fields(value))}")
        found = found[part]
    if not isinstance(found, str):
        raise DataError(f"{place}: the field {field!r} is {_KINDS[type(found)]}, not text")
    return one_line(found)


def _fields(value: Mapping[str, object], prefix: str = "") -> list[str]:
    """The names of an object's fields, with those of objects in it."""
    return [
        name
        for key, inner in value.items()
        for name in (_fields(inner, f"{key}.") if isinstance(inner, Mapping) and not prefix else [prefix + key])
    ]
