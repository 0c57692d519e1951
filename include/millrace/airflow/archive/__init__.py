"""The operator that audits archives."""
