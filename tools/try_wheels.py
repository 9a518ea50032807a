"""Install each built wheel in a fresh environment and use it: the last step of ``make release``.

    python tools/try_wheels.py dist

Dependencies are installed from a package index as a user's are, so that a missing one is noticed; constraints/ has
their versions. torch and triton, and what torch requires, are not downloaded: the fresh environment has links to those
of the Python that runs this script.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

LIBRARY = """
import torch, rownorm
x, weight = torch.randn(3, 100), torch.randn(100)
expected = torch.nn.functional.rms_norm(x, (100,), weight, 1e-6)
torch.testing.assert_close(rownorm.rms_norm(x, weight), expected)
print("used", rownorm.__file__)
"""
# Wheels to install, and commands of the fresh environment that must succeed.
TRIALS = (
    (("rownorm",), (("python", "-I", "-c", LIBRARY),)),
    (
        ("rownorm", "rownorm_lab"),
        (
            ("python", "-I", "-c", LIBRARY),
            ("rownorm", "--version"),
            ("rownorm", "learn", "list"),
            ("rownorm", "check", "--quick"),
        ),
    ),
)


def run(*command: str | Path, cwd: Path) -> None:
    """Run a command; its output is shown if it fails."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    ran = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    shown = " ".join(str(part) for part in command if "\n" not in str(part))
    if ran.returncode:
        raise SystemExit(f"{shown}: exit status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    print(f"passed: {shown}")


def with_requirements(*names: str) -> Iterator[metadata.Distribution]:
    """The installed distributions of these names, and what they require, without extras."""
    waiting, seen = list(names), set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform; pip would install what is missing
        waiting += [
            re.match(r"[\w.-]+", one)[0] for one in found.requires or () if "extra ==" not in one
        ]
        yield found


def link_torch(packages: Path) -> None:
    """torch and triton in another environment's site-packages, as links, with the metadata that pip reads."""
    for distribution in with_requirements("torch", "triton"):
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            source = Path(str(distribution.locate_file(name)))
            if source.exists() and not (packages / name).exists():
                (packages / name).symlink_to(source)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    dist = Path(sys.argv[1]).resolve()
    for wheels, commands in TRIALS:
        files = [one for name in wheels for one in dist.glob(f"{name}-[0-9]*.whl")]
        if len(files) != len(wheels):
            raise SystemExit(
                f"{dist} must have one wheel each of {', '.join(wheels)}; found {files}"
            )
        with tempfile.TemporaryDirectory() as folder:
            fresh = Path(folder) / "venv"
            venv.create(fresh, with_pip=True)
            (packages,) = fresh.glob("lib/python*/site-packages")
            link_torch(packages)
            print(f"== {', '.join(one.name for one in files)}")
            # -I keeps this folder out of Python's path; pip runs in it because PIP_CONSTRAINT may be relative.
            pip = (fresh / "bin" / "python", "-I", "-m", "pip")
            run(*pip, "install", *files, cwd=Path.cwd())
            run(*pip, "check", cwd=Path.cwd())
            for program, *arguments in commands:
                run(fresh / "bin" / program, *arguments, cwd=Path(folder))


if __name__ == "__main__":
    main()
