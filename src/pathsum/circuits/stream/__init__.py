"""The residual stream as a channel: who uses which dimensions, and who deletes."""
