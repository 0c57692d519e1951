"""Alembic migrations of the control database; `adapters/control_migrations.py` runs them."""
