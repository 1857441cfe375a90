"""Hooks of MkDocs (`mkdocs.yml`): generated pages, diagrams, and a check of links to other hosts.

Pages that load parts from other hosts are rejected.
"""

from __future__ import annotations

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tools.docs_diagrams import DiagramError, replace_diagrams
from tools.docs_pages import GENERATED_PAGES

LOADS_FROM_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
"""Elements for which a browser sends a request to another host when it shows the page. Links are not among them."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, make in GENERATED_PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    try:
        return replace_diagrams(markdown)
    except DiagramError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def on_post_page(output: str, *, page: Page, **_: object) -> str:
    found = LOADS_FROM_ELSEWHERE.search(output)
    if found is not None and 'rel="canonical"' not in found[0]:
        raise PluginError(f"{page.file.src_uri} loads something from another host: {found[0]}")
    return output
