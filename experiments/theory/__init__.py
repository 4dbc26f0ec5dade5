"""The paper's lemmas and theorems, simulated with known densities: ``python -m experiments.theory``."""
