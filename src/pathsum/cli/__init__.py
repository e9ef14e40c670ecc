"""The command line: parse arguments, call a function of the library, show its result.

main            the commands by group, in the order of --help; errors and exit codes
options         commands from functions: options from signatures, help from docstrings
inputs          models, texts and token ids, and the option groups that describe them
view            tables, JSON and progress
start           demo models
paper           bigram head neurons trigrams composition bandwidth terms atlas induction paper
prediction      why paths attention scores lens
interventions   patch replace curve rules
training        corpus train dynamics
pages           explore report mcp decompile
"""
