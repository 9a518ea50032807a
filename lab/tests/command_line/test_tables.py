"""Tables as text."""

from rownorm_lab.data.case import Case
from rownorm_lab.data.tables import (
    WIDTH,
    columns,
    escaped,
    markdown,
    shape_label,
    shortened,
    wrapped,
)


def test_columns_are_as_wide_as_their_widest_cell():
    assert columns(["a", "long"], [["wide", "b"], ["c", ""]]) == [
        "  a     long",
        "  wide  b",
        "  c",
    ]


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
