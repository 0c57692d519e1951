"""What all DAGs share: names, settings, defaults, Connections, and the plugin."""
