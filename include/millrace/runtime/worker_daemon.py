"""PySpark's daemon with everything imported that a stream's workers need, before it forks them.

Spark ends workers that were idle for a minute. Without this each new one imports pyarrow, psycopg and PySpark's SQL
package by itself, over a second of processor time, and shares none of that memory with the others.
"""

from __future__ import annotations

import gc

import psycopg  # noqa: F401
import pyarrow.compute
import pyarrow.csv  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import millrace.adapters.postgres_copy
import millrace.runtime.bad_records  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # what is there now stays shared: the collector does not write to it
    manager()
