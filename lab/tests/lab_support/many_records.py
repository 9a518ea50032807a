"""Any number of records: every operation, pass and dtype on as many shapes as needed."""

from collections.abc import Iterator
from itertools import islice, product

from lab_support.lab_records import PROVIDERS, record
from rownorm_lab.data.case import DIRECTIONS, DTYPES, OPERATIONS, Case
from rownorm_lab.data.records import Record

WIDTHS = range(256, 65536, 256)


def many_records(number: int) -> list[Record]:
    """That many records of all providers. Twice the number has the same groups and twice the shapes."""
    kinds = len(OPERATIONS) * len(DIRECTIONS) * len(DTYPES)
    shapes = -(-number // (kinds * len(PROVIDERS)))
    return list(islice(_records(shapes), number))


def _records(shapes: int) -> Iterator[Record]:
    """The records of so many shapes, which are about square in the numbers of rows and widths."""
    heights = max(1, round(shapes**0.5))
    grid = islice(product(WIDTHS, (2**i if i < 16 else 1000 * i for i in range(heights))), shapes)
    for cols, rows in grid:
        for operation, direction, dtype in product(OPERATIONS, DIRECTIONS, DTYPES):
            case = Case(operation=operation, direction=direction, dtype=dtype, rows=rows, cols=cols)
            for provider in PROVIDERS:
                yield record(case, provider)
