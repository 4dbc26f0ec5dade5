"""Speed and memory of kcal, as ratios in one run; `make bench`."""
