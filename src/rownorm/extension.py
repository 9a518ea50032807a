"""C extensions that are built when they are first needed.

Triton needs a C compiler and Python's headers for its own launcher and caches what it builds; it builds and caches
these extensions too.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def build(
    name: str,
    sources: Sequence[Path],
    *,
    include: Sequence[str] = (),
    flags: Sequence[str] = (),
    key: str = "",
) -> Any:
    """Compile these files as one, in their order, and return the module ``name``; raises where that fails.

    key: what the result depends on beside the sources and the flags.
    """
    # Imported here because importing rownorm must not import Triton, and a Triton for other GPUs may lack it.
    from triton.runtime.build import compile_module_from_src

    python_headers()  # raises first, because the compiler would print its error
    # Triton's cache knows an extension by its text alone.
    head = f"/* {' '.join(flags)} {key} */\n" if flags or key else ""
    more = {"ccflags": list(flags)} if flags else {}
    return compile_module_from_src(head + joined(sources), name, include_dirs=list(include), **more)


def python_headers() -> Path:
    """The folder of Python's headers; raises where they are missing."""
    # The scheme that Triton uses to find the headers.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    folder = Path(sysconfig.get_paths(scheme)["include"])
    if not (folder / "Python.h").exists():
        raise RuntimeError(f"{folder / 'Python.h'} is missing")
    return folder


def joined(sources: Sequence[Path]) -> str:
    """The text of these files as one; a compiler's messages name the file and the line."""
    return "".join(f'#line 1 "{source.name}"\n{source.read_text()}' for source in sources)


def reason_against() -> str:
    """Why no extension may be used; empty where one may."""
    if os.environ.get("ROWNORM_NATIVE", "1") == "0":
        return "ROWNORM_NATIVE is 0"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python runs without the GIL, which the extension relies on"
    return ""
