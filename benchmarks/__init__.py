"""Side by side with others, in one run, as ratios: `make bench`."""
