"""A service of calibrated predictions over HTTP: Open Inference Protocol v2, feedback, metrics and a page.

``kcal serve`` starts it. The modules that need the extra ``kcal[serve]`` are imported when the service starts.
"""
