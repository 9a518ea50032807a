"""The documentation site: its navigation names every page, links are rewritten, broken ones are noticed."""

import importlib.util
import re
from pathlib import Path

import pytest

import rownorm

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tool, tmp_path_factory):
    """The Markdown of the site."""
    folder = tmp_path_factory.mktemp("site") / "docs"
    tool.write(folder)
    return folder


def test_navigation_names_every_page_and_no_other(site):
    """Pages of a folder are found through its index, which the navigation names."""
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    named = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    written = {path.relative_to(site).as_posix() for path in site.rglob("*.md")}
    assert sorted(named) == sorted(set(named))
    assert not set(named) - written
    whole = {name for name in written if re.match(r"[^/]+$|course/|.*/index\.md$", name)}
    assert whole == set(named)


def test_pictures_of_the_course_are_on_the_site(site):
    """Those that code draws stand in the texts; a picture is a block of code below its mark."""
    texts = (ROOT / "lab/src/rownorm_course/exercises").glob("*/text.md")
    picture = re.compile(r"<!-- picture: (\w+) -->\n```\n.*?```\n", re.DOTALL)
    drawn = {one[1]: one[0] for text in texts for one in picture.finditer(text.read_text())}
    assert {"grid", "sectors", "reduction", "instructions", "welford", "cluster"} <= drawn.keys()
    pages = "".join(page.read_text() for page in (site / "course").glob("*.md"))
    for block in drawn.values():
        assert block in pages


def test_links_lead_to_pages_or_to_the_repository(tool):
    github = "https://github.com/rownorm/rownorm"
    for document, link, expected in (
        ("README.md", "docs/operations.md#modulation", "operations.md#modulation"),
        ("README.md", "docs/results/README.md", "results/index.md"),
        ("README.md", "docs/layer_norm-backward.png", "layer_norm-backward.png"),
        ("README.md", "LICENSE", f"{github}/blob/main/LICENSE"),
        ("docs/plans.md", "../CONTRIBUTING.md#layers", "contributing.md#layers"),
        ("docs/plans.md", "../examples", f"{github}/tree/main/examples"),
        ("docs/plans.md", "#heading", "#heading"),
        ("docs/results/README.md", "../method.md", "../method.md"),
        ("docs/results/README.md", "https://elsewhere/x.md", "https://elsewhere/x.md"),
    ):
        assert tool.on_the_site(document, link) == expected
    with pytest.raises(SystemExit, match=r"docs/plans\.md: the link \.\./no\.md is broken"):
        tool.on_the_site("docs/plans.md", "../no.md")


def test_code_is_not_rewritten(tool, tmp_path, monkeypatch):
    text = (
        "[a](LICENSE) `[b](LICENSE)` [`c`](LICENSE)\n\n    [d](LICENSE)\n\n```\n[e](LICENSE)\n```\n"
    )
    for name in ("README.md", "LICENSE"):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    there = f"(https://github.com/{'rownorm/' * 2}blob/main/LICENSE)"
    expected = text.replace("[a](LICENSE)", f"[a]{there}").replace(
        "[`c`](LICENSE)", f"[`c`]{there}"
    )
    assert tool.page_of("README.md") == expected


def test_reference_has_every_public_function_and_class(site):
    text = (site / "reference.md").read_text()
    headings = re.findall(r"^### `(.+)`$", text, re.MULTILINE)
    for module in (rownorm, rownorm.nn, rownorm.functional):
        names = rownorm.__all__ if module is rownorm else vars(module)
        for name in names:
            value = getattr(module, name)
            # Without modules, and without what a module imports.
            own = module is rownorm or getattr(value, "__module__", "") == module.__name__
            if callable(value) and own and not name.startswith("_"):
                assert f"{module.__name__}.{name}" in headings
    assert "def rms_norm(\n    x: Tensor,\n" in text
    assert "Divide each row by its root mean square: `y = h /" in text


def test_broken_links_of_the_built_site_are_noticed(tool, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other.html").write_text('<h1 id="there">Other</h1>')
    github = "https://github.com/rownorm/rownorm/blob/main/"
    good = (
        *("folder/other.html", "folder/other.html#there", "#top", "https://elsewhere/x"),
        *("data:image/png;base64,", f"{github}LICENSE#l1"),
    )
    bad = ("no.html", "folder/other.html#no", "#no", "folder", f"{github}no.md")
    links = "".join(f'<a href="{link}">link</a>' for link in (*good, *bad))
    loaded = '<script src="https://elsewhere/y.js"></script><link rel="icon" href="no.png">'
    (tmp_path / "index.html").write_text(f'<body id="top">{links}{loaded}')
    broken = [line.split(": ")[1] for line in tool.broken_links(tmp_path)]
    assert broken == [*bad, "https://elsewhere/y.js", "no.png"]
    assert tool.broken_links(tmp_path / "empty") == [f"{tmp_path / 'empty'} has no pages"]
