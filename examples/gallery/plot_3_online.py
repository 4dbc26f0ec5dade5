"""
Labels that arrive one after the other
======================================

``partial_fit`` adds labelled samples to a fitted calibrator. The log-loss falls with every day of labels, without a new
fit.
"""

# %%
# A calibrator starts with 200 samples and gets 200 more each day.
import matplotlib.pyplot as plt

import kcal
from kcal import KCal, metrics

example = kcal.load_example()
cal, test = example.calibration, example.test

live = KCal(projection="unit").fit(cal.embeddings[:200], cal.labels[:200], ids=range(200))
sizes, losses = [200], [metrics.negative_log_likelihood(live.predict_proba(test.embeddings), test.labels)]
for start in range(200, len(cal.labels), 200):
    day = slice(start, start + 200)
    live.partial_fit(cal.embeddings[day], cal.labels[day], ids=range(start, start + 200))
    sizes.append(start + 200)
    losses.append(metrics.negative_log_likelihood(live.predict_proba(test.embeddings), test.labels))

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.plot(sizes, losses, marker="o")
ax.set(xlabel="calibration samples", ylabel="log-loss on the test part", title="KCal as labels come in")
ax.spines[["top", "right"]].set_visible(False)

# %%
# The bandwidth follows a power law between searches, and is searched for when half as many samples again have come.
for record in live.bandwidth_history_[-4:]:
    print(record)

# %%
# Labels can be corrected, and samples erased.
live.correct([7], [3])
live.forget([8, 9])
print(len(live.ids_), "samples")
