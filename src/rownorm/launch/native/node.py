"""The extension in C++ (node.cpp), built in the background when a norm with gradients is first called.

Compiling it takes about half a minute, because it includes PyTorch's headers. Until it is ready, and where it cannot be
built, norms with gradients are recorded by ``ops.eager`` and its C. The result is kept beside the kernels that Triton
compiled. The compiler goes on when the process that started it ends, so that the next process finds what it built.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from ... import extension

NAME = "rownorm_node"
SOURCES = ("prepared_call.h", "node.cpp")
DAY = 24 * 3600  # seconds
log = logging.getLogger(__name__)
_state = "no norm with gradients was called yet"
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
    from triton.backends import nvidia  # imported here because a Triton for other GPUs may lack it

    here, torchs = Path(__file__).parent, Path(torch.__path__[0])
    include = (
        torchs / "include",
        torchs / "include/torch/csrc/api/include",
        Path(nvidia.__path__[0], "include"),
        extension.python_headers(),
    )
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    flags = ["-std=c++20", "-O2", "-g0", "-fPIC", "-shared", abi]
    flags += [f"-I{folder}" for folder in include]
    libraries = [f"-L{torchs / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python"]
    if torch.version.cuda is not None:
        flags.append("-DWITH_CUDA")
        libraries.append("-ltorch_cuda")
    source = extension.joined([here / name for name in SOURCES])
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    versions = (torch.__version__, str(torch.version.git_version), suffix, *platform.libc_ver())
    key = hashlib.sha256("\n".join((*versions, *flags, *libraries, source)).encode()).hexdigest()
    built = Path(knobs.cache.dir, f"{NAME}_{key[:32]}", f"{NAME}{suffix}")
    if built.exists():
        try:
            return _import(built)
        except ImportError:  # it was built beside other libraries
            built.unlink(missing_ok=True)
    _compile(source, built, flags, libraries)
    return _import(built)


def _import(file: Path) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(file))
    spec = importlib.machinery.ModuleSpec(NAME, loader, origin=str(file))
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def compiler() -> str:
    """The C++ compiler."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and shutil.which(name):
            return name
    raise RuntimeError("there is no C++ compiler; CXX can name one")


# Its arguments: a folder, the built file, a file for what a failing compiler prints, and the compiler's command.
COMPILE = """
folder=$1 built=$2 failed=$3; shift 3
"$@" -o "$folder/built" > "$folder/printed" 2>&1 && mv "$folder/built" "$built"
status=$?
test $status = 0 || mv "$folder/printed" "$failed"
rm -rf "$folder"
exit $status
"""


def _compile(source: str, built: Path, flags: Sequence[str], libraries: Sequence[str]) -> None:
    """Compile in another process, at low priority, which writes ``built`` whole or not at all.

    One process at a time compiles it: the others, for example the ranks of a training run, wait for that one. What a
    compiler failed at is not tried again with that compiler on the same day.
    """
    command = compiler()
    built.parent.mkdir(parents=True, exist_ok=True)
    failed = built.with_name(f"failed_{Path(command).name}.txt")
    with built.with_name("lock").open("w") as lock:
        # The compiler's process inherits the lock. It is released when that process and this one have ended.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if built.exists():
            return
        if not _is_recent(failed):
            for left in built.parent.glob("build_*"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix="build_", dir=built.parent))
            (folder / "node.cpp").write_text(source)
            nice = ["nice", "-n", "10"] if shutil.which("nice") else []
            script = [*nice, "sh", "-c", COMPILE, "sh", str(folder), str(built), str(failed)]
            subprocess.run(
                [*script, command, *flags, str(folder / "node.cpp"), *libraries],
                start_new_session=True,
                pass_fds=(lock.fileno(),),
                # Whoever reads the output of this process does not have to wait for the compiler.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        if not built.exists():
            raise RuntimeError(f"{command} failed{_first_error(failed)}; see {failed}")


def _is_recent(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime < DAY
    except FileNotFoundError:
        return False


def _first_error(printed: Path) -> str:
    lines = printed.read_text().splitlines() if printed.exists() else []
    return next((f": {line}" for line in lines if "error" in line), "")
