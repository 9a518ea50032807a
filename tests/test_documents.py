"""README, CONTRIBUTING and docs: every link has a target, and README stays short and links every document."""

import os
import re
from functools import cache
from pathlib import Path

import rownorm

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    ROOT / "llms.txt",
    *sorted(DOCS.rglob("*.md")),
]
# The absolute links of docs/package-index.md.
ON_GITHUB = "https://github.com/rownorm/rownorm/blob/main/"


@cache
def text_of(page):
    """The text without code, whose brackets and # are neither links nor headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^(?: {4}|\t).*$", "", text, flags=re.MULTILINE)


def links_of(page):
    """The targets of links and pictures. Links in code spans are left out."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "code", text_of(page)))


@cache
def anchors_of(page):
    """What GitHub makes of the headings; a repeated heading gets a number."""
    anchors = []
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text_of(page), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        repeated = sum(bool(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", one)) for one in anchors)
        anchors.append(f"{anchor}-{repeated}" if repeated else anchor)
    return anchors


def reason_against(page, link):
    """Why a link is broken; empty if it is not, or leads to another site."""
    base = page.parent
    if link.startswith(ON_GITHUB):
        base, link = ROOT, link.removeprefix(ON_GITHUB)
    if re.match(r"[a-z]+:", link):
        return ""
    name, _, anchor = link.partition("#")
    target = (base / name).resolve() if name else page
    if not target.exists():
        return f"{link}: there is no {name}"
    if anchor and anchor not in anchors_of(target):
        return f"{link}: no such heading; there are {', '.join(anchors_of(target))}"
    return ""


def test_every_link_has_a_target():
    assert not [
        f"{page.relative_to(ROOT)}: {why}"
        for page in PAGES
        for link in links_of(page)
        if (why := reason_against(page, link))
    ]


def test_broken_links_are_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b_c` (d), e\n\n## Twice\n\n## Twice\n\n"
        "[1](#a-b_c-d-e) [2](#twice-1) [3](page.md#twice) [4](https://elsewhere/x#y)\n"
        "`[code](no.md)`\n\n    [code](no.md)\n\n```\n# [code](no.md)\n```\n\n"
        "[5](no.md) ![6](no.png) [7](#code) [8](page.md#twice-2)\n"
        f"[9]({ON_GITHUB}README.md) [10]({ON_GITHUB}no.md)\n"
    )
    broken = [link for link in links_of(page) if reason_against(page, link)]
    assert broken == ["no.md", "no.png", "#code", "page.md#twice-2", f"{ON_GITHUB}no.md"]


def test_the_files_of_a_release_name_this_version():
    assert f"\nversion: {rownorm.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    first = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first[1] == rownorm.__version__


def test_actions_run_what_must_pass():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.search(r"^ +- run: .*\.ci/run$", workflow, re.MULTILINE)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert re.search(r"^ +- run: make test-frameworks NEWEST=", workflow, re.MULTILINE)


def test_llms_txt_names_what_a_user_reads():
    linked = {link.removeprefix(ON_GITHUB) for link in links_of(ROOT / "llms.txt")}
    assert {"docs/coding-agents.md", "docs/operations.md", "docs/integrations.md"} <= linked
    assert all(link.startswith("docs/") for link in linked)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_readme_links_every_document():
    """Each in one click; pages of results and experiments through their README."""
    documents = {*DOCS.glob("*.md"), *DOCS.glob("*/README.md")} - {DOCS / "package-index.md"}
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links_of(ROOT / "README.md")}
    assert not sorted(str(one.relative_to(ROOT)) for one in documents - linked)


def test_every_page_of_a_folder_is_linked():
    """By the README of its folder, which is generated for the results, or by docs/performance.md."""
    folders = [page.parent for page in DOCS.glob("*/README.md")]
    linking = [DOCS / "performance.md", *(folder / "README.md" for folder in folders)]
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in linking
        for link in links_of(page)
    }
    pages = {page.resolve() for folder in folders for page in folder.glob("*.md")}
    assert not sorted(str(one.relative_to(ROOT)) for one in pages - linked)


def test_contributing_names_every_file_and_function_of_the_library():
    """The trees and tables before the glossary: every source file, and only functions that exist."""
    told = (ROOT / "CONTRIBUTING.md").read_text().partition("## Glossary")[0]
    library = Path(rownorm.__file__).parent
    sources = [file for file in library.rglob("*") if file.suffix in (".py", ".c", ".h", ".cpp")]
    names = {file.name for file in sources} - {"__init__.py"}
    assert not [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}", told)]
    (formulas,) = re.findall(r"^\| formula .*?^$", told, re.MULTILINE | re.DOTALL)
    kernels = "".join(file.read_text() for file in (library / "kernels").rglob("*.py"))
    functions = {
        name
        for line in formulas.splitlines()[2:]
        for name in re.findall(r"`([a-z_]+)`", line.split("|")[2])
    }
    assert "_row_sums" in functions
    assert not [name for name in functions if f"def {name}(" not in kernels]
