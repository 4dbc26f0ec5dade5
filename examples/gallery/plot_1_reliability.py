"""
Reliability before and after
============================

A reliability diagram compares predicted probabilities with observed frequencies. On the diagonal, what is predicted with
probability p happens with frequency p.
"""

# %%
# The network is overconfident: it says 0.9 and is right less often.
import matplotlib.pyplot as plt
import numpy as np

import kcal
from kcal import KCalBlend, TemperatureScaling, Uncalibrated, metrics, plots

example = kcal.load_example()
cal, test = example.calibration, example.test

probs = {
    "no calibration": Uncalibrated().fit(cal.logits, cal.labels).predict_proba(test.logits),
    "temperature scaling": TemperatureScaling().fit(cal.logits, cal.labels).predict_proba(test.logits),
    "KCalBlend": KCalBlend()
    .fit(cal.embeddings, cal.labels, logits=cal.logits)
    .predict_proba(test.embeddings, logits=test.logits),
}

figure, axes = plt.subplots(1, 3, figsize=(11, 4), layout="constrained")
for ax, (name, predicted) in zip(axes, probs.items(), strict=True):
    plots.reliability_diagram(metrics.reliability(predicted, test.labels), ax=ax)
    ax.set_title(name)

# %%
# The log-loss judges calibration and accuracy together, the calibration errors judge calibration alone.
for name, predicted in probs.items():
    print(name, kcal.evaluate(predicted, test.labels), sep="\n", end="\n\n")

# %%
# Temperature scaling corrects the confidence in the predicted class. Single classes may still be off.
labels = np.array(example.classes)[test.labels]
for name in ("temperature scaling", "KCalBlend"):
    print(name, metrics.class_errors(probs[name], labels, classes=example.classes), sep="\n", end="\n\n")
