"""Serving calibrated predictions: the record of a served model and the page that shows it."""
