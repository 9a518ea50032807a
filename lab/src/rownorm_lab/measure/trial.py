"""Try a provider with one small call: a package that can be imported may still lack a part that it needs to run.

``python -m rownorm_lab.measure.trial NAME`` tries a provider in a process of its own and prints why it failed.
"""

from __future__ import annotations

import subprocess
import sys

import torch

from ..data.case import Case
from ..providers import Provider, all_providers, as_tuple, data, import_failure
from .bench import in_one_line

# No suite has this width, so that what an autotuner chooses for it affects no measurement.
COLUMNS = 192
LIMIT_S = 60


def trial_case(provider: Provider) -> Case:
    """A small case that the provider offers: a training step if it has a backward pass."""
    return Case(
        operation=provider.operations[0],  # type: ignore[arg-type]
        direction="both" if "both" in provider.directions else "forward",
        dtype="bf16" if "bf16" in provider.dtypes else provider.dtypes[0],  # type: ignore[arg-type]
        rows=8,
        cols=COLUMNS,
    )


def failure(provider: Provider) -> str | None:
    """Run the small case here. Why it failed, in one line; None if it ran."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = trial_case(provider)
    try:
        as_tuple(provider.prepare(case, data.rotation(case, 1, device)[0])())
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except ImportError as error:
        return import_failure(error)
    except Exception as error:  # a Refusal too: the provider declares this case
        return f"a small call failed: {in_one_line(error)}"
    return None


def failure_in_a_process(name: str, limit_s: float = LIMIT_S) -> str | None:
    """The same in a process of its own, which is ended after ``limit_s`` seconds."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, name],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a small call did not end within {limit_s:g} s"
    if done.returncode == 0:
        return None
    printed = done.stdout.strip().splitlines()
    return printed[-1] if printed else f"its process ended with status {done.returncode}"


def main() -> None:
    """Try the provider that the first argument names; exit status 1 and the reason if it fails."""
    why = failure(all_providers()[sys.argv[1]])
    if why is not None:
        print(why)
        sys.exit(1)


if __name__ == "__main__":
    main()
