"""The GPU results in the package, for a page without a GPU."""

from lab_support.lab_records import cpu_records, failed_records, gpu_records
from rownorm_lab.data.measurements import results_of
from rownorm_lab.page.page import page
from rownorm_lab.page.shipped import DRAWN, chart_points, section, shipped


def test_the_section_gives_results_and_their_conditions():
    published, text = shipped(), section(shipped())
    assert "On an NVIDIA H200 rownorm is fastest or level in " in text
    assert "not measured on this machine" in text
    assert f"Measured on {published.date}: device time of a CUDA graph" in text
    assert "cold cache, medians of 10 rounds" in text
    for name, version in published.versions.items():
        assert f"{name} {version}" in text
    timed = [part for part in published.parts if part.unit != "host µs"]
    assert f" of {sum(len(part.cases) for part in timed)} cases" in text
    assert all(part.title in text for part in timed)


def test_the_charts_have_every_provider_that_ran():
    points = chart_points(shipped())
    assert {(p["operation"], p["pass"], p["dtype"]) for p in points} == set(DRAWN)
    assert {"rownorm", "torch", "ceiling"} < {p["provider"] for p in points}
    assert all(0 < p["gbps"] < 4800 for p in points)


def test_only_a_page_without_a_gpu_has_it():
    cpu, gpu = results_of(cpu_records()), results_of(gpu_records())
    text = page(cpu)
    here = text.index("On this CPU rownorm is fastest or level in ")
    assert here < text.index('<details class="shipped">') < text.index('id="shipped"')
    assert 'id="shipped"' not in page(gpu)
    assert 'id="shipped"' not in page([*gpu, *cpu])
    assert 'id="shipped"' not in page(results_of(failed_records()))  # of a GPU
    assert 'id="shipped"' not in page([])
