"""``rownorm profile --compare``, the tree of scopes in every form of a profile, and the date of ``--read``."""

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from lab_support.lab_commands import invoke, refused
from rownorm_lab.data.profile_tables import scope_tables
from rownorm_lab.data.profiles import ScopeTime, read_profile, write_profile
from rownorm_lab.data.studies import KernelTime
from rownorm_lab.profilers import proton

pytestmark = pytest.mark.usefixtures("command_line")
CAPTURED = Path(__file__).parent / "captured" / "h200"
TREE = [
    ScopeTime(path=["layer"], calls=3.0, seconds=4e-6, is_kernel=False),
    ScopeTime(path=["layer", "norm"], calls=1.0, seconds=3e-6, is_kernel=False),
    ScopeTime(path=["layer", "norm", "void f<int>(x)"], calls=1.0, seconds=3e-6, is_kernel=True),
]


@pytest.fixture
def captured(tmp_path):
    """Two folders: the captured profile, and one in which a kernel takes twice as long."""
    shutil.copytree(CAPTURED, tmp_path / "a")
    profile = read_profile(CAPTURED)
    slower = [
        KernelTime(one.name, one.calls, one.seconds * (1 + (i == 0)), one.is_norm)
        for i, one in enumerate(profile.kernels["rownorm"])
    ]
    changed = msgspec.structs.replace(
        profile,
        kernels=profile.kernels | {"rownorm": slower},
        scopes={"rownorm": TREE},
        environment=msgspec.structs.replace(profile.environment, triton="9.9"),
    )
    (tmp_path / "b").mkdir()
    write_profile(tmp_path / "b", changed)
    return profile, changed


def test_what_changed_between_two_profiles(captured):
    profile, _ = captured
    ran = invoke("profile", "--compare", "a", "b")
    assert ran.exit_code == 0, ran.output
    assert "Note: another triton: " in ran.output
    (line,) = [line for line in ran.output.splitlines() if line.endswith("  2")]
    assert profile.kernels["rownorm"][0].name[:20] in line
    assert "layer > norm" in ran.output
    assert "The largest change: " in ran.output
    assert re.search(r"torch: layer_norm_grad_input_k\w+ +time ", ran.output)
    found = json.loads(invoke("profile", "--compare", "a", "b", "--json").stdout)
    assert {one["what"] for one in found} == {"figure", "kernel", "scope"}
    kernels = [one for one in found if one["what"] == "kernel"]
    assert kernels[0]["after"] == pytest.approx(2 * kernels[0]["before"])
    assert all(one["after"] == one["before"] for one in kernels[1:])


def test_the_tree_is_in_the_table_and_on_the_page(captured):
    _, changed = captured
    (table,) = scope_tables(changed)
    names = [line[0].replace("\N{NO-BREAK SPACE}", ".") for line in table.lines]
    assert names == ["layer", "..norm", "....f"]
    assert [line[3] for line in table.lines] == ["100%", "75%", "75%"]
    assert invoke("report", "b").exit_code == 0
    assert "rownorm: scopes" in Path("b/report/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--compare . .", "has no profile"),
        ("--compare . . --model llama", "it goes with --json only"),
        ("--read . --steps 3", "it goes with --json only"),
    ],
)
def test_bad_input(arguments, message):
    assert message in refused("profile", *arguments.split())


def test_reading_again_keeps_the_date_the_tools_and_the_environment(captured):
    profile, _ = captured
    assert invoke("profile", "--read", "a").exit_code in (0, 1)
    again = read_profile(Path("a"))
    assert again.date == profile.date
    assert again.tools == profile.tools
    assert again.environment == profile.environment
    assert again.environment.device == "NVIDIA H200"  # not that of this machine


def node(name, metrics=None, children=()):
    """A node of Proton's tree, in the layout of Triton 3.6."""
    frame = {"name": name, "type": "function"}
    return {"frame": frame, "metrics": metrics or {}, "children": list(children)}


def test_reading_again_prints_the_tree_of_scopes(captured):
    metrics = {"count": 100, "time (ns)": 4e6, "device_id": "0", "device_type": "CUDA"}
    norm = node("norm", children=[node("forward_resident", metrics)])
    tree = [node("ROOT", children=[node("layer", children=[norm])])]
    Path("a", proton.FILES["rownorm"]).write_text(json.dumps(tree))
    printed = invoke("profile", "--read", "a").output
    table = printed.partition("rownorm: scopes\n")[2].partition("\n\n")[0]
    header, *lines = (line.split() for line in table.splitlines())
    assert header == ["scope", "or", "kernel", "kernels", "time", "share"]
    assert [(line[0], line[-1]) for line in lines] == [
        (name, "100%") for name in ("layer", "norm", "forward_resident")
    ]
    indents = [len(line) - len(line.lstrip()) for line in table.splitlines()[1:]]
    assert indents[0] < indents[1] < indents[2]
    assert [one.path for one in read_profile(Path("a")).scopes["rownorm"]] == [
        ["layer"],
        ["layer", "norm"],
        ["layer", "norm", "forward_resident"],
    ]
