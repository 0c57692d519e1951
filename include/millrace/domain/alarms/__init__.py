"""Alarms: their life, and the decisions that open one."""
