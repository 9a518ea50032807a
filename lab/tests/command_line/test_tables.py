"""Tables as text."""

import pytest

from rownorm_lab.data.case import Case
from rownorm_lab.data.tables import (
    WIDTH,
    Table,
    columns,
    escaped,
    markdown,
    shape_label,
    shortened,
    table_text,
    wrapped,
)


def test_columns_are_as_wide_as_their_widest_cell():
    assert columns(["a", "long"], [["wide", "b"], ["c", ""]]) == [
        "  a     long",
        "  wide  b",
        "  c",
    ]


WIDE = Table("A table", ["figure", *"abcdef"], [["time", *["12.3 µs, twelve"] * 6]] * 2)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_wide_table_goes_on_below_in_a_terminal(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = table_text(WIDE).splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("  figure") for line in lines) > 1
    assert "\n".join(lines).count("12.3 µs, twelve") == 12


def test_lines_that_go_on_below_can_be_told_apart(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = [["64", warps, *["12.3 µs, twelve"] * 4] for warps in ("4", "8")]
    text = table_text(Table("Both name a line", ["BLOCK", "num_warps", *"abcd"], lines))
    assert (
        text.count("  64     4          12.3 µs") == text.count("  64     8          12.3 µs") == 2
    )


def test_the_widest_column_is_shortened_in_a_terminal_only(monkeypatch):
    name = "void at::native::" + "vectorized_elementwise_kernel" * 4
    table = Table("Kernels", ["kernel", "time"], [[name, "12.3 µs"]])
    monkeypatch.delenv("COLUMNS", raising=False)
    assert name in table_text(table)
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, table_text(table).splitlines())) == 80
    assert "…  12.3 µs" in table_text(table)


def test_shortened():
    assert shortened("12345", 5) == "12345"
    assert shortened("1234 6", 6) == "1234 6"
    assert shortened("1234 67", 6) == "1234…"


def test_wrapped_lines_fit_and_are_indented():
    first, *others = wrapped("  " + "word " * 60, indent=4)
    assert first.startswith("  word")
    assert all(line.startswith("    word") for line in others)
    assert max(map(len, (first, *others))) <= WIDTH
    assert wrapped("short") == ["short"]


def test_the_label_of_a_case():
    case = Case(operation="rms_norm", rows=4096, cols=8192, name="Llama-3-70B hidden")
    assert shape_label(case) == "4096x8192 Llama-3-70B hidden"
    assert shape_label(case, 14) == "4096x8192 Lla…"


def test_markdown_is_escaped():
    assert escaped("a | b <c>\n& d") == "a \\| b &lt;c> &amp; d"
    assert markdown(["a"], [["b|c"]]) == "| a |\n| --- |\n| b\\|c |"
