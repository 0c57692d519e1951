"""The pictures of the documentation: they are whole, need nothing beside them, and show what a user sees."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.declarations import CHECKOUT
from support.ui.flow import flow

PICTURES = sorted((CHECKOUT / "docs" / "pictures").glob("*"))
KEPT = CHECKOUT / "tests" / "integration" / "airflow" / "documents" / "stack.json"
OVERVIEW = CHECKOUT / "include" / "millrace" / "web" / "templates" / "overview.html.j2"
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 300_000


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_needs_nothing_beside_it(picture: Path) -> None:
    assert picture.stat().st_size < MOST_BYTES
    root = ElementTree.parse(picture).getroot()
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not tags & {"script", "foreignObject", "image"}
    links = [value for element in root.iter() for name, value in element.attrib.items() if name.endswith("href")]
    assert [link for link in links if not link.startswith("#")] == []


def test_the_picture_of_the_flow_has_the_numbers_of_the_example() -> None:
    example = json.loads(KEPT.read_text(encoding="utf-8"))["up"]["document"]["example"]
    [picture] = [picture for picture in PICTURES if picture.name == "flow.svg"]
    assert picture.read_text(encoding="utf-8") == flow(example)


def test_the_picture_of_the_streams_has_the_columns_of_the_page() -> None:
    """Make it anew when the page changes: CONTRIBUTING.md has the command."""
    [picture] = [picture for picture in PICTURES if picture.name == "streams.svg"]
    described = ElementTree.parse(picture).getroot().findtext(f"{SVG}desc") or ""
    columns = re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', OVERVIEW.read_text(encoding="utf-8"))
    assert len(columns) > 5
    assert "\t".join(columns) in described
