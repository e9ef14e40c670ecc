"""The command line: one command a file, each argument parsing, a call, and a view."""
