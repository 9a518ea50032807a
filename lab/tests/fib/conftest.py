"""FlashInfer-Bench keeps what it builds in a folder of its own; tests get an empty one."""

from importlib.util import find_spec

import pytest


class NotInstalled(pytest.Module):
    """A file of tests that is skipped."""

    def collect(self):
        pytest.skip("flashinfer-bench is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    """On a machine without the package, which make does not install there, all files of this folder are skipped."""
    if find_spec("flashinfer_bench") is None:
        return NotInstalled.from_parent(parent, path=module_path)
    return None


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """An empty cache, and an empty registry of built Solutions."""
    from flashinfer_bench.compile import BuilderRegistry

    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(BuilderRegistry, "_instance", None)
    monkeypatch.chdir(tmp_path)
