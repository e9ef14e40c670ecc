"""The command line: parse arguments, call a function of the library, show its result.

main            the commands by group, in the order of --help; errors and exit codes
options         commands from functions: options from signatures, help from docstrings
view            inputs as texts or token ids; tables, JSON and progress
start           demo models
paper           bigram head trigrams composition bandwidth terms atlas induction paper
prediction      why paths scores
interventions   patch replace
training        corpus train dynamics
pages           explore report decompile
"""
