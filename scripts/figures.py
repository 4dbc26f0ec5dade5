"""Draw the figures of the documents and write the table of README.md, from what the code computes on the example.

    python -m scripts.figures

The first figure and the table are those of ``kcal demo``; the other is that of docs/how-to/explanations.md.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import typer

import kcal
from kcal import KCalBlend, plots
from kcal.cli.demonstration import draw, run_methods
from kcal.cli.evaluate import method_title
from kcal.datasets import Example, load_example
from kcal.files import write_whole
from kcal.metrics import Evaluation
from kcal.metrics.registry import MAIN_METRICS

ROOT = Path(__file__).parents[1]
EXPLAINED_ROW = 14
START, END = "<!-- written by make figures -->\n", "<!-- end -->\n"


def results_table(evaluations: Mapping[str, Evaluation]) -> str:
    """Return methods as rows and metrics as columns, the best of each column in bold."""
    columns = []
    for metric in MAIN_METRICS:
        values = [evaluation.as_dict()[metric.name] for evaluation in evaluations.values()]
        best = metric.format((max if metric.direction == "higher" else min)(values))
        columns.append([f"**{text}**" if text == best else text for text in map(metric.format, values)])
    rows = [
        ["method", *(metric.labelled(metric.title) for metric in MAIN_METRICS)],
        ["---", *["--:"] * len(MAIN_METRICS)],
    ]
    rows += [[method_title(name), *cells] for name, cells in zip(evaluations, zip(*columns, strict=True), strict=True)]
    return "".join(f"|{'|'.join(row)}|\n" for row in rows)


def between_markers(text: str) -> str:
    """Return what is between the markers of a page."""
    return text.partition(START)[2].partition(END)[0]


def with_content(text: str, content: str) -> str:
    """Return a page with other content between its markers."""
    if START not in text or END not in text:
        raise ValueError(f"the page has no lines {START.strip()} and {END.strip()}")
    before, _, rest = text.partition(START)
    return f"{before}{START}{content}{END}{rest.partition(END)[2]}"


def draw_explanation(example: Example, row: int, path: Path) -> None:
    """Draw what carries the prediction of a test image by a blend, as in docs/how-to/explanations.md."""
    cal, test, names = example.calibration, example.test, np.array(example.classes)
    blend = KCalBlend().fit(cal.embeddings, names[cal.labels], logits=cal.logits, classes=example.classes)
    explanation = blend.explain(test.embeddings[[row]], logits=test.logits[[row]])
    ax = plots.explanation(explanation, images=cal.images, query=test.images[row])
    ax.get_figure(root=True).savefig(path, dpi=120)


def main() -> None:
    """Write the figures and the table of README.md."""
    torch.set_num_threads(1)
    example = load_example()
    with TemporaryDirectory() as folder:
        _, probs = run_methods(example, Path(folder), quiet=True)
    readme = ROOT / "README.md"
    draw(example, probs, ROOT / "docs/figures/reliability.png")
    draw_explanation(example, EXPLAINED_ROW, ROOT / "docs/figures/explanation.png")
    table = results_table({name: kcal.evaluate(values, example.test.labels) for name, values in probs.items()})
    write_whole(readme, with_content(readme.read_text(encoding="utf-8"), table).encode())


if __name__ == "__main__":
    typer.run(main)
