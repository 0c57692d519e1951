"""Declarations: from YAML text to `domain.declaration`, with every finding at its file, line and field."""

from millrace.spec.findings import Finding, InvalidDeclarationError, Severity
from millrace.spec.project import Project, check, load, load_environment, load_pipeline
from millrace.spec.schema import json_schema

__all__ = [
    "Finding",
    "InvalidDeclarationError",
    "Project",
    "Severity",
    "check",
    "json_schema",
    "load",
    "load_environment",
    "load_pipeline",
]
