"""The extension in C++ (node.cpp), built in the background when a norm with gradients is first called.

Compiling it takes about half a minute, because it includes PyTorch's headers. Until it is ready, and where it cannot be
built, norms with gradients are recorded by ``ops.eager`` and its C. The compiler goes on when the process that started
it ends, so that the next process finds what it built.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ... import extension
from ...program import c_definitions

NAME = "rownorm_node"
SOURCES = ("prepared_call.h", "node.cpp")
# It is half a minute of work at low priority. Beside a program that uses all cores it gets a tenth of one, and takes
# ten times as long. Nobody waits for it, and a compiler that was stopped too early is not tried again for a day, or for
# ten minutes where more programs than that were running.
LIMIT = 600  # seconds
log = logging.getLogger(__name__)
_state = "no norm with gradients that it can record was called yet"
_thread: threading.Thread | None = None


def reason() -> str:
    """Why the extension is not in use; empty where it is."""
    return _state


def wait() -> bool:
    """Wait until the extension is in use or cannot be built, if it is being built. Return whether it is in use."""
    if _thread is not None:
        _thread.join()
    return not _state


def load_in_background(install: Callable[[Any], None]) -> None:
    """Build the extension, unless it was built before, and call ``install(module)``, in a thread."""
    global _state, _thread
    if os.environ.get("ROWNORM_NODE", "1") == "0":
        _state = "ROWNORM_NODE is 0"
        return
    thread = threading.Thread(
        target=_load, args=(install,), name="rownorm builds its node", daemon=True
    )
    _state = "it is being built"
    try:
        thread.start()
    except RuntimeError as error:  # no more threads, or Python is shutting down
        _state = str(error)
        return
    _thread = thread


def _load(install: Callable[[Any], None]) -> None:
    global _state
    try:
        install(build())
        _state = ""
    except Exception as error:  # any failure: Python and C can do the same
        _state = f"{type(error).__name__}: {error}"
        log.debug("norms are recorded in Python: %s", _state)


def build() -> Any:
    """Compile the extension, unless it was compiled before, and return it as a module; raises where that fails."""
    return extension.build(description())


def description() -> extension.Extension:
    """What is compiled, and how."""
    from triton.backends import nvidia  # imported here because a Triton for other GPUs may lack it

    here, torchs = Path(__file__).parent, Path(torch.__path__[0])
    include = torchs / "include"
    flags = [*c_definitions(), f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    libraries = [f"-L{torchs / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python"]
    if torch.version.cuda is not None:
        flags.append("-DWITH_CUDA")
        libraries.append("-ltorch_cuda")
    return extension.Extension(
        NAME,
        tuple(here / name for name in SOURCES),
        language="c++",
        include=(include, include / "torch/csrc/api/include", Path(nvidia.__path__[0], "include")),
        flags=tuple(flags),
        libraries=tuple(libraries),
        key=f"{torch.__version__} {torch.version.git_version} {__name__}",
        limit=LIMIT,
        background=True,
    )
