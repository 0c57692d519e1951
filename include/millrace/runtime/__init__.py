"""Stream apps, backups and jobs: the only layer that imports pyspark."""
