"""The digest of what decides what becomes of a record."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.adapters.apps.code import digest_of
from millrace.declarations import load_pipeline
from millrace.errors import DeclarationError
from support.declarations import example_project
from support.waiting import Deadline


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = example_project(tmp_path)
    (made / "spark_apps" / "app").mkdir(parents=True, exist_ok=True)
    return made


def digest(root: Path) -> str:
    pipeline = load_pipeline(root, "shop")
    return digest_of(root, pipeline, pipeline.streams[0])


def write(path: str, text: str = "") -> Callable[[Path], None]:
    def act(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    return act


def link(root: Path) -> None:
    write("elsewhere/transform.py", "1")(root)
    (root / "spark_apps" / "linked").symlink_to(root / "elsewhere")


def mend_schema(root: Path) -> None:
    path = root / "include" / "pipelines" / "shop.yaml"
    text = path.read_text()
    assert "quantity INT NOT NULL" in text
    path.write_text(text.replace("quantity INT NOT NULL", "quantity INT"))


@pytest.mark.parametrize(
    "change", [write("spark_apps/shared.py"), write("spark_apps/app/rates.csv", "1"), link, mend_schema]
)
def test_a_change_is_seen_and_its_end_too(root: Path, change: Callable[[Path], None]) -> None:
    before = digest(root)
    assert digest(root) == before
    change(root)
    assert digest(root) != before


@pytest.mark.parametrize("path", [".transform.py.swp", "app/transform.py~", "app/__pycache__/x.pyc", "app/x.pyc"])
def test_what_editors_and_python_leave_is_no_change(root: Path, path: str) -> None:
    before = digest(root)
    write(f"spark_apps/{path}", "1")(root)
    assert digest(root) == before


def test_a_linked_folders_content_counts_and_a_link_to_itself_ends(root: Path) -> None:
    link(root)
    before = digest(root)
    write("elsewhere/transform.py", "2")(root)
    assert digest(root) != before
    (root / "spark_apps" / "app" / "again").symlink_to(root / "spark_apps")
    digest(root)


def test_where_one_file_ends_and_the_next_begins_counts(root: Path) -> None:
    write("spark_apps/a", "b")(root)
    write("spark_apps/b", "")(root)
    before = digest(root)
    write("spark_apps/a", "")(root)
    write("spark_apps/b", "b")(root)
    assert digest(root) != before


def test_it_is_the_same_in_another_process(root: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from millrace.declarations import load_pipeline; "
        "from millrace.adapters.apps.code import digest_of; root = Path(sys.argv[1]); p = load_pipeline(root, 'shop'); "
        "print(digest_of(root, p, p.streams[0]))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(root)],
        capture_output=True,
        text=True,
        check=True,
        timeout=Deadline.PROCESS.seconds,
    )
    assert said.stdout.strip() == digest(root)


def test_a_link_that_leads_nowhere_is_named(root: Path) -> None:
    (root / "spark_apps" / "gone.py").symlink_to(root / "nowhere.py")
    with pytest.raises(DeclarationError, match="cannot be read: No such file"):
        digest(root)
