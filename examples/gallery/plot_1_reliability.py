"""
Reliability before and after
============================

A reliability diagram compares predicted probabilities with observed frequencies. On the diagonal, what is predicted
with probability p happens with frequency p.
"""

# %%
# The network is overconfident: of the images that it is 90 % sure of, it gets fewer than 90 % right.
import matplotlib.pyplot as plt

import kcal
from kcal import KCalBlend, TemperatureScaling, Uncalibrated, metrics, plots

example = kcal.load_example()
cal, test = example.calibration, example.test

blend = KCalBlend().fit(cal.embeddings, cal.labels, logits=cal.logits)
network = Uncalibrated().fit(cal.logits, cal.labels)
scaling = TemperatureScaling().fit(cal.logits, cal.labels)
probs = {
    "no calibration": network.predict_proba(test.logits),
    "temperature scaling": scaling.predict_proba(test.logits),
    "KCalBlend": blend.predict_proba(test.embeddings, logits=test.logits),
}

figure, axes = plt.subplots(1, 2, figsize=(11, 6), layout="constrained")
for ax, name in zip(axes, ["no calibration", "KCalBlend"], strict=True):
    plots.reliability_diagram(metrics.reliability(probs[name], test.labels), ax=ax, legend=True)
    ax.set_title(name)

# %%
# Temperature scaling corrects the confidence in the predicted class. Single classes may still be off: coats are more
# frequent than it says.
shown = ["Coat", "Shirt", "Sneaker"]
columns = [example.classes.index(name) for name in shown]
rows = {name: [metrics.reliability(predicted, test.labels, of=k) for k in columns] for name, predicted in probs.items()}
grid = plots.reliability_grid(rows, shown, figure=plt.figure(figsize=(7, 8), layout="constrained"))

# %%
# The log-loss judges calibration and accuracy together, the calibration errors judge calibration alone.
for name, predicted in probs.items():
    print(name, kcal.evaluate(predicted, test.labels), sep="\n", end="\n\n")
