"""Print the sentences that break a rule, in the folder tests/: `python -m support.prose.check PAGE ...` judges pages.

Without a page it judges the messages of errors and their next steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.prose.messages import messages, next_steps
from support.prose.rules import faults
from support.prose.sentences import of_page, of_text


def check(page: Path) -> list[str]:
    """Return a line for each rule that a sentence of a Markdown page breaks: page, line, fault, sentence."""
    text = page.read_text(encoding="utf-8")
    return [
        f"{page}:{sentence.line}: {fault}\n    {sentence.text}"
        for sentence in of_page(text)
        for fault in faults(sentence)
    ]


def check_messages() -> list[str]:
    """Return a line for each rule that a message of an error, or a next step, breaks."""
    texts = {message.text for message in messages()} | next_steps()
    return [
        f"{fault}\n    {sentence.text}"
        for text in sorted(texts)
        for sentence in of_text(text)
        for fault in faults(sentence)
    ]


if __name__ == "__main__":
    pages = [Path(page) for page in sys.argv[1:]]
    found = [line for page in pages for line in check(page)] if pages else check_messages()
    print("\n".join(found))
    sys.exit(1 if found else 0)
