"""The direct path W_E W_U, and how it compares with the bigrams of a text."""
