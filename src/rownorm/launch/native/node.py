"""The extension in C++ (node.cpp), built in the background when a norm with gradients is first called.

Compiling it takes about half a minute, because it includes PyTorch's headers. Until it is ready, and where it cannot be
built, norms with gradients are recorded by ``ops.eager`` and its C. The result is kept beside the kernels that Triton
compiled. The compiler goes on when the process that started it ends, so that the next process finds what it built.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import shutil
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from triton import knobs

NAME = "rownorm_node"
SOURCES = ("prepared_call.h", "node.cpp")
LONGEST_BUILD = 600  # seconds; an older lock was left by a compiler that was killed
log = logging.getLogger(__name__)
_state = "no norm with gradients was called yet"
_finished = threading.Event()
_thread: threading.Thread | None = None


def reason() -> str:
    """Why the extension is not in use; empty where it is."""
    return _state


def wait() -> bool:
    """Wait until the extension is in use or cannot be built, if it is being built. Return whether it is in use."""
    if _thread is not None:
        _finished.wait()
    return not _state


def load_in_background(install: Callable[[Any], None]) -> None:
    """Call ``install(module)`` when the extension is ready: at once where it was built before, else from a thread."""
    global _state, _thread
    if os.environ.get("ROWNORM_NODE", "1") == "0":
        _state = "ROWNORM_NODE is 0"
        return
    _state = "it is being built"
    _thread = threading.Thread(
        target=_load, args=(install,), name="rownorm builds its node", daemon=True
    )
    _thread.start()


def _load(install: Callable[[Any], None]) -> None:
    global _state
    try:
        install(build())
        _state = ""
    except Exception as error:  # any failure: Python and C can do the same
        _state = f"{type(error).__name__}: {error}"
        log.debug("norms are recorded in Python: %s", _state)
    finally:
        _finished.set()


def build() -> Any:
    """Compile the extension, unless it was compiled before, and return it as a module; raises where that fails."""
    from triton.backends import nvidia  # imported here because a Triton for other GPUs may lack it

    here, torchs = Path(__file__).parent, Path(torch.__path__[0])
    include = (
        torchs / "include",
        torchs / "include/torch/csrc/api/include",
        Path(nvidia.__path__[0], "include"),
        sysconfig.get_paths()["include"],
    )
    flags = ["-std=c++20", "-O2", "-g0", "-fPIC", "-shared", *(f"-I{folder}" for folder in include)]
    libraries = [f"-L{torchs / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python"]
    if torch.version.cuda is not None:
        flags.append("-DWITH_CUDA")
        libraries.append("-ltorch_cuda")
    source = "".join(f'#line 1 "{name}"\n{(here / name).read_text()}' for name in SOURCES)
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    versions = (torch.__version__, str(torch.version.git_version), suffix)
    key = hashlib.sha256("\n".join((*versions, *flags, *libraries, source)).encode()).hexdigest()
    built = Path(knobs.cache.dir, f"{NAME}_{key[:32]}", f"{NAME}{suffix}")
    if not built.exists():
        _compile(source, built, flags, libraries)
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(built))
    spec = importlib.machinery.ModuleSpec(NAME, loader, origin=str(built))
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def compiler() -> str:
    """The C++ compiler."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and shutil.which(name):
            return name
    raise RuntimeError("there is no C++ compiler; CXX can name one")


# Its arguments: what is printed, the unfinished file, the built file, the lock, and then the compiler's command.
COMPILE = """
printed=$1 unfinished=$2 built=$3 lock=$4; shift 4
"$@" -o "$unfinished" > "$printed" 2>&1 && mv "$unfinished" "$built"
status=$?
rm -f "$unfinished" "$lock"
exit $status
"""


def _compile(source: str, built: Path, flags: Sequence[str], libraries: Sequence[str]) -> None:
    """Compile in another process, at low priority, which writes ``built`` whole or not at all.

    One process at a time compiles it: the others, for example the ranks of a training run, wait for that one.
    """
    command = compiler()
    built.parent.mkdir(parents=True, exist_ok=True)
    lock, printed, file = (built.with_suffix(end) for end in (".lock", ".txt", ".cpp"))
    began = time.monotonic()
    while not _take(lock):
        if built.exists():
            return
        if time.monotonic() - began > LONGEST_BUILD:
            raise TimeoutError(f"another process is compiling {built}")
        time.sleep(0.2)
    file.write_text(source)
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    paths = map(str, (printed, built.with_suffix(f".{os.getpid()}"), built, lock))
    script = [*nice, "sh", "-c", COMPILE, "sh", *paths, command, *flags, str(file), *libraries]
    if subprocess.run(script, start_new_session=True).returncode:
        first = next((one for one in printed.read_text().splitlines() if "error" in one), "")
        raise RuntimeError(f"{command} failed: {first}")


def _take(lock: Path) -> bool:
    """Create the lock; False where another process has it."""
    try:
        lock.touch(exist_ok=False)
    except FileExistsError:
        try:
            if time.time() - lock.stat().st_mtime > LONGEST_BUILD:
                lock.unlink()
        except FileNotFoundError:
            pass
        return False
    return True
