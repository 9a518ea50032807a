"""Vega, Vega-Lite and vega-embed as one script, from the copies inside vl-convert.

Bundling takes three seconds of CPU time and depends only on the version of vl-convert, so the script is kept in the
user's cache folder.
"""

from __future__ import annotations

import contextlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

import vl_convert

from ..data.files import write_whole

_EXPORT = "window.vegaEmbed = vegaEmbed;"


@cache
def library() -> str:
    """The script. It defines ``vegaEmbed`` and can be put inside a script element."""
    file = cache_file()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = file.read_text(encoding="utf-8")
        if "window.vegaEmbed" in text:
            return text
    text = vl_convert.javascript_bundle(_EXPORT).replace("</script", "<\\/script")
    with contextlib.suppress(OSError):  # a cache that cannot be written costs only time
        write_whole(file, text)
    return text


def cache_file() -> Path:
    """Where the script of the installed vl-convert is kept: in ``$XDG_CACHE_HOME``, else in ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "rownorm" / f"vega-{version('vl-convert-python')}.js"
