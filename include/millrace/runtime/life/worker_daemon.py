"""PySpark's daemon with everything imported that a stream's workers need, before it forks them.

Spark ends workers that were idle for a minute. Without this each new one imports pyarrow, pandas, psycopg and PySpark's
SQL package by itself, two seconds of processor time, and shares none of that memory with the others.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from re import fullmatch


def without_archives(path: Sequence[str]) -> list[str]:
    """Return a search path without Spark's archives of PySpark and Py4J, where the rest of it finds the same PySpark.

    Spark puts its archives before all else. Python keeps no bytecode of what it reads from an archive, so each daemon
    would compile all of PySpark.
    """
    archives = {entry for entry in path if fullmatch(r"pyspark\.zip|py4j-.*-src\.zip", Path(entry).name)}
    rest = [entry for entry in path if entry not in archives]
    pyspark, py4j = (PathFinder.find_spec(name, rest) for name in ("pyspark", "py4j"))
    if pyspark is None or pyspark.origin is None or py4j is None:
        return list(path)
    own = Path(pyspark.origin).resolve().parent / "python" / "lib"
    return rest if all(Path(archive).resolve().parent == own for archive in archives) else list(path)


def main() -> None:
    """Import, then serve until the JVM ends this process."""
    sys.path[:] = without_archives(sys.path)

    import pandas  # noqa: F401 - pyarrow imports it for the first array
    import psycopg  # noqa: F401
    import pyarrow.compute
    import pyarrow.csv  # noqa: F401
    import pyspark.sql.pandas.serializers
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    import millrace.adapters.sinks.postgres.copy
    import millrace.runtime.stream.bad_records  # noqa: F401

    gc.freeze()  # what is there now stays shared: the collector does not write to it
    manager()


if __name__ == "__main__":
    main()
