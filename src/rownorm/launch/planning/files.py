"""Where tuned tables come from. For a problem, the first of these that has an entry gives the plan:

    1. the user's own table: ``<arch>.json`` in the folder that ``ROWNORM_TABLES`` names; without that variable in
       ``$XDG_CONFIG_HOME/rownorm/tables``, which usually is ``~/.config/rownorm/tables``
    2. the table that rownorm ships for the architecture
    3. the rules in ``planning/``

An entry of a user's table replaces the shipped one for the same problems and the same ``max_cols``; the other shipped
entries stay. A user's table that cannot be read, or that is for another architecture, is ignored as a whole, with a
warning. With ``ROWNORM_TABLES`` set to nothing, no user's table is read. A process reads a table once.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from pathlib import Path

from ..triton_version import INSTALLED_VERSION
from .table import Source, Table, parse

VARIABLE = "ROWNORM_TABLES"
TABLES = Path(__file__).parent / "tables"


@functools.cache
def table_of(arch: str) -> Table | None:
    """The entries of an architecture, read and checked once; None if it has none."""
    try:
        own = own_source(arch)
    except ValueError as error:
        warnings.warn(
            f"rownorm ignores a table: {error}. Repair it, or remove it, or set {VARIABLE}= to use none.",
            RuntimeWarning,
            stacklevel=2,
        )
        own = None
    sources = [source for source in (own, shipped_source(arch)) if source]
    return Table(*sources) if sources else None


def own_file(arch: str) -> Path | None:
    """Where the user's table is looked for; None if no folder is."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        folder = os.path.join(home, "rownorm", "tables")
    return Path(folder) / f"{arch}.json" if folder else None


def own_source(arch: str) -> Source | None:
    """The user's table; None if there is none. ValueError if it cannot be used."""
    file = own_file(arch)
    if file is None:
        return None
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file}: is not JSON: {error}") from None
    return parse(content, str(file), arch, str(file))


def shipped_file(arch: str) -> Path | None:
    """The table of the package for an architecture (``sm_90``); None if there is none."""
    file = TABLES / f"{arch}.json"
    return file if file.is_file() else None


def shipped_source(arch: str) -> Source | None:
    """The table of the package; None if there is none."""
    file = shipped_file(arch)
    return None if file is None else parse(json.loads(file.read_text()), file.name, arch)


def shipped_archs() -> list[str]:
    """The architectures that the package has a table for."""
    return sorted(file.stem for file in TABLES.glob("*.json"))


def measured_with(arch: str) -> str:
    """The versions of Triton that the tables of an architecture were measured with; empty where there is no table."""
    table = table_of(arch)
    return " and ".join(dict.fromkeys(one.triton for one in table.sources)) if table else ""


def compiled_by(arch: str) -> str:
    """The Triton that compiles kernels here, and the one that the plans for an architecture were measured with."""
    here = f"{INSTALLED_VERSION} compiles the kernels" if INSTALLED_VERSION else "is not installed"
    measured = measured_with(arch)
    return f"{here}; " + (
        f"the table was measured with {measured}" if measured else "nothing was measured"
    )


def precedence(arch: str) -> str:
    """The places that a plan for this architecture can come from, the first one first, in words."""
    table = table_of(arch)
    return ", then ".join([*map(str, table.sources if table else ()), "rules"])
