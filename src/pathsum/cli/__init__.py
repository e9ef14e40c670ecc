"""The command line: one command per file, each parsing arguments, calling a function, showing it.

main        the commands and their order; errors and exit codes
options     arguments and options that several commands share
view        tables, JSON, progress and HTML pages
inputs      texts, token ids, sequences to measure a loss on, files of prompts
demo … explore    one command each
"""
