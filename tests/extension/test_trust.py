"""Nothing is loaded that another user could have written, or that is damaged."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from rownorm import extension
from rownorm.extension import folders
from support.fake_driver import needs_compiler

pytestmark = needs_compiler


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def library_of(module):
    return Path(module.__file__)


def replace(file, content):
    """As a new file: a library that is in use must not change."""
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.chmod(0o600)
    os.replace(new, file)


@pytest.fixture
def planted(dummy, cache, libraries, tmp_path, monkeypatch):
    """Triton's cache has a library that somebody else prepared. It creates this file when it is loaded."""
    name = extension.describe(dummy())[1].partition(":")[0]
    kept = extension.Entry(cache / "rownorm" / name)
    with kept.locked(1):
        kept.keep(libraries[1].read_bytes())
    marker = tmp_path / "it ran"
    monkeypatch.setenv("IT_RAN", str(marker))
    return marker


def test_the_planted_library_would_be_loaded_from_a_private_folder(process, planted):
    """Otherwise the tests below would show nothing."""
    assert process("print(extension.build(dummy()).value)").communicate()[0] == "41\n"
    assert planted.exists()


@pytest.mark.parametrize("of", ["cache", "cache/rownorm"])
@pytest.mark.parametrize("who", [0o020, 0o002])
def test_not_from_a_folder_that_others_can_write(of, who, dummy, planted, cache, tmp_path):
    folder = cache if of == "cache" else cache / "rownorm"
    folder.chmod(0o700 | who)
    module = extension.build(dummy())
    assert module.value == 41
    assert library_of(module).is_relative_to(tmp_path / "xdg" / "rownorm")
    assert not planted.exists()
    assert folders.find().refused == (f"{folder} can be written by its group or by others",)


@pytest.mark.parametrize("of", ["", "rownorm"])
def test_not_from_a_folder_of_another_user(of, dummy, planted, cache, tmp_path, other_user):
    os.chown(cache / of, other_user, other_user)
    module = extension.build(dummy())
    assert library_of(module).is_relative_to(tmp_path / "xdg")
    assert not planted.exists()
    (why,) = folders.find().refused
    assert why == f"{cache / of} belongs to another user ({other_user})".replace("/ ", " ")


@pytest.mark.parametrize("what", ["library", "sha256"])
@pytest.mark.parametrize("how", ["owner", "mode", "symbolic link", "pipe"])
def test_a_file_of_another_is_replaced(what, how, dummy, planted, cache, request, tmp_path):
    (folder,) = (cache / "rownorm").glob("dummy_*")
    (file,) = folder.glob("*.so" if what == "library" else "sha256")
    if how == "owner":
        os.chown(file, request.getfixturevalue("other_user"), -1)
    elif how == "mode":
        file.chmod(0o620)
    elif how == "symbolic link":
        file.rename(tmp_path / "target")
        file.symlink_to(tmp_path / "target")
    else:
        file.unlink()
        os.mkfifo(file)
    assert extension.build(dummy()).value == 41
    assert not planted.exists()
    assert not file.is_symlink()
    assert mode(file) == 0o600


def test_the_whole_path_is_checked(tmp_path, other_user):
    """As OpenSSH does: whoever can write a folder above can replace everything below."""
    above = tmp_path / "above"
    folder = above / "below"
    folder.mkdir(parents=True)
    assert folders.usable(folder) == folder
    above.chmod(0o770)
    with pytest.raises(folders.Refused, match="above can be written by its group or by others"):
        folders.usable(folder)
    assert not (folder / "new").exists()
    above.chmod(0o1777)  # the sticky bit: nobody can rename what belongs to somebody else
    assert folders.usable(folder) == folder
    os.chown(above, other_user, -1)
    with pytest.raises(folders.Refused, match="above belongs to another user"):
        folders.usable(folder)


def test_a_relative_path_is_refused(dummy, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", "~/.triton/cache")
    found = folders.find()
    assert found.path == tmp_path / "xdg" / "rownorm"
    assert found.refused == ("~/.triton/cache/rownorm is not an absolute path",)
    assert not (tmp_path / "~").exists()


WITHOUT_A_HOME = """
import pwd, tempfile
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
os.chdir(sys.argv[3])
found = extension.folders.find()
print(found.path, oct(os.stat(found.path).st_mode), os.stat(found.path).st_uid, len(found.refused))
"""


def test_a_user_without_a_home_has_a_private_folder(process, other_user):
    """``~`` stays ``~`` for a user without HOME and without an entry in the list of users."""
    with tempfile.TemporaryDirectory(dir="/tmp") as everyone:
        os.chmod(everyone, 0o1777)
        names = ("HOME", "TRITON_CACHE_DIR", "TRITON_HOME", "XDG_CACHE_HOME")
        variables = {name: value for name, value in os.environ.items() if name not in names}
        started = process(WITHOUT_A_HOME, everyone, env=variables | {"TMPDIR": everyone})
        printed, _ = started.communicate()
        assert printed.split() == [f"{everyone}/rownorm-{other_user}", "0o40700", "12345", "2"]
        assert os.listdir(everyone) == [f"rownorm-{other_user}"]


@pytest.mark.parametrize("how", ["owner", "mode", "symbolic link"])
def test_a_taken_name_among_temporary_files(how, dummy, monkeypatch, tmp_path, request):
    """Then the folder is a new one, of this process."""
    for name in ("TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "relative")
    taken = tmp_path / "temporary" / f"rownorm-{os.geteuid()}"
    taken.mkdir()
    if how == "owner":
        os.chown(taken, request.getfixturevalue("other_user"), -1)
    elif how == "mode":
        taken.chmod(0o777)
    else:
        taken.rmdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere").chmod(0o777)
        taken.symlink_to(tmp_path / "elsewhere")
    found = folders.find()
    assert found.path.parent == taken.parent
    assert found.path != taken
    assert mode(found.path) == 0o700
    assert len(found.refused) == 3
    assert folders.find() == found
    assert extension.build(dummy()).value == 41


def test_no_folder_at_all(dummy, monkeypatch, tmp_path):
    for name in ("TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "relative")
    (tmp_path / "temporary").chmod(0o777)  # without the sticky bit
    with pytest.raises(RuntimeError, match=r"no private folder .*TRITON_CACHE_DIR can name one"):
        extension.build(dummy())
    assert extension.describe_folder()[0].startswith("there is no private folder")


def test_a_folder_without_locks_is_not_used(monkeypatch, tmp_path):
    def flock(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(folders.fcntl, "flock", flock)
    with pytest.raises(folders.Refused, match="cannot be locked"):
        folders.usable(tmp_path / "new")


@pytest.mark.parametrize("umask", [0, 0o777])
@pytest.mark.usefixtures("real_compiler")
def test_all_is_private_whatever_the_umask(umask, process, cache):
    code = f"os.umask({umask}); print(extension.build(dummy()).value)"
    printed, _ = process(code).communicate()
    assert printed == "41\n"
    made = [cache, *cache.rglob("*")]
    assert {path.name for path in made} >= {"triton", "rownorm", "lock", "sha256"}
    assert {mode(path) for path in made if path.is_dir()} == {0o700}
    assert {mode(path) for path in made if path.is_file()} == {0o600}


def test_umask_for_another_user(process, other_user):
    """Root may read files without permissions; this user may not."""
    code = """
os.umask(0o777)
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
base = extension.folders.find().path
kept = extension.entry_of(base, "dummy", "", "")
with kept.locked(1):
    kept.keep(b"library")
    kept.remember("why")
print(kept.reason_against(), kept.failure().partition(";")[0])
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as everyone:
        os.chmod(everyone, 0o1777)
        variables = os.environ | {"TRITON_CACHE_DIR": f"{everyone}/cache"}
        printed, _ = process(code, env=variables).communicate()
        assert printed == " why\n"


@pytest.mark.parametrize(
    "damage", ["truncated", "empty", "flipped byte", "no digest", "wrong digest"]
)
def test_a_damaged_library_is_built_again(damage, dummy, process):
    """Loading a truncated one would kill the process."""
    library = library_of(extension.build(dummy()))
    whole = library.read_bytes()
    if damage == "truncated":
        replace(library, whole[: len(whole) // 2])
    elif damage == "empty":
        replace(library, b"")
    elif damage == "flipped byte":
        middle = len(whole) // 2
        replace(library, whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    elif damage == "no digest":
        library.with_name("sha256").unlink()
    else:
        replace(library.with_name("sha256"), b"0" * 64)
    started = process("print(extension.build(dummy()).value)")
    assert started.communicate()[0] == "41\n"
    assert started.returncode == 0
    assert library.read_bytes() == whole
    assert extension.describe(dummy())[1].endswith(": built")


def test_what_cannot_be_loaded_is_built_again_once(dummy, compiler, started):
    """For example one that was built beside other libraries. Its digest fits."""
    compiler("echo no library > built")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"compiler built what cannot be loaded: .*; see"):
            extension.build(dummy())
    assert started() == 1


def test_a_write_that_fails_leaves_the_old_file(dummy, monkeypatch):
    library = library_of(extension.build(dummy()))
    before = library.read_bytes()

    def fsync(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space"):
        extension.Entry(library.parent).keep(b"new")
    assert library.read_bytes() == before
    names = {path.name for path in library.parent.iterdir()}
    assert names == {"lock", "sha256", library.name}


def test_nothing_is_left_for_others_to_inherit(dummy, cache):
    """The lock is closed when a program is started."""
    entry = extension.Entry(cache / "rownorm" / "dummy_0_0")
    with entry.locked(1) as lock:
        assert not os.get_inheritable(lock)
        ran = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True)
        assert "lock" not in ran.stdout
