"""The documentation names every command, column, rule, setting and folder, and its links and paths exist."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from millrace.adapters.kafka.settings.spark import _SAME, _TRANSLATED
from millrace.adapters.postgres import schema as postgres_schema
from millrace.adapters.sinks.postgres.tables import SOURCE_COLUMNS
from millrace.domain.quarantine.rules import Rule
from millrace.embedded.compose.site import site
from millrace.embedded.credentials import Credentials
from millrace.embedded.environment import connections
from millrace.settings import CONNECTION_PREFIX, EXTRA_READ
from support.commands import commands
from unit.test_layers import ALLOWED, BESIDE_LAYERS, FLAT, FOLDERS, MOST_FILES, PACKAGE, tree
from unit.test_layers import NOUNS as CLOSED_LIST

REPOSITORY = Path(__file__).resolve().parents[3]
DOCS = sorted((REPOSITORY / "docs").rglob("*.md"))
PAGES = [*DOCS, *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
ARCHITECTURE = REPOSITORY / "docs" / "architecture.md"
TOP_FOLDERS = (".github", "dags", "docker", "docs", "include", "plugins", "sources", "spark_apps", "tests")
PATH = re.compile(r"[\w.*/-]+(?:\.(?:css|j2|js|json|md|py|sql|toml|txt|yaml)|/)|[\w.*-]+(?:/[\w*-]+)+")
BARE_NAME = re.compile(r"[\w*]+\.(?:j2|py|sql|toml)")
ELSEWHERE = re.compile(r"signups|orders_events|^airflow/passwords\.json$|^docker/secrets")
"""No paths of this repository: the pipeline that the guide makes, files that `up` and `compose` make."""
PLACEHOLDER = re.compile(r"(?<![^/])(?:APP|COMMAND|LAYER|NAME|NOUN|PART|PROGRAM|SERVER)(?=[.\\/]|$)")
"""Segments of a path that stand for any name, with or without a suffix."""
REFUSED = {"plugins/millrace.py": "ADR 7", "runtime/sinks": "ADR 13"}
"""Paths that do not exist, and the decision that says so."""


def reference(name: str) -> str:
    return (REPOSITORY / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("command", "options"), [pytest.param(name, options, id=name) for name, options in commands()])
def test_the_reference_has_every_command(command: str, options: set[str]) -> None:
    lines = [line for line in reference("cli").splitlines() if re.match(rf"\| `{command}\b", line)]
    assert lines, command
    everywhere = {"--json", "--help", "--environment", "--follow"}  # said once, or by their short names
    missing = {option for option in options - everywhere if option not in lines[0]}
    missing -= {option for option in missing if option.replace("--", "--no-") in lines[0]}
    assert not missing, (command, missing)


def test_the_reference_has_no_command_that_is_not_there() -> None:
    there = {name for name, _ in commands()}
    told = re.findall(r"^\| `([a-z]+(?: [a-z]+)?)", reference("cli"), flags=re.MULTILINE)
    assert set(told) <= there


def test_the_reference_has_every_table_column_and_rule_of_the_sink() -> None:
    text = reference("sink") + reference("ledger")
    made = postgres_schema._OWN_TABLES
    named = {*re.findall(r"TABLE IF NOT EXISTS millrace\.(\w+)", made)}
    columns = re.findall(r'^    "?([a-z_]+)"? (?:text|int|bigint|bytea|jsonb|timestamptz)', made, re.MULTILINE)
    named |= set(columns)
    named |= {name for name, _ in SOURCE_COLUMNS} | {"_timeline"} | {rule.value for rule in Rule}
    assert len(named) > 40
    assert [name for name in sorted(named) if f"`{name}`" not in text] == []


def test_the_reference_has_every_connection_and_every_setting_that_is_read() -> None:
    text = reference("connections")
    made = {name.removeprefix(CONNECTION_PREFIX).lower() for name in connections(site(Credentials.make()))}
    assert len(made) == 7
    assert [
        name for name in sorted(made | _SAME | _TRANSLATED | {*EXTRA_READ["postgres"]}) if f"`{name}`" not in text
    ] == []


def slugs(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", without_fences(text), flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        anchors.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return anchors


def without_fences(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def dead_links(page: Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of one."""
    text = without_fences(page.read_text(encoding="utf-8"))
    dead = []
    for link in re.findall(r"\]\(\s*(?![a-z]+:)([^)\s]+)(?:\s[^)]*)?\)", re.sub(r"`[^`\n]*`", "", text)):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in slugs(target.read_text(encoding="utf-8"))):
            dead.append(link)
    return dead


@cache
def paths_of(repository: Path) -> frozenset[str]:
    """Return each path that a page may name, from the repository, the package or an example; folders end in a slash."""
    found = set()
    roots = (repository, repository / "include" / "millrace", *(repository / "docs" / "examples").glob("*/"))
    for path in (*repository.glob("*"), *(path for top in TOP_FOLDERS for path in (repository / top).rglob("*"))):
        if path.is_file() and "__pycache__" not in path.parts:
            for inside in (path.relative_to(root) for root in roots if path.is_relative_to(root)):
                found |= {inside.as_posix(), *(f"{folder.as_posix()}/" for folder in inside.parents[:-1])}
    return frozenset(found)


def dead_paths(page: Path, repository: Path) -> list[str]:
    """Return the paths in backticks that name no file or folder, of the repository or of the package.

    A path begins with a layer or with a top folder. A bare name of a program must be the name of some file.
    """
    there = paths_of(repository)
    tops = {path.partition("/")[0] for path in there if "/" in path}
    dead = []
    for span in re.findall(r"`([^`\n]+)`", without_fences(page.read_text(encoding="utf-8"))):
        for path in (word.partition("::")[0] for word in span.split()):
            bare = BARE_NAME.fullmatch(path)
            if not (bare or (PATH.fullmatch(path) and path.partition("/")[0] in tops)):
                continue
            if ELSEWHERE.search(path) or path in REFUSED:
                continue
            pattern = PLACEHOLDER.sub("[^/]+", re.escape(path).replace(r"\*", "[^/]*"))
            pattern += "" if "." in path else "/?"
            expression = re.compile(f"(?:.*/)?{pattern}" if bare else pattern)
            if not any(map(expression.fullmatch, there)):
                dead.append(path)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead_links(page) == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: str(page.relative_to(REPOSITORY))
)
def test_every_path_names_something(page: Path) -> None:
    assert dead_paths(page, REPOSITORY) == []


def test_every_page_that_the_code_names_is_there() -> None:
    """Messages, comments and alarms lead to pages and to their headings."""
    named = {
        (path.relative_to(REPOSITORY).as_posix(), found[1], found[2])
        for folder in ("include", "dags", "docker", "plugins", "sources", "spark_apps")
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and path.suffix in {".py", ".yaml", ".j2", ".sql", ".md"} and "__pycache__" not in path.parts
        for found in re.finditer(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    pages = {page: REPOSITORY / "docs" / page for _, page, _ in named}
    assert [each for each in sorted(named, key=str) if not pages[each[1]].is_file()] == []
    anchors = {page: slugs(path.read_text(encoding="utf-8")) for page, path in pages.items()}
    assert [each for each in sorted(named, key=str) if each[2] and each[2] not in anchors[each[1]]] == []


MADE_UP = """# Made up, by `hand`

See [the sink](other.md#two-words-and-a-code_name), [the second](other.md#again-1), [above](#made-up-by-hand),
[all](adr/).
Dead: [a file](gone.md), [an anchor](other.md#gone), [one of this page](#gone), [too many](other.md#again-2),
[with a title](no_page.md "A title"). Here: [with a title](other.md "A title").
Here: `domain/topics/changes.py`, `domain/topics/`, `tests/unit/*/test_c*.py`, `./run tests/unit/cli/test_c.py::test_a`,
`include/millrace/domain/`, `changes.py`, `domain/NOUN/PART.py`, `tests/unit/LAYER/`, `.github/CODEOWNERS`,
`docs/other.md`, `pyproject.toml`, `tests/*.toml`.
Dead: `domain/topics/gone.py`, `domain/gone/`, `tests/unit/*/test_d*.py`, `./run tests/gone.py::test_a`,
`kafka_gone.py`, `include/pipelines/gone.yaml`, `docs/gone.json`, `tests/gone`,
`docs/guide/GONE_PAGE.md`, `docs/gone.md`, `domain/TOPICS.py`, `domain/gone/PART.py`, `tests/gone/NOUN/`,
`.github/GONE`, `.github/gone.md`, `tests/gone.toml`, `gone.toml`, `include/gone.sql`, `gone.sql`.
```
[not a link](gone.md) `domain/gone.py`
```
"""
MORE = (".github/CODEOWNERS", "pyproject.toml", "tests/budget.toml")
OTHER = "# Other\n## Two words, and a `code_name`\n## Again\n## Again\n```\n# Gone\n```\n"


def test_dead_links_anchors_and_paths_of_a_page_are_found(tmp_path: Path) -> None:
    for name in ("include/millrace/domain/topics/changes.py", "tests/unit/cli/test_c.py", "docs/adr/0001.md", *MORE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    page = tmp_path / "docs" / "page.md"
    page.write_text(MADE_UP)
    page.with_name("other.md").write_text(OTHER)
    assert dead_links(page) == ["gone.md", "other.md#gone", "#gone", "other.md#again-2", "no_page.md"]
    assert dead_paths(page, tmp_path) == [
        "domain/topics/gone.py",
        "domain/gone/",
        "tests/unit/*/test_d*.py",
        "tests/gone.py",
        "kafka_gone.py",
        "include/pipelines/gone.yaml",
        "docs/gone.json",
        "tests/gone",
        "docs/guide/GONE_PAGE.md",
        "docs/gone.md",
        "domain/TOPICS.py",
        "domain/gone/PART.py",
        "tests/gone/NOUN/",
        ".github/GONE",
        ".github/gone.md",
        "tests/gone.toml",
        "gone.toml",
        "include/gone.sql",
        "gone.sql",
    ]


def folders_of_map(text: str) -> set[str]:
    """Return each folder that a map of layers names, by its path; those in parentheses lie in the folder before."""
    found: set[str] = set()
    above: list[str] = []
    for line in text.splitlines():
        if begins := re.match(r"  (\w+)/ +(.*)", line):
            layer, line = begins.groups()
            above, last = [layer], layer
            found.add(layer)
        elif not above:
            continue  # what lies beside the layers
        for folder, opens, closes in re.findall(r"(\w+)/|(\()|(\))", line):
            if folder:
                last = f"{above[-1]}/{folder}"
                found.add(last)
            elif opens:
                above.append(last)
            elif closes:
                last = above.pop()
    return found


def test_the_map_has_every_folder_of_each_layer_and_no_other() -> None:
    _, _, rest = ARCHITECTURE.read_text(encoding="utf-8").partition("\ninclude/millrace/")
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    inside = {folder.as_posix() for file in files for folder in file.relative_to(PACKAGE).parents}
    assert folders_of_map(rest.partition("\ntests/")[0]) == inside - {"."}


def test_a_folder_of_the_map_has_the_parent_that_stands_before_it() -> None:
    text = """  the package, with errors.py (for all layers)
  domain/     decides: archive/ (audits/ (deep/) proof/) sinks/; a (comment)
              topics/ (dataset/)
  web/        shows pages
"""
    told = "archive archive/audits archive/audits/deep archive/proof sinks topics topics/dataset"
    assert folders_of_map(text) == {"domain", "web", *(f"domain/{folder}" for folder in told.split())}


def test_the_map_has_the_bound_of_files_and_the_flat_files() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    assert re.findall(r"A folder has at most (\d+) files", text) == [str(MOST_FILES)]
    [flat] = re.findall(r"^### Flat files\n(.*?)\n\n", text, flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)\.py`", flat)) == BESIDE_LAYERS
    assert set(re.findall(r"`(\w+)`", flat)) == {*FLAT, *(layer for layer, inside in FOLDERS.items() if not inside)}


def test_the_map_has_every_noun_and_says_what_those_with_a_folder_are() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    [listed] = re.findall(r"closed list: ([^.]+)\.", text)
    assert set(re.split(r",\s+", listed)) == CLOSED_LIST
    _, _, table = text.partition("| noun | is about |")
    cells = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()[2:]]
    explained = [noun for row in cells for noun in row[::2]]
    with_folder = {part for folder in tree(PACKAGE) for part in folder.split("/")} & CLOSED_LIST
    assert sorted(explained) == sorted(with_folder)


def test_the_map_says_who_may_import_whom() -> None:
    _, _, table = ARCHITECTURE.read_text(encoding="utf-8").partition("| layer | imports, beside itself |")
    rows = [line.strip("|").split("|") for line in table.partition("\n\n")[0].splitlines()[2:]]
    told = {
        layer: set(re.findall(r"`(\w+)`", imported))
        for first, imported in rows
        for layer in re.findall(r"`(\w+)`", first)
    }
    assert told == ALLOWED


def test_the_index_has_every_page() -> None:
    index = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    pages = [page.relative_to(REPOSITORY / "docs").as_posix() for page in DOCS if page.parent.name != "adr"]
    assert [page for page in pages if page != "index.md" and f"({page})" not in index] == []
