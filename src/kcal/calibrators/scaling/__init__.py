"""Temperature, ensemble temperature, vector, matrix and structured matrix scaling."""
