"""Names, settings, defaults, Connections and the plugin, which all DAGs share."""
