"""Jobs: bounded work by Spark, in a process of its own."""
