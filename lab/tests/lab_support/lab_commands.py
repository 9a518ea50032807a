"""Calling the lab's commands, and run folders with made-up records."""

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from rownorm_lab.data.case import Case
from rownorm_lab.data.records import Environment, Method, Record, Writer
from rownorm_lab.main import cli

METHOD = Method(timer="cpu_clock", rotation=2, calls=4, rounds=5, cold=False)
TINY = ("--op", "rms_norm", "--dtype", "fp32", "--shape", "2x8,16", "--rounds", "3")
TWO_PROVIDERS = ("--provider", "rownorm,torch")


def invoke(*arguments):
    """Run ``rownorm`` with these arguments in this process."""
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def without_torch(*arguments):
    """Run ``rownorm`` with these arguments in a new process in which torch and Triton cannot be imported."""
    program = "import sys; sys.modules['torch'] = sys.modules['triton'] = None; import rownorm_lab.main as r; r.main()"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def refused(*arguments):
    """The message of a command that must exit with 2 and write nothing."""
    ran = invoke(*arguments)
    assert ran.exit_code == 2, ran.output
    assert os.listdir() == []
    return ran.output


def small_record(cols=8, device="A CPU", provider="rownorm", slower=1.0, **fields):
    """A record of 2 fp32 rows on a made-up CPU."""
    values = {
        "case": Case(operation="rms_norm", rows=2, cols=cols, dtype="fp32"),
        "method": METHOD,
        "seconds": [slower * 1e-5 * (1 + i / 1000) for i in range(5)],
        "run": "one",
        "environment": Environment(device=device, kind="cpu"),
    }
    return Record(provider=provider, **(values | fields))


def write_run(folder, *records):
    """A run folder with these records."""
    path = Path(folder)
    path.mkdir()
    with Writer(path / "records.jsonl") as writer:
        for one in records:
            writer.write(one)
    return path
