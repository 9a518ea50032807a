"""``python -m rownorm_lab.fib.start DATASET OPTIONS SCRIPT ARGUMENTS``: run a program with Solutions applied.

``rownorm fib apply`` starts it. OPTIONS is the JSON object of keywords for ``enable``.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback

_RUNPY = (runpy.__file__, "<frozen runpy>")


def main() -> None:
    """Enable apply, then run the script, or ``-m module``, as Python would."""
    _, folder, options, *program = sys.argv
    from . import enable

    enable(folder, **json.loads(options))
    try:
        _run(program)
    except Exception as error:  # the program's own: without the lines that started it
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, *_RUNPY):
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        sys.exit(1)


def _run(program: list[str]) -> None:
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path[0] = ""
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = program
    sys.path[0] = program[0].rpartition("/")[0]
    runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
