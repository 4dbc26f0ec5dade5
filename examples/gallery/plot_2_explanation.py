"""
Why this probability
====================

A kernel density estimate can say which calibration samples its probabilities come from.
"""

# %%
# Row 14 of the test part shows a coat. The network takes it for a shirt; two coats among the calibration images, the
# nearest in the space of the embeddings, outweigh it.
import matplotlib.pyplot as plt
import numpy as np

import kcal
from kcal import KCalBlend, plots

example = kcal.load_example()
cal, test, names = example.calibration, example.test, np.array(example.classes)
blend = KCalBlend().fit(cal.embeddings, names[cal.labels], logits=cal.logits, classes=example.classes)

row = 14
explanation = blend.explain(test.embeddings[[row]], k=5, logits=test.logits[[row]])
figure = plt.figure(figsize=(11, 6.5), layout="constrained")
plots.explanation(explanation, images=cal.images, query=test.images[row], figure=figure)

# %%
# The same as a table. The shares of a class sum to its probability. Below it is what decided
# between the two most probable classes, exactly and with a sign.
print(explanation[0])
