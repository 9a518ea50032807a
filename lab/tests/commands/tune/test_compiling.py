"""Compiling ahead, in processes."""

import json

import torch

from rownorm_lab.commands.tune import compiling
from rownorm_lab.commands.tune.compiling import Ahead
from rownorm_lab.commands.tune.study import TuningCase
from support.compiled import json_of

STUDY = TuningCase("forward", False, torch.bfloat16, 16)
_AHEAD = """
import json, os, torch
from rownorm_lab.commands.tune.candidates import candidates
from rownorm_lab.commands.tune import compiling
from rownorm_lab.commands.tune.compiling import Ahead
from rownorm_lab.commands.tune.study import TuningCase
from rownorm.launch.resources import TARGETS

if __name__ == "__main__":
    compiling.SHARE = 2
    study = TuningCase("forward", False, torch.bfloat16, 16)
    several = list(candidates(study, TARGETS["sm_90"].device))[:3]
    with Ahead(1, "sm_90") as ahead:
        ahead.begin(study, several)
        found = list(ahead(study, several))
    with Ahead(0, "sm_90") as here:
        same = list(here(study, several))
    print(json.dumps([len(several), found == same, [one.registers for one in found]]))
"""


def test_processes_find_the_same_in_the_same_order(triton_cache, tmp_path):
    script = tmp_path / "ahead.py"
    script.write_text(_AHEAD)
    n, same, registers = json_of([str(script)], triton_cache)
    assert same
    assert n == len(registers) == 3  # more than a share
    assert min(registers) > 0


def test_an_unknown_architecture_leaves_nothing_out():
    with Ahead(0, None) as ahead:
        assert list(ahead(STUDY, [{}, {}])) == [None, None]


def test_a_crashed_process_leaves_nothing_out(capsys):
    class Crashed:
        def result(self):
            raise compiling.BrokenProcessPool

    with Ahead(0, None) as ahead:
        ahead._begun[STUDY] = [Crashed()]
        assert ahead(STUDY, [{}, {}]) == [None, None]
    assert "crashed" in capsys.readouterr().err


def test_settings_have_one_key_whatever_their_order():
    from rownorm_lab.commands.tune.journal import key_of

    a = {"regime": "tile", "num_warps": 4}
    assert key_of(a) == key_of(dict(reversed(a.items())))
    assert json.loads(key_of(a)) == a
