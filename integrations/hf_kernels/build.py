"""Build the library as a kernel that Hugging Face's package ``kernels`` loads from a folder.

    python integrations/hf_kernels/build.py [--out FOLDER]

It needs Python alone, and writes below FOLDER, by default the folder of this file:

    build/torch-universal/metadata.json        name, unique id, digests of the files
    build/torch-universal/__init__.py          for kernels of today
    build/torch-universal/rownorm/             the package; older versions of kernels import it by name
        _ops.py                                the namespace of the operators, which is the id
        library/                               the files of src/rownorm
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parents[1] / "src" / "rownorm"

OPS = '''"""The namespace of the operators of this build."""

import torch

NAMESPACE = "{id}"
ops = getattr(torch.ops, NAMESPACE)


def add_op_namespace_prefix(op_name: str) -> str:
    """The full name of an operator."""
    return f"{{NAMESPACE}}::{{op_name}}"
'''
OPS_OF_LIBRARY = '''"""The namespace of the operators: that of the package around the library."""

from .._ops import NAMESPACE, add_op_namespace_prefix, ops

__all__ = ["NAMESPACE", "add_op_namespace_prefix", "ops"]
'''
INIT = '''"""The package ``{name}``, where versions of kernels look for it that import a build by its folder."""

from .{name} import *
from .{name} import __all__ as __all__
'''


def build(out: Path) -> Path:
    """Write the build below ``out`` and return its folder. An earlier build there is replaced."""
    settings = tomllib.loads((HERE / "build.toml").read_text())
    general, suffixes = settings["general"], settings["torch-noarch"]["pyext"]
    name = general["name"]
    files = _sources(HERE / "torch-ext" / name, Path(name), suffixes)
    files |= _sources(LIBRARY, Path(name, "library"), suffixes)
    files[f"{name}/library/_ops.py"] = OPS_OF_LIBRARY.encode()
    files["__init__.py"] = INIT.format(name=name).encode()
    everything = b"".join(path.encode() + b"\0" + files[path] + b"\0" for path in sorted(files))
    id = f"_{name}_{hashlib.sha256(everything).hexdigest()[:12]}"
    files[f"{name}/_ops.py"] = OPS.format(id=id).encode()
    digests = {path: hashlib.sha256(files[path]).digest() for path in sorted(files)}
    metadata = {
        "name": name,
        "id": id,
        "version": general["version"],
        "license": general["license"],
        "python-depends": [],
        "backend": {
            "type": "cpu"
        },  # there is no name for all of them; loading does not depend on it
        "digest": {
            "algorithm": "sha256",
            "files": {path: base64.b64encode(one).decode() for path, one in digests.items()},
        },
    }
    folder = out / "build" / "torch-universal"
    shutil.rmtree(folder, ignore_errors=True)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    return folder


def _sources(folder: Path, to: Path, suffixes: list[str]) -> dict[str, bytes]:
    """The files of a folder that are part of the build, by their path in it."""
    found = (file for suffix in suffixes for file in folder.rglob(f"*.{suffix}"))
    return {(to / file.relative_to(folder)).as_posix(): file.read_bytes() for file in found}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build rownorm for Hugging Face kernels.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write build/ to")
    out = parser.parse_args().out.resolve()
    print(
        f"wrote {build(out)}\nIts layers: {out}:RMSNorm, or :RMSNormGated, :RMSNormZeroCentered, :LayerNorm"
    )


if __name__ == "__main__":
    main()
