"""A service of calibrated predictions: Open Inference Protocol v2 over HTTP and gRPC, feedback, metrics, a dashboard.

``kcal serve`` starts it. The modules that need the extra ``kcal[serve]`` are imported when the service starts.
"""
