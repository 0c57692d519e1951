"""Values as text: of records, in messages, and for people."""
