"""FlashInfer-Bench keeps what it builds in a folder of its own; tests get an empty one."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """An empty cache, and an empty registry of built Solutions."""
    from flashinfer_bench.compile import BuilderRegistry

    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(BuilderRegistry, "_instance", None)
    monkeypatch.chdir(tmp_path)
