"""``tools/try_wheels.py``: the fresh environments of ``make release`` have torch from here, and nothing else."""

import importlib.util
import sys
from importlib import metadata
from pathlib import Path

import pytest

from support.packages import ROOT, run


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("try_wheels", ROOT / "tools" / "try_wheels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_torch_is_linked_with_what_it_requires_and_no_more(tool, tmp_path):
    tool.link_torch(tmp_path)
    use = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch; print(torch.__file__)"
    # -S: without the site-packages of this Python.
    assert Path(run(sys.executable, "-I", "-S", "-c", use).strip()).is_relative_to(tmp_path)
    linked = {one.metadata["Name"].lower() for one in metadata.distributions(path=[str(tmp_path)])}
    assert {"torch", "sympy", "mpmath"} <= linked
    assert not linked & {"rownorm", "rownorm-lab", "pytest", "click", "altair", "pip"}


def test_each_distribution_needs_one_wheel(tool, tmp_path, monkeypatch):
    (tmp_path / "rownorm_lab-0.1.0-py3-none-any.whl").touch()
    monkeypatch.setattr(sys, "argv", ["try_wheels.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="must have one wheel each of rownorm; found"):
        tool.main()


def test_a_command_that_fails_is_shown(tool, tmp_path):
    with pytest.raises(SystemExit, match="exit status 3\nwhy\n"):
        tool.run(sys.executable, "-c", "print('why'); raise SystemExit(3)", cwd=tmp_path)
