"""QK and OV circuits in the token basis: who attends to which token, and what that does."""
