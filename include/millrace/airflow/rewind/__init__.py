"""The form that rewinds a stream: its DAG and its own tasks."""
