"""Work on several machines, on Ray: predictions for many rows, a support in shards, parallel benchmarks.

Ray is imported when it is used; ``pip install 'kcal[ray]'`` installs it.
"""

from kcal.distributed.engine import connect, in_parallel
from kcal.distributed.prediction import Predictions, Workers, predict
from kcal.distributed.sharded_kcal import ShardedKCal
from kcal.distributed.tables import Columns

__all__ = ["Columns", "Predictions", "ShardedKCal", "Workers", "connect", "in_parallel", "predict"]
