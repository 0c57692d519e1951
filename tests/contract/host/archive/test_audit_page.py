"""The page of an audit in chromium, opened from a file: both themes, wide and narrow, and nothing is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.usecases.archive.audit_page import page_of
from support.archive.audits.made import of_every_label
from support.checks.budget import Kind, spend
from support.ui.browser import Complaints, open_browser

# WCAG's contrast of every text with the ground it stands on.
CONTRASTS = """() => {
  const rgb = text => text.match(/[0-9.]+/g).map(Number);
  const linear = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map(c => linear(c / 255))
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const ground = element => {
    for (; element; element = element.parentElement) {
      const found = rgb(getComputedStyle(element).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
  };
  return [...document.body.querySelectorAll('*')]
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
    .map(e => [light(rgb(getComputedStyle(e).color)), light(ground(e))])
    .map(([a, b]) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
}"""


@pytest.mark.full
def test_the_page_of_a_file_is_readable_in_both_themes_and_narrow(tmp_path: Path) -> None:
    spend(Kind.BROWSER_JOURNEYS)
    file, complaints = tmp_path / "audit.html", Complaints()
    file.write_text(page_of(of_every_label()), encoding="utf-8")
    with open_browser() as browser:
        page = browser.new_page()
        complaints.watch(page)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            contrasts = page.evaluate(CONTRASTS)
            assert len(contrasts) > 50
            assert min(contrasts) >= 4.5, scheme
            for width in (1280, 400):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (scheme, width)
        assert page.get_by_role("img").count() == 5
        assert asked == [file.as_uri()]
    assert complaints.found == set()
