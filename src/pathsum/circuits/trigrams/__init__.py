"""Skip-trigrams of a head, the bugs they force, and what those bugs cost."""
