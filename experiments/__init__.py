"""Experiments on kcal, run from a checkout: ``python -m experiments --help``."""
