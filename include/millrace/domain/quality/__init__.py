"""Quality of what reached a sink: rules, the rows they are held against, and what was found."""
