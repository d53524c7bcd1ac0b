"""The targets of links between pages exist, and the index of docs/ has a link to every page."""

import re
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, text, tracked

PAGES = tracked("*.md")
LINK = re.compile(r"\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INDEX = "docs/README.md"


def links(page: str) -> list[str]:
    """Return the targets of a page's links within this project."""
    found = LINK.findall(FENCE.sub("", text(page)))
    return [target for target in found if not re.match(r"https?:", target)]


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text(page)), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def led_to(page: str, target: str) -> tuple[str, str]:
    """Return the file and the anchor of a link's target."""
    path, _, anchor = target.partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    return str(Path(file).resolve().relative_to(ROOT)), anchor


@pytest.mark.parametrize("page", PAGES)
def test_the_targets_of_links_exist(page: str) -> None:
    broken = []
    for target in links(page):
        file, anchor = led_to(page, target)
        if not (ROOT / file).exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_the_index_lists_every_page() -> None:
    listed = {led_to(INDEX, target)[0] for target in links(INDEX)}
    pages = {page for page in PAGES if page.startswith("docs/")}
    assert pages - listed - {INDEX} == set()


def test_the_readme_leads_to_the_index() -> None:
    assert INDEX in {led_to("README.md", target)[0] for target in links("README.md")}


def test_links_and_anchors_are_parsed() -> None:
    assert links("README.md")
    assert "what-it-promises" in anchors("README.md")
    assert led_to("docs/guides/client.md", "../concepts/guarantees.md#outcomes") == (
        "docs/concepts/guarantees.md",
        "outcomes",
    )
    assert "outcomes" in anchors("docs/concepts/guarantees.md")
