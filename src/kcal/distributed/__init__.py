"""Work on several machines, on Ray: predictions for many rows, a support in shards, parallel benchmarks.

Ray is imported when it is used; ``pip install 'kcal[ray]'`` installs it.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from kcal.distributed.engine import connect, in_parallel

if TYPE_CHECKING:
    from kcal.distributed.prediction import Predictions, Workers, predict
    from kcal.distributed.sharded_kcal import ShardedKCal
    from kcal.distributed.tables import Columns

__all__ = ["Columns", "Predictions", "ShardedKCal", "Workers", "connect", "in_parallel", "predict"]

_MODULES = {
    "Columns": "tables",
    "Predictions": "prediction",
    "ShardedKCal": "sharded_kcal",
    "Workers": "prediction",
    "predict": "prediction",
}
"""Modules that define the names above, imported on first use."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'kcal.distributed' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(f"kcal.distributed.{_MODULES[name]}"), name)
    return value
