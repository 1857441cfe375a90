"""The parts of the documentation site that the project makes itself: diagrams and generated pages."""

import re
import xml.etree.ElementTree as ET

import pytest
from tools.docs_diagrams import DiagramError, draw, replace_diagrams
from tools.docs_pages import GENERATED_PAGES, SECURITY, configuration_keys
from tools.generate_config import CONF, read_keys

from pybroker.cli.command_table import COMMANDS
from pybroker.model.findings import GUIDE, Code

BOX = "┌───┐\n│ a ├──▶ b\n└───┘\n"


def test_diagram_becomes_a_picture_with_title_lines_and_words() -> None:
    page = replace_diagrams(f"before\n\n```diagram Two parts\n{BOX}```\n\nafter\n")
    assert page.startswith("before\n\n<figure")
    assert page.endswith("</figure>\n\nafter\n")
    assert 'aria-label="Two parts"' in page
    assert re.findall("<text [^>]*>([^<]*)<", page) == ["a", "b"]
    assert page.count("<polygon") == 1


def test_picture_is_well_formed() -> None:
    picture = ET.fromstring(draw("Two parts", BOX.replace("│", "╎").replace("──▶", "╌╌▶")))
    assert [child.tag for child in picture] == ["svg", "figcaption"]
    assert {child.tag for child in picture[0]} == {"path", "polygon", "text"}
    assert all(len(child) == 0 for child in picture[0])


def test_other_blocks_stay_as_they_are() -> None:
    page = f"```text\n{BOX}```\n"
    assert replace_diagrams(page) == page


@pytest.mark.parametrize(
    "text",
    [
        "┌───┐\n│ a  │\n└───┘",
        "┌── ┐\n│   │\n└───┘",
        "┌───┐\n│ a ├\n└───┘",
        "a ▶ b",
        "─" * 91,
    ],
    ids=["shifted side", "gap in a side", "junction without a line", "arrowhead without a line", "too wide"],
)
def test_diagram_that_does_not_join_is_refused(text: str) -> None:
    with pytest.raises(DiagramError):
        draw("broken", text)


def test_diagram_without_title_is_refused() -> None:
    with pytest.raises(DiagramError):
        draw("", BOX)


def test_words_of_a_diagram_are_escaped() -> None:
    assert "&lt;a &amp; b&gt;" in draw("<title>", "<a & b>")


def test_configuration_page_has_each_supported_key_once() -> None:
    rows = re.findall(r"^\| `(\w+)`(?:<br>`[^`]+`)? \|", configuration_keys(), re.MULTILINE)
    assert rows == [info.key for info in read_keys(CONF.read_text(encoding="utf-8")) if info.supported]


def test_command_line_page_has_the_help_of_each_command() -> None:
    page = GENERATED_PAGES["reference/cli-options.md"]()
    titles = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert [title for title in titles if " " not in title] == ["pybroker", *COMMANDS]
    assert "tokens create" in titles
    assert page.count("\nusage: ") == len(titles)


def test_finding_page_has_each_code_with_its_meaning() -> None:
    page = GENERATED_PAGES["reference/finding-codes.md"]()
    assert re.findall(r"^## (.+)\n\n(.+)$", page, re.MULTILINE) == [(code.value, code.meaning) for code in Code]


def test_guide_that_findings_name_is_in_the_index_of_guides() -> None:
    guides = CONF.parents[1] / "docs" / "how-to"
    assert (guides / "explain.md").read_text().startswith(f"# {GUIDE}\n")
    assert f"[{GUIDE}](explain.md)" in (guides / "index.md").read_text()


def test_threat_model_has_the_tables_and_links_of_the_security_page() -> None:
    page = GENERATED_PAGES["explanation/threat-model.md"]()
    assert page.startswith("# Threat model\n")
    assert "](../how-to/security.md)" in page
    assert "](docs/" not in page
    assert page.count("\n|") == SECURITY.read_text(encoding="utf-8").count("\n|") > 40
