"""The commands where Triton is missing, as on macOS and Windows: they work, or say in one line what is missing."""

import pytest

from support.without_triton import run

EXHAUSTIVE = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("info",), 0),
        pytest.param(("analyze", "rms_norm", "--cols", "4096"), 1, marks=EXHAUSTIVE),
        pytest.param(("check", "--quick"), 0, marks=EXHAUSTIVE),
        pytest.param(("source", "forward_resident"), 1, marks=EXHAUSTIVE),
        pytest.param(("learn", "check", "1"), 1, marks=EXHAUSTIVE),
        pytest.param(("tune", "--width", "4096"), 1, marks=EXHAUSTIVE),
        pytest.param(("bars", "measure", "--out", "bars"), 1, marks=EXHAUSTIVE),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_commands(command, expected, tmp_path):
    status, printed = run(command, tmp_path, triton=False)
    assert status == expected, printed
    assert "Triton is not installed" in " ".join(printed.split())
    assert "Traceback" not in printed
    if expected:
        begun = ("compiling for", "loading")  # the word before torch is imported
        assert len([line for line in printed.splitlines() if not line.startswith(begun)]) == 1
