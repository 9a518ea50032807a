"""The compiler: which one, one at a time, for a limited time, and what is remembered of it."""

import contextlib
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rownorm import extension
from rownorm.extension import compilers, entry
from rownorm.launch import native
from rownorm.ops import cpu_native
from support.fake_driver import needs_compiler

pytestmark = needs_compiler


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def runs(pid):
    """Whether a process runs; one that has ended but was not waited for does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# Which compiler


@pytest.mark.parametrize("words", ["env {real}", "'{folder}/my ccache' {real}"])
def test_a_command_of_several_words(words, dummy, monkeypatch, tmp_path, real_compiler):
    ccache = tmp_path / "my ccache"
    ccache.write_text('#!/bin/sh\nexec "$@"\n')
    ccache.chmod(0o755)
    monkeypatch.setenv("CC", words.format(real=real_compiler, folder=tmp_path))
    assert extension.build(dummy()).value == 41
    assert os.path.realpath(real_compiler) in extension.describe(dummy())[0]


def test_each_compiler_has_its_own_build(dummy, compiler, started, cache):
    compiler("compile", name="tcc")
    extension.build(dummy())
    compiler("compile", name="gcc")
    extension.build(dummy())
    assert started() == 2
    extension.build(dummy())
    assert started() == 2
    assert len(list((cache / "rownorm").glob("dummy_*"))) == 2


def test_each_version_of_a_compiler_has_its_own_build(dummy, compiler, started):
    script = compiler("compile")
    extension.build(dummy())
    script.write_text(script.read_text().replace("my compiler 1.0", "my compiler 1.1"))
    extension.build(dummy())
    assert started() == 1  # a process asks for the version once
    compilers.version.cache_clear()
    extension.build(dummy())
    assert started() == 2


def test_settings_have_their_own_build(dummy, compiler, started, source):
    compiler("compile")
    different = [
        dummy(),
        dummy(flags=("-O1",)),
        dummy(include=(source.parent,)),
        dummy(libraries=("-lm",)),
        dummy(key="torch 2.15"),
    ]
    for one in (*different, *different):
        extension.build(one)
    assert started() == len(different)
    source.write_text(source.read_text().replace("41", "42"))
    extension.build(dummy())
    assert started() == len(different) + 1


@pytest.mark.parametrize("setting", ["", "no-such-compiler"])
def test_without_a_compiler_a_build_of_any_is_used(setting, dummy, monkeypatch):
    which, script = shutil.which, os.environ["CC"]
    monkeypatch.setenv("CC", setting)
    monkeypatch.setattr("shutil.which", lambda name: None)
    expected = f"CC names {setting}, which is not found" if setting else "CC can name one"
    with pytest.raises(RuntimeError, match=expected):
        extension.build(dummy())
    with monkeypatch.context() as patched:
        patched.setattr("shutil.which", which)
        patched.setenv("CC", script)
        extension.build(dummy())
    assert extension.build(dummy()).value == 41
    first, second = extension.describe(dummy())
    assert expected in first
    assert second.endswith(": built")
    with pytest.raises(RuntimeError, match=expected):
        extension.build(dummy(key="another"))


def test_without_headers_of_python(dummy, monkeypatch, tmp_path):
    monkeypatch.setattr(
        extension.sysconfig, "get_paths", lambda *_: {"include": str(tmp_path / "none")}
    )
    with pytest.raises(RuntimeError, match=r"none/Python.h is missing"):
        extension.build(dummy())


def test_a_system_without_locks(process):
    """Windows."""
    code = """
for name in [name for name in sys.modules if name.startswith("extension")]:
    del sys.modules[name]
sys.modules["fcntl"] = None
del os.O_NOFOLLOW, os.O_NONBLOCK
import extension
print(extension.reason_against(), extension.describe(dummy()))
"""
    printed, _ = process(code).communicate()
    assert "this system has no POSIX permissions and locks" in printed
    assert printed.endswith("[]\n")


# Failures and time limits


def test_a_failure_is_remembered_for_a_day(dummy, compiler, started, cache, capfd):
    compiler("echo 'dummy.c:3: error: no such type' >&2", "echo half > built", "exit 1")
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"compiler failed: dummy.c:3: error: no such type; see .*failed.txt"
        ):
            extension.build(dummy())
    assert started() == 1
    assert capfd.readouterr() == ("", "")
    (failed,) = cache.rglob("failed.txt")
    text = failed.read_text()
    assert "-shared" in text  # the command
    assert text.endswith("dummy.c:3: error: no such type\n")
    assert {path.name for path in failed.parent.iterdir()} == {"lock", "failed.txt"}
    old = time.time() - entry.DAY - 1
    os.utime(failed, (old, old))
    compiler("compile")  # the same identity
    assert extension.build(dummy()).value == 41
    assert not failed.exists()


def test_the_first_call_waits_a_minute_at_most(dummy):
    """The extension in C++ has ten, in the background."""
    for one in (dummy(), cpu_native.description(), native.description()):
        assert one.limit == 60


def test_a_compiler_that_hangs(dummy, compiler, started, cache, tmp_path, capfd):
    child = tmp_path / "child"
    compiler("echo it prints this", "echo and that >&2", f"sleep 987 & echo $! > {child}", "wait")
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"compiler did not end within 0.5 s; see "):
            extension.build(dummy(limit=0.5))
    assert time.monotonic() - start < 5
    assert started() == 1
    wait_for(lambda: not runs(child.read_text().strip()))
    assert capfd.readouterr() == ("", "")
    (failed,) = cache.rglob("failed.txt")
    assert failed.read_text().endswith("it prints this\nand that\n")
    assert str(failed) in extension.describe(dummy(limit=0.5))[1]


BUSY = "100000.25 0.50 0.50 1/100 1234\n"


def age(file, seconds):
    """Make a file so many seconds old."""
    then = time.time() - seconds
    os.utime(file, (then, then))


def test_a_time_limit_on_a_busy_machine_is_remembered_for_ten_minutes(
    dummy, compiler, started, cache, tmp_path
):
    compiler("sleep 987")
    (tmp_path / "load").write_text(BUSY)
    why = f"did not end within 0.5 s, with a load of 100000 and {os.cpu_count()} cores; it is tried again after ten"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=why):
            extension.build(dummy(limit=0.5))
    assert started() == 1
    assert why in extension.describe(dummy(limit=0.5))[1]  # in ``rownorm info``
    (failed,) = cache.rglob("failed.txt")
    age(failed, entry.TEN_MINUTES + 1)
    assert extension.describe(dummy(limit=0.5))[1].endswith("not built yet")
    compiler("compile")  # the same identity
    assert extension.build(dummy()).value == 41


def test_the_load_is_that_of_the_time_when_the_limit_ended(
    dummy, compiler, started, process, tmp_path, cache
):
    """Another process finds it, when the machine is not busy any more."""
    compiler("sleep 987")
    (tmp_path / "load").write_text(BUSY)
    first = process("extension.build(dummy(limit=0.5))")
    wait_for(started)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    status = next(cache.rglob("build")) / "status"
    wait_for(status.exists)
    (tmp_path / "load").write_text("0.50 0.50 0.50 1/100 1234\n")
    with pytest.raises(RuntimeError, match="with a load of 100000"):
        extension.build(dummy(limit=0.5))
    assert started() == 1


@pytest.mark.parametrize("load", ["0.50 0.50", "", None])
def test_a_time_limit_on_another_machine_is_remembered_for_a_day(
    load, dummy, compiler, cache, tmp_path
):
    """One that is not busy, or does not say how busy it is."""
    compiler("sleep 987")
    file = tmp_path / "load"
    file.unlink() if load is None else file.write_text(load)
    with pytest.raises(RuntimeError, match=r"did not end within 0.3 s; see "):
        extension.build(dummy(limit=0.3))
    (failed,) = cache.rglob("failed.txt")
    age(failed, entry.DAY - 60)
    assert "did not end within" in extension.describe(dummy(limit=0.3))[1]


def test_a_failure_on_a_busy_machine_is_remembered_for_a_day(dummy, compiler, cache, tmp_path):
    compiler("echo 'dummy.c:3: error: no such type' >&2", "exit 1")
    (tmp_path / "load").write_text(BUSY)
    with pytest.raises(RuntimeError, match="compiler failed: "):
        extension.build(dummy())
    (failed,) = cache.rglob("failed.txt")
    age(failed, entry.DAY - 60)
    assert "compiler failed: " in extension.describe(dummy())[1]


def test_what_the_compiler_inherits(dummy, compiler, tmp_path):
    """No input, and not the lock: it may start a server that runs on. Its files are private."""
    compiler(f"ls -l /proc/$$/fd > {tmp_path}/files", f"umask > {tmp_path}/umask", "compile")
    extension.build(dummy())
    files = (tmp_path / "files").read_text()
    assert "0 -> /dev/null" in files
    assert "lock" not in files
    assert int((tmp_path / "umask").read_text(), 8) == 0o077


def test_a_compiler_that_hangs_when_asked_for_its_version(dummy, monkeypatch, tmp_path, capfd):
    script, child = tmp_path / "compiler", tmp_path / "child"
    script.write_text(f"#!/bin/sh\necho here\nsleep 987 & echo $! >> {child}\nwait\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setattr(compilers, "VERSION_LIMIT", 0.3)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"--version did not end within 0.3 s; see "):
            extension.build(dummy())
    (pid,) = child.read_text().split()
    wait_for(lambda: not runs(pid))
    assert capfd.readouterr() == ("", "")


def test_a_script_that_does_not_end_is_killed(dummy, compiler, monkeypatch):
    """The time limit is the script's. This process has one too."""
    compiler("sleep 987")
    monkeypatch.setattr(compilers, "GRACE", -99.5)
    with open(os.devnull) as nothing:
        monkeypatch.setattr(
            extension.Entry, "locked", lambda one, _: contextlib.nullcontext(nothing.fileno())
        )
        with pytest.raises(RuntimeError, match="did not end within 100 s; see"):
            extension.build(dummy(limit=100))


# One at a time


BUILD = "print(extension.build(dummy()).value)"


def test_eight_processes_start_one_compiler(compiler, started, process):
    compiler("sleep 0.5", "compile")
    processes = [process(BUILD) for _ in range(8)]
    assert [one.communicate()[0] for one in processes] == ["41\n"] * 8
    assert started() == 1


def test_threads_start_one_compiler(compiler, started, dummy):
    compiler("sleep 0.2", "compile")
    together = threading.Barrier(4)

    def build(_):
        together.wait()
        return extension.build(dummy()).value

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(4))) == [41] * 4
    assert started() == 1


@pytest.mark.parametrize("background", [True, False])
def test_the_compiler_goes_on_when_its_process_is_killed(
    background, compiler, started, process, dummy, tmp_path
):
    """And whoever reads the output of that process does not wait for the compiler."""
    compiler(f"until test -e {tmp_path}/go; do sleep 0.05; done", "compile")
    first = process(f"extension.build(dummy(background={background}))")
    wait_for(started)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = process(BUILD)
    time.sleep(0.2)
    assert second.poll() is None  # it waits for the compiler
    (tmp_path / "go").touch()
    assert second.communicate()[0] == "41\n"
    assert started() == 1
    assert not list(tmp_path.rglob("build"))


def test_the_time_limit_holds_without_the_process_that_started_it(
    compiler, started, process, dummy
):
    compiler("sleep 987")
    first = process("extension.build(dummy(limit=1))")
    wait_for(started)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    with pytest.raises(RuntimeError, match="compiler did not end within 1 s; see"):
        extension.build(dummy(limit=1))
    assert started() == 1


def test_half_written_results_of_a_process_that_ended_are_not_kept(dummy, compiler, started, cache):
    """As after a power failure: the compiler had ended, and its result was not yet on disk."""
    compiler("compile")
    kept = Path(extension.build(dummy()).__file__).parent
    for path in kept.iterdir():
        path.unlink()
    (kept / "build").mkdir()
    (kept / "build" / "built").write_bytes(bytes(10_000))
    (kept / "build" / "status").write_text(f"0 {'1' * 64}  -")
    assert extension.build(dummy()).value == 41
    assert started() == 2


def test_an_interrupt_stops_the_compiler(compiler, started, process, tmp_path, dummy):
    child = tmp_path / "child"
    compiler(f"echo $$ > {child}", "sleep 987")
    first = process(BUILD)
    wait_for(child.exists)
    wait_for(child.read_text)
    first.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in first.communicate()[0]
    wait_for(lambda: not runs(child.read_text().strip()))
    compiler("compile")  # the same identity; nothing was remembered
    assert extension.build(dummy()).value == 41


HOLD = """
base = extension.folders.find().path
words = extension.compilers.find("c")
with extension._entry(dummy(), base, extension._identity(base, words)).locked(1):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_waiting_for_the_lock_is_limited_and_remembered(dummy, process, monkeypatch):
    holder = process(HOLD, stdin=-1)
    assert holder.stdout.readline() == "locked\n"
    monkeypatch.setattr(compilers, "GRACE", 0.1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"another process .* building it for 0.3 s; see"):
            extension.build(dummy(limit=0.2))
    holder.kill()  # which releases the lock
    holder.communicate()
    base = extension.folders.find().path
    (failed,) = base.rglob("failed.txt")
    failed.unlink()
    assert extension.build(dummy()).value == 41


def test_a_forked_child_does_not_keep_the_lock(cache):
    kept = extension.Entry(cache / "rownorm" / "dummy_0_0")
    with kept.locked(1) as lock:
        copy = os.dup(lock)  # as a child has it
    with kept.locked(1):
        os.close(copy)


# What is not used any more


def test_builds_are_removed_after_a_month(dummy, compiler, cache, tmp_path):
    compiler("compile")
    first = Path(extension.build(dummy()).__file__).parent
    second = Path(extension.build(dummy(key="second")).__file__).parent
    used = Path(extension.build(dummy(key="used")).__file__).parent
    locked = Path(extension.build(dummy(key="locked")).__file__).parent
    base = cache / "rownorm"
    foreign = [base / "dummy", base / "mine_0123", cache / first.name, base / f"{first.name}.old"]
    for folder in foreign:
        folder.mkdir()
    link = base / f"link_{'0' * 16}_{'0' * 16}"
    link.symlink_to(tmp_path)
    old = time.time() - entry.MONTH - 60
    young = old + 3600
    for folder in (first, used, locked, *foreign):
        os.utime(folder, (old, old))
    os.utime(second, (young, young))
    extension.build(dummy(key="used"))  # a use, which starts no compiler, removes nothing
    assert first.exists()
    with extension.Entry(locked).locked(1):
        os.utime(locked, (old, old))
        extension.build(dummy(key="third"))
    assert not first.exists()
    assert all(folder.exists() for folder in (second, used, locked, link, *foreign))


def test_an_entry_that_was_removed_while_waiting_is_made_again(cache):
    kept = extension.Entry(cache / "rownorm" / "dummy_0_0")
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        stack.enter_context(kept.locked(1))

        def wait():
            with kept.locked(10):
                return kept._lock.exists()

        waiting = pool.submit(wait)
        time.sleep(0.1)
        shutil.rmtree(kept.folder)
        stack.close()
        assert waiting.result()
