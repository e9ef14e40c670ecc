"""The command line: one command per file, each parsing arguments, calling a function, showing it.

main        the commands and their order; errors and exit codes
options     arguments and options that several commands share
view        tables, JSON, progress and HTML pages
sequences   token sequences for commands that measure a loss
demo … explore    one command each
"""
