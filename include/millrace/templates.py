"""HTML by Jinja templates: one way to escape for pages and for evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.formats.printable import printable_value

if TYPE_CHECKING:
    from jinja2 import Environment


def templates_of(package: str, folder: str) -> Environment:
    """Return the templates of a folder, to which the caller may add filters.

    Guarantees: all text is escaped for HTML, control characters in it are shown as escapes, and a value that is
    missing is an error.

    Args:
        package: the dotted name of the package that has them.
        folder: the folder inside it; `.` is the package itself.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined  # for pages alone: `./millrace --help` needs none

    return Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printable_value,
    )
