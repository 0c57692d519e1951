"""Stream apps: the only importer of pyspark."""
