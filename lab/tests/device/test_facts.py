"""The database of devices, and the facts of a known GPU, an unknown GPU and a CPU."""

import re
from types import SimpleNamespace

import pytest
import torch

from rownorm_lab.device import facts as device_facts
from rownorm_lab.device import sensors
from rownorm_lab.device.facts import database, facts_of, known

TB = 1e12


def properties(name, **fields):
    """Made-up device properties of torch."""
    return SimpleNamespace(
        **{
            "name": name,
            "major": 9,
            "minor": 0,
            "gcnArchName": "gfx942:sramecc+:xnack-",
            "multi_processor_count": 132,
            "L2_cache_size": 50 << 20,
            "total_memory": 80 << 30,
        }
        | fields
    )


def test_every_value_has_a_source_and_every_source_is_used():
    used = set()
    for device in database().devices:
        for field in ("peak_bytes_per_second", "peak_flops_fp32", "sms", "l2_bytes"):
            value = getattr(device, field)
            if value is not None:
                assert value.value > 0
                used.add(value.source)
    assert used == set(database().sources)


def test_magnitudes():
    """A wrong factor of 1000, or bits instead of bytes, would fail here."""
    for device in database().devices:
        peak = device.peak_bytes_per_second.value
        assert 0.2 * TB < peak < 10 * TB, device.name
        if device.peak_flops_fp32:
            assert 3 < device.peak_flops_fp32.value / peak < 120, device.name
        if device.sms:
            assert 20 < device.sms.value < 400, device.name
        if device.l2_bytes:
            assert 2**21 < device.l2_bytes.value < 2**29, device.name


def test_no_two_devices_share_a_name():
    names = [device.name for device in database().devices]
    assert len(set(names)) == len(names)
    for device in database().devices:
        plain = re.sub(r"\(.*?\)\??|\.\*", "", device.pattern)
        matching = [d.name for d in database().devices if re.fullmatch(d.pattern, plain)]
        assert matching in ([device.name], []), device.name


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 4.8),
        ("NVIDIA H100 80GB HBM3", 3.35),
        ("NVIDIA H100 PCIe", 2.0),
        ("NVIDIA A100-SXM4-40GB", 1.555),
        ("NVIDIA A100-SXM4-80GB", 2.039),
        ("NVIDIA L4", 0.3),
        ("NVIDIA L40S", 0.864),
        ("NVIDIA GeForce RTX 4090", 1.008),
        ("NVIDIA GeForce RTX 5090", 1.792),
        ("NVIDIA B200", 8.0),
        ("AMD Instinct MI250X/MI250", 1.6384),
        ("AMD Instinct MI300X", 5.3),
        ("AMD Instinct MI325X", 6.0),
        ("AMD Instinct MI355X", 8.0),
    ],
)
def test_known_devices(name, peak):
    assert known(name).peak_bytes_per_second.value == pytest.approx(peak * TB)


@pytest.mark.parametrize("name", ["", "NVIDIA H2000", "NVIDIA H200 MIG 1g.18gb", "My NVIDIA H200"])
def test_similar_names_do_not_match(name):
    assert known(name) is None


def test_a_known_gpu():
    facts = facts_of(properties("NVIDIA H200", L2_cache_size=60 << 20), "cuda", None)
    assert facts == (
        *("NVIDIA H200", "cuda", "sm_90", 132, 60 << 20, 80 << 30, 4.8 * TB),
        *("NVIDIA H200 Tensor Core GPU datasheet", 67e12),
    )


def test_the_last_cache_counts():
    facts = facts_of(properties("AMD Instinct MI300X", L2_cache_size=4 << 20), "hip", None)
    assert facts.arch == "gfx942"
    assert facts.l2_bytes == 256 << 20


def test_an_unknown_gpu_reports_its_peak():
    unknown = properties("NVIDIA GeForce RTX 9090")
    assert facts_of(unknown, "cuda", (2.5 * TB, "NVML"))[6:8] == (2.5 * TB, "NVML")
    clocked = properties("RTX 9090", memory_clock_rate=10_501_000, memory_bus_width=384)
    facts = facts_of(clocked, "cuda", None)
    assert facts.peak_bytes_per_second == pytest.approx(1.008 * TB, rel=1e-3)
    assert facts.peak_source == "driver: memory clock x bus width"
    assert facts_of(clocked, "hip", None)[6:8] == (None, "unknown")
    assert facts_of(unknown, "cuda", None)[6:] == (None, "unknown", None)


def test_a_partition_of_a_gpu_has_no_known_peak():
    facts = facts_of(properties("NVIDIA H200 MIG 1g.18gb"), "cuda", (4.8 * TB, "NVML"))
    assert facts.peak_bytes_per_second is None
    assert "a partition of a GPU" in facts.peak_source


def test_the_present_device():
    (*_, last) = found = device_facts.all_devices()
    assert found[0] == device_facts.describe()
    assert last.memory_bytes > 2**28
    assert last.name
    if not torch.cuda.is_available():
        assert (last.kind, last.sms, last.peak_bytes_per_second) == ("cpu", None, None)
        assert last.peak_source == "unknown"
        assert sensors.clocks() is None
        assert sensors.driver_version() == ""
        assert sensors.reported_peak() is None
    else:
        assert last.sms > 0


def test_throttle_reasons_in_words():
    assert sensors.throttle_reasons(0x1 | 0x2) == []  # idle, and clocks set by the user
    assert sensors.throttle_reasons(0x4 | 0x40) == ["power cap", "hardware thermal slowdown"]
