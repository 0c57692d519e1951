"""A failure of a task that copies: the driver raises it as what it was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from millrace.errors import Code, MillraceError, RefusedError, UnreachableError
from millrace.runtime.backup import copying


@pytest.mark.parametrize("kind", [RefusedError, UnreachableError])
def test_a_failure_of_a_task_keeps_its_class_its_words_and_its_code(kind: type[MillraceError]) -> None:
    error = kind("the bucket refuses this key", where="s3://a/b", next_step="grant it", code=Code.MISSING_RIGHT)
    rows = [SimpleNamespace(**row) for row in copying._failed("t", 0, error).to_pylist()]
    with pytest.raises(kind) as caught:
        copying._reports(rows)
    assert caught.value.lines == error.lines
