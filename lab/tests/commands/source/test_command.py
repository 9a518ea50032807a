"""``rownorm source``: what it refuses, and its listing and page. Compiled code is in lab/tests/compiled."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from triton.compiler.errors import CompilationError

import rownorm.kernels.memory
from lab_support.analyses import made_up
from lab_support.lab_commands import invoke, refused, without_torch
from rownorm.ops import checks
from rownorm_lab.command_line import options
from rownorm_lab.commands.source.answers import answers
from rownorm_lab.commands.source.beside import Shown, listings, summarized
from rownorm_lab.commands.source.command import _print
from rownorm_lab.commands.source.kernels import KERNELS
from rownorm_lab.commands.source.page import page
from rownorm_lab.compiled.isa import Line

pytestmark = pytest.mark.usefixtures("command_line")


def test_columns_are_at_most_those_of_the_operations():
    assert options.MAX_COLS == checks.MAX_COLS


def test_the_list_names_every_kernel_of_the_library():
    """A kernel is what ``@triton.jit`` decorates with arguments: those that are launched."""
    folder = Path(rownorm.kernels.memory.__file__).parent
    code = "\n".join(file.read_text() for file in folder.rglob("*.py"))
    launched = set(re.findall(r"^@triton\.jit\(do_not_specialize.*\ndef (\w+)", code, re.MULTILINE))
    assert launched == set(KERNELS) - {"plain_loop"}
    ran = invoke("source", "--list")
    assert ran.exit_code == 0
    assert all(name in ran.output for name in KERNELS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "name a KERNEL"),
        ("forward_residnt", "did you mean forward_resident?"),
        ("forward_resident --isa gcn", "unknown instruction set 'gcn'"),
        ("forward_resident --target sm_75", "unknown target"),
        ("forward_resident --cols 1073741825", "1<=x<=1073741824"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    assert message in refused("source", *arguments.split())


def test_columns_for_which_a_kernel_does_not_compile(monkeypatch):
    def compiled(*_):
        node = SimpleNamespace(lineno=1, col_offset=0)
        raise CompilationError("x = wide", node) from ValueError("numel exceeds the maximum")

    monkeypatch.setattr("rownorm_lab.commands.source.kernels.compiled", compiled)
    ran = invoke("source", "forward_resident", "--cols", 2000000)
    assert ran.exit_code == 1
    told = "Error: forward_resident does not compile for 2000000 columns: "
    assert told in ran.output
    assert "numel exceeds the maximum" in ran.output


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("width", [80, 100, 120, None])
def test_nothing_is_cut_at_any_width(monkeypatch, capsys, width, every):
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    else:
        monkeypatch.delenv("COLUMNS", raising=False)
    lines, number = lines_of_store_row()
    long = lines[0]._replace(text="MUFU.EX2 " + ", ".join(f"R{i}" for i in range(40)), mark="")
    code = listings([*lines, long], "forward_resident")
    about = "rms_norm forward bf16 8192x4096"
    _print(
        Shown(
            "forward_resident", about, "sm_90", "3.7", "sass", [("Why?", "word " * 40)], None, code
        ),
        every,
    )
    printed = capsys.readouterr().out
    if width:
        assert max(map(len, printed.splitlines())) <= width
    words = printed.split()
    assert str(number) in words  # the line number
    for pair in (pair for one in code for pair in one.lines):
        assert set(pair.source.split()) <= set(words)
        if every:
            assert {word for _, text in pair.instructions for word in text.split()} <= set(words)
    if width is None and every:
        assert long.text in printed  # on one line


def test_an_existing_page_is_not_overwritten(tmp_path):
    (tmp_path / "page.html").write_text("mine")
    ran = invoke("source", "forward_resident", "--out", "page.html")
    assert ran.exit_code == 2
    assert (tmp_path / "page.html").read_text() == "mine"


def test_help_needs_no_torch():
    assert without_torch("source", "--help").returncode == 0


def lines_of_store_row():
    """Two instructions of ``memory.store_row``, and one of Triton's own library."""
    file = rownorm.kernels.memory.__file__
    source = Path(file).read_text().splitlines()
    number = next(i for i, line in enumerate(source, 1) if "tl.store(pointers" in line)
    store = Line("@P0 STG.E.128 [R2.64], R4", "STG.E.128", "store", 16, file, number)
    shuffle = Line("SHFL.BFLY PT, R3", "SHFL.BFLY", "reduction", 0, "/x/standard.py", 5)
    other = Line("FADD R1 <R2>", "FADD", "", 0, file, number)
    return [store, store, other, shuffle], number


def test_instructions_are_beside_their_source():
    lines, number = lines_of_store_row()
    found = listings(lines, "forward_resident")
    assert [(one.file, one.function) for one in found] == [
        ("kernels/memory.py", "store_row"),
        ("other sources", ""),
    ]
    pair = next(pair for pair in found[0].lines if pair.number == number)
    assert "tl.store(pointers" in pair.source
    assert summarized(pair.instructions) == [("store", "STG.E.128 x 2"), ("", "1 other")]


@pytest.fixture
def shown():
    lines, _ = lines_of_store_row()
    one = made_up()
    code = listings(lines, "forward_resident")
    return Shown(
        "forward_resident", one.case.title, "sm_90", "3.7", "sass", answers(one), one, code
    )


def test_the_page_marks_instructions_and_needs_no_network(shown):
    text = page(shown)
    assert '<i class="store">@P0 STG.E.128 [R2.64], R4</i>' in text
    assert "FADD R1 &lt;R2&gt;" in text
    assert "How many passes over the rows?" in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [480, 1400])
def test_the_page_is_not_wider_than_the_window(shown, visit, tmp_path, width, scheme):
    file = tmp_path / "page.html"
    file.write_text(page(shown))
    opened = visit(file, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
