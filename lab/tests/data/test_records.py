"""Records on disk: they are read back, and a damaged line does not affect the others."""

import errno
import json
import os

import msgspec
import pytest

from rownorm_lab.data.case import Case
from rownorm_lab.data.records import Accuracy, Clocks, Environment, Method, Record, Writer, read

ENVIRONMENT = Environment(device="NVIDIA H200", kind="cuda", arch="sm_90", versions={"a": "1"})
METHOD = Method(timer="cuda_graph", rotation=3, calls=20, rounds=2, cold=True)


def record(cols=256, **fields):
    case = Case(operation="rms_norm", rows=8, cols=cols, name="a name")
    return Record(case=case, provider="rownorm", environment=ENVIRONMENT, **fields)


FULL = record(
    method=METHOD,
    seconds=[1e-6, 1.25e-6],
    host_seconds=[5e-6],
    peak_bytes=4096,
    accuracy=Accuracy(max_error=1e-3, mean_error=1e-5, max_ulp=0.5, worst="y"),
    clocks=Clocks(sm_mhz=1980, throttled=["power cap"]),
    suspect=["spread of 40%"],
    run="one",
    time="2026-01-01T00:00:00Z",
)
REFUSED = record(status="refused", why="too wide")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "records.jsonl"


def written(file, *records, append=False):
    with Writer(file, append) as writer:
        for one in records:
            writer.write(one)


def test_records_are_read_back(file):
    written(file, FULL, REFUSED)
    assert read(file) == ([FULL, REFUSED], [])
    assert read(file.parent) == ([FULL, REFUSED], [])


def test_each_line_is_self_contained(file):
    written(file, FULL, REFUSED)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["schema"] for line in lines] == [1, 1]
    assert all(line["environment"]["device"] == "NVIDIA H200" for line in lines)


def test_a_line_is_on_the_disk_when_write_returns(file):
    with Writer(file) as writer:
        writer.write(FULL)
        assert read(file).records == [FULL]


def test_an_existing_file_is_not_overwritten(file):
    file.write_text("mine")
    with pytest.raises(FileExistsError):
        Writer(file)
    assert file.read_text() == "mine"


def test_append(file):
    written(file, FULL)
    written(file, REFUSED, append=True)
    assert read(file).records == [FULL, REFUSED]


@pytest.mark.parametrize("kept", [1, 40, -2])
def test_a_killed_run_loses_its_last_line_only(file, kept):
    written(file, FULL, REFUSED)
    whole = file.read_bytes()
    start = whole.index(b"\n") + 1
    file.write_bytes(whole[:start] + whole[start:][:kept])
    reading = read(file)
    assert reading.records == [FULL]
    assert reading.damaged == [(2, "cut off: the run ended while the line was written")]

    written(file, REFUSED, append=True)
    assert read(file).records == [FULL, REFUSED]
    assert read(file).damaged == reading.damaged


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[]", "not a record"),
        (b"{}", "schema 0"),
        (b'{"schema": 2}', "schema 2, but this rownorm reads 1: a newer rownorm wrote it"),
        (b'{"schema": "one"}', "not a record"),
        (b'{"schema": 1, "provider": 3}', "not a record"),
    ],
)
def test_damaged_lines_are_reported_and_the_others_used(file, line, reason):
    written(file, FULL)
    file.write_bytes(file.read_bytes() + line + b"\n\n")
    written(file, REFUSED, append=True)
    reading = read(file)
    assert reading.records == [FULL, REFUSED]
    ((number, why),) = reading.damaged
    assert number == 2
    assert reason in why


def test_an_invalid_case_is_a_damaged_line(file):
    written(file, FULL)
    file.write_text(file.read_text().replace('"rows":8', '"rows":-8'))
    ((_, why),) = read(file).damaged
    assert "rows must be a positive integer" in why


def test_the_reason_of_a_damaged_line_names_its_file(file, tmp_path):
    other = tmp_path / "other.jsonl"
    written(file, FULL)
    other.write_text("not json\n")
    reading = read(file, other)
    assert reading.records == [FULL]
    ((number, why),) = reading.damaged
    assert number == 1
    assert why.startswith(f"{other}: ")


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing.jsonl")
    with pytest.raises(FileNotFoundError):
        read(tmp_path)


def test_a_full_disk_leaves_the_earlier_lines(file, monkeypatch):
    writer = Writer(file)
    writer.write(FULL)
    write, free = os.write, [100, 0]

    def nearly_full(descriptor, data):
        room = free.pop(0)
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:room])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", nearly_full)
        with pytest.raises(OSError, match="No space left"):
            writer.write(REFUSED)
    assert read(file) == ([FULL], [])
    writer.write(REFUSED)
    writer.close()
    assert read(file) == ([FULL, REFUSED], [])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_device_is_an_error():
    with Writer("/dev/full", append=True) as writer, pytest.raises(OSError, match="No space left"):
        writer.write(FULL)


def test_environments_whose_times_must_not_be_mixed():
    here = Environment(device="NVIDIA H200", kind="cuda", triton="3.6.0", node="a", gpu="0")
    assert here.differences(msgspec.structs.replace(here, node="b", gpu="1")) == []
    other = msgspec.structs.replace(here, triton="3.9.0", device="NVIDIA H100")
    assert here.differences(other) == [
        "device is NVIDIA H100, not NVIDIA H200",
        "triton is 3.9.0, not 3.6.0",
    ]
