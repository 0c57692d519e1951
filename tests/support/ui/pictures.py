"""Make the pictures of docs/pictures/ from a project whose stack runs.

In the folder tests/: `python -m support.ui.pictures PROJECT`, with PROJECT the checkout in which `./millrace up` ran.
It needs Debian's packages `chromium` and `poppler-utils`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from playwright.sync_api import Page

from support.ui.browser import open_browser
from support.ui.flow import flow

PICTURES = Path(__file__).resolve().parents[3] / "docs" / "pictures"
WIDTH = 1200
DEADLINE_SECONDS = 600


def screen(page: Page, title: str, address: str) -> str:
    """Return a page of the browser as SVG, with its text as the description for those who cannot see it.

    Args:
        page: logged in.
        title: of the picture.
        address: of the page, as a user opens it.
    """
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.goto(page.frames[-1].url)  # the page itself, without Airflow's frame
    page.wait_for_load_state("networkidle")
    page.emulate_media(media="screen")
    text = page.locator("body").inner_text()
    height = page.evaluate("Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)")
    with tempfile.TemporaryDirectory() as folder:
        printed, drawn = Path(folder, "page.pdf"), Path(folder, "page.svg")
        page.pdf(path=printed, width=f"{WIDTH}px", height=f"{height + 2}px", print_background=True)
        subprocess.run(["pdftocairo", "-svg", printed, drawn], check=True, timeout=60)
        picture = drawn.read_text(encoding="utf-8")
    described = f"<title>{escape(title)}</title>\n<desc>{escape(text)}</desc>"
    return re.sub(r"(<svg\b[^>]*>)", lambda tag: f"{tag[1]}\n{described}", picture, count=1)


def _main(project: Path) -> None:
    ran = subprocess.run(
        [project / "millrace", "up", "--json"], stdout=subprocess.PIPE, check=True, timeout=DEADLINE_SECONDS
    )
    up = json.loads(ran.stdout)
    (PICTURES / "flow.svg").write_text(flow(up["example"]), encoding="utf-8")
    password = json.loads(Path(up["airflow"]["password_file"]).read_text())[up["airflow"]["user"]]
    with open_browser() as browser, browser.new_context(viewport={"width": WIDTH, "height": 800}) as context:
        page = context.new_page()
        page.goto(f"{up['airflow']['url']}/auth/login")
        page.fill("input[name=username]", up["airflow"]["user"])
        page.fill("input[name=password]", password)
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url: "/auth/login" not in url)
        picture = screen(page, "The Streams page in Airflow", up["airflow"]["streams"])
    (PICTURES / "streams.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    _main(Path(sys.argv[1]).resolve())
