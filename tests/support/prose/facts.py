"""Compare the facts of a page before and after it was rewritten: its numbers, code words and identifiers.

In the folder tests/: `python -m support.prose.facts COMMIT PAGE ...` prints, for each page of that commit, the facts
that the page lacks now. Each is marked with the pages that have it, or with GONE.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"^ *```\w*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(\s*[^)\s]+[^)]*\)")
NUMBER = re.compile(r"(?<![\w.])\d[\d,.]*\d|(?<![\w.])\d(?![\w.]*\w\()")
NUMBER_WORD = re.compile(
    r"\b(two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|sixty|hundred|thousand|million|"
    r"once|twice|half|third|quarter|first|second|hourly|daily|weekly)\b",
    re.IGNORECASE,
)
NAME = re.compile(
    r"--[a-z][\w-]+|\b[A-Za-z]+[_./][\w./-]*\w|\b[a-z]+[A-Z]\w+|\b[A-Z][a-z]+[A-Z]\w*|\b[A-Z][A-Z\d]+\b|\bSPARK-\d+|\bKIP-\d+"
)


def facts(text: str) -> set[str]:
    """Return the numbers, code words and identifiers of a Markdown page.

    Lines of a code block and words of a code span are facts as they stand; so are numbers, also those in words.
    """
    found = {line.strip() for block in FENCE.findall(text) for line in block.splitlines() if line.strip()}
    prose = LINK.sub("]", FENCE.sub("", text))
    found |= {word.strip(",;:()") for span in SPAN.findall(prose) for word in span.split()}
    rest = SPAN.sub(" ", prose)
    found |= {number.rstrip(".,") for number in NUMBER.findall(rest)}
    found |= {word.lower() for word in NUMBER_WORD.findall(rest)}
    found |= set(NAME.findall(rest))
    return found - {""}


def lost(before: str, after: str, others: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each fact of a page that it lacks now.

    Args:
        before, after: the page's text in both versions; `after` is empty when the page is gone.
        others: the text of all other pages as they are now, by name.
    """
    elsewhere = {name: facts(text) for name, text in others.items()}
    for fact in sorted(facts(before) - facts(after)):
        pages = [name for name, there in elsewhere.items() if fact in there]
        yield f"{fact}: {', '.join(pages) if pages else 'GONE'}"


def _text_at(commit: str, page: str) -> str:
    shown = subprocess.run(
        ["git", "show", f"{commit}:{page}"], cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60
    )
    return shown.stdout


def _main(commit: str, pages: list[str]) -> None:
    now = {
        path.relative_to(CHECKOUT).as_posix(): path.read_text(encoding="utf-8")
        for path in (*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"))
    }
    for page in pages:
        others = {name: text for name, text in now.items() if name != page}
        print(f"## {page}")
        for line in lost(_text_at(commit, page), now.get(page, ""), others):
            print(line)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
