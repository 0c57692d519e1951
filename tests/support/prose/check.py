"""Print the sentences of pages that break a rule: `python -m support.prose.check PAGE ...`, in the folder tests/."""

from __future__ import annotations

import sys
from pathlib import Path

from support.prose.rules import faults
from support.prose.sentences import of_page


def check(page: Path) -> list[str]:
    """Return a line for each rule that a sentence of a Markdown page breaks: page, line, fault, sentence."""
    text = page.read_text(encoding="utf-8")
    return [
        f"{page}:{sentence.line}: {fault}\n    {sentence.text}"
        for sentence in of_page(text)
        for fault in faults(sentence)
    ]


if __name__ == "__main__":
    found = [line for page in sys.argv[1:] for line in check(Path(page))]
    print("\n".join(found))
    sys.exit(1 if found else 0)
