"""The script of the charts is bundled once for each version of vl-convert, and then read from a file."""

from importlib.metadata import version

import pytest
import vl_convert

from rownorm_lab.page.vega import cache_file, library


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    """An empty cache folder, and a list with one entry for each call of the bundler."""
    calls = []

    def bundle(snippet):
        calls.append(snippet)
        return f"/* </script> */{snippet}"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    library.cache_clear()
    yield calls
    library.cache_clear()


def in_a_new_process() -> str:
    library.cache_clear()
    return library()


def test_the_script_is_bundled_once(bundled, tmp_path):
    first = in_a_new_process()
    assert first == "/* <\\/script> */window.vegaEmbed = vegaEmbed;"
    assert in_a_new_process() == first
    assert len(bundled) == 1
    assert cache_file().parent == tmp_path / "rownorm"
    assert version("vl-convert-python") in cache_file().name


@pytest.mark.parametrize("content", (b"", b"half", b"\xff"))
def test_a_damaged_file_is_replaced(bundled, content):
    whole = in_a_new_process()
    cache_file().write_bytes(content)
    assert in_a_new_process() == whole
    assert cache_file().read_text() == whole
    assert len(bundled) == 2


def test_a_folder_that_cannot_be_written_costs_only_time(bundled, tmp_path):
    (tmp_path / "rownorm").touch()
    assert in_a_new_process() == in_a_new_process()
    assert len(bundled) == 2
