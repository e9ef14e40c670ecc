"""What answers each question."""
