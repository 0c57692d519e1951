"""The interfaces that have more than one adapter: a real one and, for faults and scale, a fake one."""
