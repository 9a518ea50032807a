"""The compiler: which one, which version, and how it is run."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Language = Literal["c", "c++"]
# The variable that names the compiler, and the compilers that are looked for without it.
_KNOWN = {"c": ("CC", ("gcc", "clang", "cc")), "c++": ("CXX", ("g++", "clang++", "c++"))}
VERSION_LIMIT = 30  # seconds; it takes milliseconds, on a machine that swaps more
GRACE = 10  # seconds that the script may take beyond the compiler's time limit
LOAD = "/proc/loadavg"  # its first word is how many processes wanted to run in the last minute


class NoCompiler(RuntimeError):
    """There is no compiler."""


def find(language: Language) -> tuple[str, ...]:
    """The words of the compiler's command, the first with its path; ``CC="ccache gcc"`` has two."""
    variable, names = _KNOWN[language]
    chosen = shlex.split(os.environ.get(variable, ""))
    for first, *more in [chosen] if chosen else [[name] for name in names]:
        if (path := shutil.which(first)) is not None:
            # Symbolic links stay: a compiler cache may be called by the compiler's name.
            return (os.path.abspath(path), *more)
    if chosen:
        raise NoCompiler(f"{variable} names {chosen[0]}, which is not found")
    raise NoCompiler(f"there is no compiler for {language.upper()}; {variable} can name one")


def paths(words: Sequence[str]) -> str:
    """The command with the files that it names, without symbolic links."""
    found = ((word, shutil.which(word)) for word in words)
    return shlex.join(word if path is None else os.path.realpath(path) for word, path in found)


@functools.cache
def version(words: tuple[str, ...]) -> str:
    """What the compiler says about itself; TimeoutError where it does not end."""
    process = subprocess.Popen(
        [*words, "--version"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"LC_ALL": "C"},
    )
    with process:
        try:
            said, _ = process.communicate(timeout=VERSION_LIMIT)
        except BaseException as error:
            _kill(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            command = shlex.join((*words, "--version"))
            raise TimeoutError(f"{command} did not end within {VERSION_LIMIT:g} s") from None
    return said.decode(errors="replace")


def load() -> str:
    """The load of this machine, as Linux writes it; empty where it is not known."""
    try:
        return Path(LOAD).read_text().split()[0]
    except (OSError, IndexError):
        return ""


# Its arguments: a folder, the time limit in seconds, LOAD, and the compiler's command. Its standard input is the lock:
# the lock is held while this script runs, and what the compiler starts (the server of a compiler cache, say) does not
# have it. Where the process that started this script has ended, the next one that has the lock reads ``status``: the
# compiler's exit status and the digest of what it wrote, or "timeout" and the load. The last line also ends the sleep.
_SCRIPT = """
umask 077
cd "$1" || exit
limit=$2
load=$3
shift 3
(sleep "$limit" && { echo timeout $(cut -d " " -f 1 "$load") > status; kill -KILL 0; }) < /dev/null > /dev/null 2>&1 &
"$@" < /dev/null > printed 2>&1
status=$?
echo "$status $(sha256sum < built)" > status
kill -KILL 0
"""


def run(
    folder: Path, words: Sequence[str], arguments: Sequence[str], limit: float, lock: int, low: bool
) -> None:
    """Run the compiler in ``folder``, in a session of its own, which goes on when this process ends.

    It writes ``built``, and the script writes ``printed`` and ``status``. low: at low priority.
    """
    nice = ["nice", "-n", "10"] if low and shutil.which("nice") else []
    process = subprocess.Popen(
        [*nice, "sh", "-c", _SCRIPT, "sh", str(folder), f"{limit:g}", LOAD, *words, *arguments],
        start_new_session=True,
        stdin=lock,
        # The compiler does not inherit this process's output: a reader of that output need not wait for the compiler.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # The compiler's temporary files are removed with the folder; its messages are in English.
        env=os.environ | {"TMPDIR": str(folder), "LC_ALL": "C"},
    )
    try:
        process.wait(limit + GRACE)
    except subprocess.TimeoutExpired:  # the script could not end the compiler
        _kill(process)
        raise TimeoutError(f"{words[0]} did not end within {limit:g} s") from None
    except BaseException:  # for example KeyboardInterrupt
        _kill(process)
        raise


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
