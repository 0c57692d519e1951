"""Debian's chromium, driven as a user drives it: log in, look, click; and what its console complained of.

With MILLRACE_SCREENSHOTS naming a folder, `keep_picture` keeps pictures of pages there.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect, sync_playwright

from support.checks.budget import Kind, spend
from support.waiting import Deadline

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from support.ui.airflow_ui import AirflowUser

NAMES = ("chromium", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MILLISECONDS = int(Deadline.PAGE.seconds * 1000)


@dataclass
class Complaints:
    """The errors of a page's console, without what differs from one DAG or run to the next."""

    found: set[str] = field(default_factory=set)

    def watch(self, page: Page) -> None:
        """Listen to a page from now on."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.found.add(_plain(str(error))))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.found.add(_plain(f"{message.text} at {message.location.get('url', '')}"))


def _plain(text: str) -> str:
    """A complaint as it would be on any DAG's page."""
    text = re.sub(r"https?://[^/\s]+", "", text)
    text = re.sub(r"(dags|dagRuns|runs|taskInstances|tasks|assets)/[^/?\s]+", r"\1/X", text)
    return re.sub(r"\d+", "0", text.splitlines()[0] if text else "")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A chromium; the test fails with what to do where the machine has none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.fail("there is no chromium on this machine: install the package `chromium` (.ci/run does so as root)")
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()


@contextmanager
def logged_in(browser: Browser, user: AirflowUser, complaints: Complaints) -> Iterator[Page]:
    """A page of this user's, after the log-in form; it is closed at the end of the block."""
    spend(Kind.BROWSER_JOURNEYS)
    with browser.new_context(viewport={"width": 1500, "height": 1000}, base_url=user.url) as context:
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        page = context.new_page()
        page.goto("/auth/login")
        page.fill("input[name=username]", user.name)
        page.fill("input[name=password]", user.password)
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url: "/auth/login" not in url)
        complaints.watch(page)
        yield page


def keep_picture(page: Page, name: str) -> None:
    """Keep a picture of a page, if somebody asked for pictures."""
    if folder := os.environ.get("MILLRACE_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")
