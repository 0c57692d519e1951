"""Declarations: from YAML text to `domain.declaration`, with every finding at its file, line and field."""

from millrace.declarations.findings import Finding, InvalidDeclarationError, Severity
from millrace.declarations.former_names import former_names
from millrace.declarations.project import Project, check, load, load_environment, load_pipeline
from millrace.declarations.schema import json_schema

__all__ = [
    "Finding",
    "InvalidDeclarationError",
    "Project",
    "Severity",
    "check",
    "former_names",
    "json_schema",
    "load",
    "load_environment",
    "load_pipeline",
]
