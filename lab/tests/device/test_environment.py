"""The environment of records."""

import platform

import msgspec
import torch

import rownorm
from rownorm_lab.data.records import Environment
from rownorm_lab.device.environment import _tables, environment, version_of


def test_environment_of_this_machine():
    here = environment({"liger-kernel": "1.0"})
    assert here.kind == ("cuda" if torch.cuda.is_available() else "cpu")
    assert here.device
    assert here.host
    assert here.python == platform.python_version()
    assert (here.torch, here.rownorm) == (torch.__version__, rownorm.__version__)
    assert here.triton
    assert here.versions == {"liger-kernel": "1.0"}
    assert msgspec.json.decode(msgspec.json.encode(here), type=Environment) == here


def test_settings_that_affect_results_are_recorded(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.delenv("ROWNORM_DIRECT_LAUNCH", raising=False)
    monkeypatch.setenv("ROWNORM_NATIVE", "0")
    settings = environment().settings
    assert settings["TRITON_INTERPRET"] == "1"
    assert "ROWNORM_DIRECT_LAUNCH" not in settings
    assert settings["ROWNORM_NATIVE"] == "0"
    if not torch.cuda.is_available():
        assert settings["threads"] == str(torch.get_num_threads())
    else:
        assert settings["fp_fusion"] in ("on", "off")


def test_the_triton_of_the_table_is_recorded():
    """The report shows it beside the Triton of the measurement."""
    assert _tables("sm_90")["table_triton"].startswith("3.")
    assert "table_triton" not in _tables("sm_80")


def test_versions_of_packages():
    assert version_of("msgspec") == msgspec.__version__
    assert version_of("no-such-package-is-installed") == ""
