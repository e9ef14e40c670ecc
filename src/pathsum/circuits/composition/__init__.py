"""Q-, K- and V-composition: which heads read what other heads write, scored against chance."""
