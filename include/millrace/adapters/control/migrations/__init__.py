"""Alembic migrations of the control database; `adapters/control/migrations/upgrade.py` runs them."""
