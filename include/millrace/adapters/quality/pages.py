"""The library's page of what it found (Data Docs), made to need nothing beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

import great_expectations  # noqa: TID253  loaded by checks alone
from great_expectations.core import ExpectationSuiteValidationResult  # noqa: TID253
from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer  # noqa: TID253
from great_expectations.render.view import DefaultJinjaPageView  # noqa: TID253

# Its own page fetches scripts, style sheets and pictures from a dozen servers, and links to pages that are not kept.
_ELSEWHERE = re.compile(
    r"<script\b.*?</script>|<nav class=\"navbar\b.*?</nav>\s*</div>\s*</nav>|<link\b[^>]*>|<img\b[^>]*>|"
    r"url\('http[^)]*\)|<meta\b[^>]*>|<footer\b.*?</footer>",
    re.DOTALL | re.IGNORECASE,
)
_HEAD = """<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 0; color: #1d2733; background: #fff; }
.container-fluid { max-width: 1100px; margin: 0 auto; padding: 24px; }
table { border-collapse: collapse; width: 100%; margin: 8px 0 20px; }
th, td { text-align: left; vertical-align: top; padding: 6px 10px; border-bottom: 1px solid #dde3ea; }
h1, h2, h3, h4, h5 { margin: 18px 0 6px; }
ul { list-style: none; padding-left: 0; } li { margin: 2px 0; }
.text-success::before { content: "passed"; color: #1b7a3d; font-weight: 600; }
.text-danger::before { content: "failed"; color: #b3261e; font-weight: 600; }
.text-warning::before { content: "error"; color: #8a5a00; font-weight: 600; }
.badge-secondary { background: #eef2f6; border-radius: 4px; padding: 0 4px; }
.ge-walkthrough-modal, .modal, .btn-group, .cooltip, .sticky > .card.mb-3, a[data-toggle] { display: none; }
a[href^=".."] { pointer-events: none; color: inherit; text-decoration: none; }
</style>
"""


def page_of(results: Sequence[Any], table: str, now: datetime) -> str:
    """The page of some results; empty where there are none.

    Args:
        results: as the library made them, of counts alone.
        table: what was looked at.
        now: when.
    """
    if not results:
        return ""
    passed = sum(bool(result.success) for result in results)
    whole = ExpectationSuiteValidationResult(
        success=passed == len(results),
        results=list(results),
        suite_name=table,
        statistics={
            "evaluated_expectations": len(results),
            "successful_expectations": passed,
            "unsuccessful_expectations": len(results) - passed,
            "success_percent": 100 * passed / len(results),
        },
        meta={
            "great_expectations_version": great_expectations.__version__,
            "run_id": {"run_name": f"{now:%Y-%m-%d %H:%M:%S} UTC", "run_time": now.isoformat()},
        },
    )
    page: str = _view().render(ValidationResultsPageRenderer().render(whole))
    page = _ELSEWHERE.sub("", page)
    return page.replace("<head>", f"<head>\n{_HEAD}", 1)


@cache
def _view() -> DefaultJinjaPageView:
    """The library's view: it compiles its templates once, which takes 0.2 s."""
    return DefaultJinjaPageView()
