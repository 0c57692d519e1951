"""PySpark's daemon with everything imported that a stream's workers need, before it forks them.

Spark ends workers that were idle for a minute. Without this each new one imports pyarrow, pandas, psycopg and PySpark's
SQL package by itself, two seconds of processor time, and shares none of that memory with the others.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path


def without_archives(path: Sequence[str]) -> list[str]:
    """Return a search path without the archives of PySpark and Py4J that lie in an installed PySpark.

    Spark puts them before the installed packages, which are the same. Python keeps no bytecode of what it reads from an
    archive, so each daemon compiled all of PySpark again.
    """
    installed = {Path(folder, "pyspark", "python", "lib") for folder in path}
    return [entry for entry in path if not (entry.endswith(".zip") and Path(entry).parent in installed)]


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

    import millrace.adapters.postgres_copy
    import millrace.runtime.bad_records  # noqa: F401

    gc.freeze()  # what is there now stays shared: the collector does not write to it
    manager()


if __name__ == "__main__":
    main()
