"""The pages of the documentation site, and a check of its links: both for ``make docs``.

    python tools/docs_site.py write build/docs     # pages: README, docs/, CONTRIBUTING, CHANGELOG, the texts of the
                                                   # course's exercises with their pictures, and the reference
    python tools/docs_site.py check site           # after the build: exit status 1 if a link is broken

The documents are written for GitHub. A page of the site has other neighbours, so ``write`` rewrites links: to the page
where the target is one, else to the file on GitHub. The reference is read from the sources, which needs no torch.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
GITHUB = "https://github.com/rownorm/rownorm"
BESIDE_DOCS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
EXERCISES = "lab/src/rownorm_course/exercises"
NOT_PAGES = {"docs/package-index.md"}  # the description on a package index repeats README.md
REFERENCE = "reference.md"
MODULES = ("rownorm", "rownorm.nn", "rownorm.functional")


def pages() -> dict[str, str]:
    """The page of the site of each document, both as paths: from the root of the repository, and of the site."""
    documents = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    names = {
        name: re.sub(r"README\.md$", "index.md", name.removeprefix("docs/"))
        for name in documents
        if name not in NOT_PAGES
    }
    texts = sorted((ROOT / EXERCISES).glob("*/text.md"))
    exercises = {
        str(path.relative_to(ROOT)): f"course/{path.parent.name}.md"  # with the pictures in them
        for path in texts
    }
    return BESIDE_DOCS | names | exercises


# Code, in which brackets are no links: fences, indented lines, spans.
CODE = re.compile(r"^```.*?^```|^(?: {4}|\t)[^\n]*$|`+[^`\n]+`+", re.MULTILINE | re.DOTALL)
# A link or a picture; its text may be a code span.
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def on_the_site(document: str, link: str) -> str:
    """The link of a document, for its page on the site."""
    name, hash_, anchor = link.partition("#")
    if re.match(r"[a-z]+:", link) or not name:
        return link
    target = os.path.normpath(os.path.join(os.path.dirname(document), name))
    if not (ROOT / target).exists():
        raise SystemExit(f"{document}: the link {link} is broken: there is no {target}")
    there = pages().get(target)
    if there is None and target.startswith("docs/") and not target.endswith(".md"):
        there = target.removeprefix("docs/")  # pictures are copied
    if there is None:
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{GITHUB}/{kind}/main/{target}{hash_}{anchor}"
    return os.path.relpath(there, os.path.dirname(pages()[document])) + hash_ + anchor


def page_of(document: str) -> str:
    """The text of a document with the links of the site."""
    text = (ROOT / document).read_text()
    code = [match.span() for match in CODE.finditer(text)]

    def rewritten(match: re.Match[str]) -> str:
        if any(start <= match.start() < end for start, end in code):
            return match[0]
        return match[1] + on_the_site(document, match[2]) + match[3]

    return LINK.sub(rewritten, text)


@cache
def syntax_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def file_of(module: str) -> Path:
    base = ROOT / "src" / module.replace(".", "/")
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def definition(module: str, name: str) -> tuple[Path, ast.stmt] | None:
    """Where a public name is defined, through the imports that lead there; None for a module."""
    path = file_of(module)
    for node in ast.walk(syntax_of(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return path, node
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            parts = module.split(".")
            up = node.level - (path.name == "__init__.py")
            package = ".".join(parts[: len(parts) - up]) if node.level else ""
            return (
                definition(".".join(filter(None, (package, node.module))), name)
                if node.module
                else None
            )
    raise SystemExit(f"reference: {module} has no definition or import of {name}")


def public_names(module: str) -> list[str]:
    """``__all__``, or the classes and functions without an underscore, in their order."""
    body = syntax_of(file_of(module)).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    found = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in found if not name.startswith("_")]


def entry(shown: str, path: Path, node: ast.stmt, level: int) -> Iterator[str]:
    """Heading, signature as it stands in the source, and docstring; then the public methods of a class."""
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    text = ast.get_docstring(node)
    if text is None:
        raise SystemExit(f"reference: {shown} has no docstring")
    lines = path.read_text().splitlines()
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    signature = lines[node.lineno - 1 : node.body[0].lineno - 1]
    for method in methods if isinstance(node, ast.ClassDef) else ():
        if method.name == "__init__":
            signature += lines[method.lineno - 1 : method.body[0].lineno - 1]
    yield (
        f"{'#' * level} `{shown}`\n\n```python\n"
        + "\n".join(signature)
        + f"\n```\n\n{prose(text)}\n"
    )
    for method in methods if isinstance(node, ast.ClassDef) else ():
        if not method.name.startswith("_") and ast.get_docstring(method):
            yield from entry(f"{shown}.{method.name}", path, method, level + 1)


def prose(docstring: str) -> str:
    """A docstring as Markdown: its double quotes of code are single there."""
    return docstring.replace("``", "`").replace("::\n", ":\n")


def reference() -> str:
    """The public names with signatures and docstrings."""
    parts = [
        "# Reference\n\nThe public names, from the sources. [Operations](operations.md) explains the options.\n"
    ]
    for module in MODULES:
        first = (ast.get_docstring(syntax_of(file_of(module))) or "").split("\n\n")[0]
        parts.append(f"## {module}\n\n{prose(first)}\n")
        for name in public_names(module):
            if (found := definition(module, name)) is not None:
                parts += entry(f"{module}.{name}", *found, level=3)
    return "\n".join(parts)


def write(folder: Path) -> None:
    """The Markdown of the site, with its pictures and its style."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.md"))
    for document, name in pages().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(page_of(document))
    (folder / REFERENCE).write_text(reference())


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: set[str] = set()  # what a browser loads with the page
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
                if name == "src" or ("rel", "stylesheet") in attrs:
                    self.loaded.add(value)
            elif name == "id" and value:
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """The broken links of a built site, and those to files of the repository that do not exist."""
    built = {
        path: Page(path.read_text())
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"
    }
    if not built:
        return [f"{site} has no pages"]
    broken = []
    for path, page in built.items():
        for link in dict.fromkeys(page.links):
            url = urlsplit(link)
            repository = re.match(rf"{GITHUB}/(?:blob|tree)/main/([^#]*)", link)
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if repository:
                reason = (
                    ""
                    if (ROOT / unquote(repository[1])).exists()
                    else "the repository has no such file"
                )
            elif url.scheme or url.netloc:
                reason = "the page loads it from another server" if link in page.loaded else ""
            elif not target.is_file():
                reason = "there is no such file"
            elif (
                target in built
                and url.fragment
                and unquote(url.fragment) not in built[target].anchors
            ):
                reason = "the page has no such heading"
            else:
                reason = ""
            if reason:
                broken.append(f"{path.relative_to(site)}: {link}: {reason}")
    return broken


def main() -> None:
    match sys.argv[1:]:
        case ["write", folder]:
            write(Path(folder))
        case ["check", folder]:
            site = Path(folder).resolve()
            if broken := broken_links(site):
                raise SystemExit("\n".join(["broken links:", *broken]))
            print(
                f"no broken link in {len(list(site.rglob('*.html')))} pages: {site / 'index.html'}"
            )
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
