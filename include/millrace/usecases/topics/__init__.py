"""Topics as declared: plan, run, drift, and the sources that feed them."""
