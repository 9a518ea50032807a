"""Counters by source line: the source page of ncu, as captured on an H200 (captured/README.md), and what shows it."""

import csv
import json
import shutil
from pathlib import Path

import msgspec
import pytest

from lab_support.lab_commands import invoke
from rownorm_lab.commands.profile import advice
from rownorm_lab.data.profile_tables import line_tables
from rownorm_lab.data.profiles import SourceLine, read_profile
from rownorm_lab.profilers.ncu_source import parse, short_path

CAPTURED = Path(__file__).parent / "captured"
PAGE = (CAPTURED / "h200-lines" / "ncu-source.csv").read_text()
LOAD_16_BIT = ("src/rownorm/kernels/memory.py", 60)
# Made up: column y[i * 8] of a matrix.
STRIDED = SourceLine(
    kernel="copy", file="mine.py", line=7, text="x = tl.load(x_ptr + 8 * i)", samples=30, instructions=64,
    sectors=2048, excess_sectors=1792, stall="long_sb", stall_samples=27,
)  # fmt: skip


@pytest.fixture(scope="module")
def lines():
    return parse(PAGE)


def instructions_of(page, file, kernel):
    """{line: rows of its instructions} of the first table of a file and a kernel, with the names of the columns."""
    start = page.index(f'"File Path","{file}"\n"Function Name","{kernel}"\n')
    table = page[start : page.index('\n"File Path"', start + 1)].splitlines()[2:]
    header, *rows = (row[1:-1].split('","') for row in table)
    found = {}
    for row in rows:
        if row[0]:
            line = found.setdefault(int(row[0]), [])
        else:
            line.append(dict(zip(header[4:], row[4:], strict=True)))
    return found


def test_lines_sum_to_the_counters_of_the_kernels(lines):
    header, _, *launches = csv.reader(
        (CAPTURED / "h200-lines" / "ncu.csv").read_text().splitlines()
    )
    for kernel in ("forward_resident", "column_sums"):
        counted = [dict(zip(header, row, strict=True)) for row in launches if kernel in row]
        assert len(counted) == 2  # launches, which are summed
        own = [one for one in lines if one.kernel == kernel]
        for total, counter in (
            (sum(one.instructions for one in own), "smsp__inst_executed.sum"),
            (sum(one.samples for one in own), "smsp__pcsamp_sample_count"),
            (sum(one.sectors for one in own), "memory_l2_theoretical_sectors_global"),
            (
                sum(one.sectors - one.excess_sectors for one in own),
                "memory_l2_theoretical_sectors_global_ideal",
            ),
        ):
            assert total == sum(int(one[counter].replace(",", "")) for one in counted)


def test_a_line_is_the_sum_of_its_instructions():
    file, kernel = "src/rownorm/kernels/forward/resident.py", "forward_resident"
    first_launch = PAGE[: PAGE.index(f'"File Path","{file}"', PAGE.index("==WARNING=="))]
    found = {
        one.line: one for one in parse(first_launch) if (one.file, one.kernel) == (file, kernel)
    }
    instructions = instructions_of(PAGE, file, kernel)
    assert sum(map(len, instructions.values())) > 40
    for number, rows in instructions.items():
        expected = {
            name: sum(int(row[name]) for row in rows)
            for name in ("# Samples", "Instructions Executed", "stall_selected", "stall_wait")
        }
        line = found[number]
        assert line.samples == expected["# Samples"]
        assert line.instructions == expected["Instructions Executed"]
        for stall in ("selected", "wait"):
            assert line.stall_samples >= expected[f"stall_{stall}"]
            assert line.stall != stall or line.stall_samples == expected[f"stall_{stall}"]


def test_the_line_with_the_most_samples_waits_for_memory(lines):
    [kernel, *_] = dict.fromkeys(one.kernel for one in lines)
    first = lines[0]
    assert (kernel, (first.file, first.line)) == ("forward_resident", LOAD_16_BIT)
    assert first.text.startswith("return (x.to(tl.uint16, bitcast=True)")
    assert (first.stall, first.stall_samples > 0.8 * first.samples) == ("long_sb", True)
    own = [one.samples for one in lines if one.kernel == kernel]
    assert own == sorted(own, reverse=True)


def test_quotes_in_the_source_are_kept(lines):
    [text] = {one.text for one in lines if "rcp.approx" in one.text}
    assert '"rcp.approx.ftz.f32 $0, $1;", "=f,f", [x]' in text
    closer = PAGE.replace('$1;", "=f,f", [x]', '$1;","=f,f",[x]')
    [text] = {one.text for one in parse(closer) if "rcp.approx" in one.text}
    assert '$1;","=f,f",[x]' in text
    assert sum(one.samples for one in parse(closer)) == sum(one.samples for one in lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PAGE[: PAGE.index("tl.rsqrt") - 4], "cut off: line"),
        (PAGE.replace('"L2 Theoretical Sectors Global",', '"Sectors",'), 'no column "L2 Theo'),
        ("Name,Calls\nkernel,3\n", "line 1 is in no table"),
        ('"ID","Process ID","Kernel Name"\n"0","12","a"\n', "line 1 is in no table"),
        ("==WARNING== No lineinfo available\n", "it has no source line"),
        ("", "it has no source line"),
    ],
    ids=[
        "cut off",
        "a column is missing",
        "foreign",
        "raw",
        "no lines",
        "empty",
    ],
)
def test_a_page_that_cannot_be_used(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse(text)


@pytest.mark.parametrize(
    ("file", "short"),
    [
        ("/home/me/project/kernels/mine.py", "kernels/mine.py"),
        (
            "/usr/lib/python3/dist-packages/triton/language/standard.py",
            "triton/language/standard.py",
        ),
        ("/home/me/rownorm/src/rownorm/kernels/memory.py", "rownorm/kernels/memory.py"),
        ("/elsewhere/far/away/mine.py", "away/mine.py"),
        ("/mine.py", "mine.py"),
        ("mine.py", "mine.py"),
    ],
)
def test_paths_are_short(file, short):
    assert short_path(file, "/home/me/project") == short


@pytest.fixture
def folder(tmp_path, command_line):
    """A captured profile with the source page of another run."""
    shutil.copytree(CAPTURED / "h200", tmp_path / "made")
    shutil.copy(CAPTURED / "h200-lines" / "ncu-source.csv", tmp_path / "made")
    return tmp_path / "made"


def test_lines_in_the_terminal_the_json_and_on_the_pages(folder, lines, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = invoke("profile", "--read", str(folder))
    assert ran.exit_code == 0, ran.output
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert "forward_resident: source lines, by their share of 7,530 samples" in ran.stdout
    assert "   55%  rownorm/kernels/memory.py:60, waits for global memory (91%)" in ran.stdout
    assert "        return (x.to(tl.uint16" in ran.stdout
    profile = read_profile(folder)
    assert [one.samples for one in profile.lines] == [one.samples for one in lines]
    assert profile.lines[0].file == "rownorm/kernels/memory.py"
    written = json.loads((folder / "summary.json").read_text())["lines"]
    assert written[0]["stall"] == "long_sb"
    assert written[0]["samples"] == lines[0].samples
    assert "| rownorm/kernels/memory.py:60 | 55% |" in (folder / "summary.md").read_text()
    assert invoke("report", str(folder), "--no-plots").exit_code == 0
    page = (folder / "report/report.html").read_text()
    assert "forward_resident: source lines" in page
    assert "rownorm/kernels/memory.py:60" in page
    assert "eviction_policy=&quot;evict_last&quot;" in page
    assert "tl.uint32) &lt;&lt; 16)" in page


def test_a_profile_without_lines(folder):
    (folder / "ncu-source.csv").unlink()
    ran = invoke("profile", "--read", str(folder))
    assert ran.exit_code == 0, ran.output
    assert "source lines" not in ran.output
    assert json.loads((folder / "summary.json").read_text())["lines"] == []
    assert "lines" not in json.loads((CAPTURED / "h200" / "summary.json").read_text())
    assert read_profile(CAPTURED / "h200").lines == []  # written before profiles had lines


def test_a_page_that_is_cut_off_loses_no_counter(folder):
    (folder / "ncu-source.csv").write_text(PAGE[:9000])
    ran = invoke("profile", "--read", str(folder), "--json")
    assert ran.exit_code == 1
    read = json.loads(ran.stdout)
    [ncu] = [one for one in read["tools"] if one["tool"] == "ncu"]
    assert ncu["status"] == "failed"
    assert "ncu-source.csv cannot be used: the source page of ncu is cut off" in ncu["why"]
    assert any(one["name"] == "achieved occupancy" for one in read["figures"])
    assert read["lines"] == []


def test_sectors_beyond_those_needed(folder, lines):
    assert advice.of_lines(lines) == []
    [said] = advice.of_lines([*lines, STRIDED])
    assert said.startswith("mine.py:7 addresses 8.00x the sectors that its bytes need")
    profile = read_profile(folder)
    [table] = line_tables(msgspec.structs.replace(profile, lines=[STRIDED]))
    assert dict(zip(table.header, table.lines[0], strict=True)) == {
        "line": "mine.py:7",
        "samples": "100%",
        "waits for": "global memory (90%)",
        "instructions": "100%",
        "sectors": "2,048",
        "of those needed": "8.00x",
        "source": "x = tl.load(x_ptr + 8 * i)",
    }
