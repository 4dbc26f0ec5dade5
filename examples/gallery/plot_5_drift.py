"""
An alarm when calibration is lost
=================================

Two monitors bet against the calibrator: one on the inputs, without labels, and one on the probabilities once labels
come in. While nothing has changed their wealth stays low; the probability of a false alarm is at most 5 %, however
long they run.
"""

# %%
# The first half of the test images comes as it is, then a broken device adds noise to the embeddings.
import matplotlib.pyplot as plt
import numpy as np

import kcal
from kcal import KCal, plots
from kcal.monitoring import DriftMonitor

example = kcal.load_example()
cal, test = example.calibration, example.test
calibrator = KCal(projection="unit").fit(cal.embeddings, cal.labels)

change = len(test.labels) // 2
noise = np.random.default_rng(0).normal(scale=3 * test.embeddings.std(), size=test.embeddings.shape)
noise[:change] = 0
embeddings = test.embeddings + noise.astype(np.float32)
probs = calibrator.predict_proba(embeddings)

inputs = DriftMonitor(calibrator.calibration_log_evidence_, alpha=0.05)
labelled = kcal.CalibrationMonitor(calibrator.classes_, alpha=0.05, tolerance=0.02)
without_labels = inputs.update(calibrator.log_evidence(embeddings))
with_labels = labelled.update(probs, test.labels)

figure, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
plots.wealth_curves({"inputs": without_labels.path, "labels": with_labels.path}, changes=[change], ax=ax)
ax.set_title("Wealth of the monitors")

# %%
# When the alarms were raised:
print(without_labels)
print(with_labels)
