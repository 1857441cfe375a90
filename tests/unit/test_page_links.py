"""Links between pages, and names of pages in other files, lead to pages that exist. `make docs` checks anchors as well."""

import re
from pathlib import Path

from tools.docs_pages import GENERATED_PAGES

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
GENERATED = {ROOT / "docs" / path for path in GENERATED_PAGES}
NAMED = re.compile(r"\bdocs/[\w/-]+\.md")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]*)?\)")
WITH_NAMES = ("src", "tests", "tools", "benchmarks", "conf", "docs")


def test_links_of_pages_and_readme_lead_to_files() -> None:
    pages = [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
    assert len(pages) > 20
    absent = {
        (str(page.relative_to(ROOT)), target)
        for page in pages
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists() and (page.parent / target).resolve() not in GENERATED
    }
    assert not absent


def test_pages_that_files_name_exist() -> None:
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", ROOT / "Makefile"]
    for directory in WITH_NAMES:
        files += [path for path in (ROOT / directory).rglob("*") if path.suffix in {".py", ".js", ".c", ".conf", ".md"}]
    absent = {
        (str(file.relative_to(ROOT)), name)
        for file in files
        for name in NAMED.findall(file.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    }
    assert not absent
