"""How a batch's rows leave Spark, one module a sink."""
