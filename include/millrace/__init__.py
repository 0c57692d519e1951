"""Millrace: a hybrid batch and streaming platform for teams that run Kafka."""

from millrace import moved

__version__ = "0.1.0"
LAYOUT, LAYOUT_VARIABLE = 2, "MILLRACE_LAYOUT"
"""The layout of the code, and the variable by which a process names its own.

It rises when modules move that a running process may still import: `up` refuses to run beside apps of another layout.
"""

ROOT_VARIABLE = "MILLRACE_ROOT"
"""The variable by which a process names the root of its project; all processes that Millrace starts have it."""

moved.install()
