"""
A smaller calibrator
====================

``compress`` merges the samples of a class into weighted centroids: fewer points, faster predictions, and no sample's
embedding in the file.
"""

# %%
# Log-loss by the number of support points.
import matplotlib.pyplot as plt

import kcal
from kcal import KCal, metrics

example = kcal.load_example()
cal, test = example.calibration, example.test
calibrator = KCal(projection="unit").fit(cal.embeddings, cal.labels)


def log_loss(fitted: KCal) -> float:
    """Return the log-loss on the test part."""
    return metrics.negative_log_likelihood(fitted.predict_proba(test.embeddings), test.labels)


sizes = [len(cal.labels) // divisor for divisor in (60, 20, 10, 3)]
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
losses = [log_loss(calibrator.compress(size)) for size in sizes]
ax.plot(sizes, losses, marker="o", label="merged by k-means")
ax.axhline(log_loss(calibrator), color="grey", linestyle="--", label="all samples")
ax.set(xscale="log", xlabel="support points", ylabel="log-loss on the test part", title="KCal with a smaller support")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)

# %%
# The smallest cluster, and what is left of the file:
small = calibrator.compress(0.1)
print(small.support_size_, "points, each of at least", small.compression_.fewest, "sample(s)")
before, after = (len(kcal.persistence.to_bytes(fitted)) // 1024 for fitted in (calibrator, small))
print(before, "KiB before,", after, "KiB after")
