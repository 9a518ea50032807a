"""``rownorm info``."""

import pytest
import torch

from support.lab_commands import invoke

pytestmark = pytest.mark.usefixtures("command_line")


def test_info():
    ran = invoke("info")
    assert ran.exit_code == 0, ran.output
    for expected in (torch.__version__, "rownorm", "liger", "ceiling", "Devices"):
        assert expected in ran.output
    if not torch.cuda.is_available():
        assert "There is no GPU here" in ran.output


def test_info_says_how_to_install_missing_providers():
    ran = invoke("info")
    try:
        import liger_kernel  # noqa: F401
    except ImportError:
        assert "pip install liger-kernel" in ran.output
