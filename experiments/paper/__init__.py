"""The paper's data sets, networks and results: ``python -m experiments.paper``."""
