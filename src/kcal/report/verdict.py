"""What the report says in words: how sure the predictions are, how often they are right, which classes to look at."""

import numpy as np

from kcal.metrics.resampling import Interval, wilson_interval
from kcal.report.contents import DEFAULT_CONFIDENCE, Contents
from kcal.report.markup import named, percent, signed_text

CLASSES_NAMED = 5


def verdict(contents: Contents) -> str:
    """Return the verdict as HTML paragraphs."""
    first, last = contents.methods[0], contents.methods[-1]
    sentences = [f"On average {_sureness(contents, first)}."]
    if first != last:
        sentences[0] = f"{named(first)}: on average {_sureness(contents, first)}."
        sentences.append(f"After calibration ({named(last)}): {_sureness(contents, last)}.")
        sentences.append(_change(contents))
    text = " ".join(sentences)
    return f'<p class="verdict">{text}</p>\n<p>{_classes(contents)}</p>'


def _sureness(contents: Contents, method: str) -> str:
    """Return mean confidence, accuracy, and what they mean together."""
    evaluation, bins = contents.evaluations[method], contents.confidence_bins[method]
    sure = bins.mean_of(bins.mean_prediction)
    interval = evaluation.intervals.get("accuracy")
    if interval is None:
        count = float(bins.weights.sum() ** 2 / np.sum(bins.weights**2 / np.fmax(bins.effective_counts, 1e-300)))
        interval = Interval(*map(float, wilson_interval(evaluation.accuracy, count, DEFAULT_CONFIDENCE)))
    if sure > interval.high:
        judgement = "<strong>overconfident</strong>"
    elif sure < interval.low:
        judgement = "<strong>underconfident</strong>"
    elif evaluation.intervals and evaluation.intervals["expected_calibration_error"].low > 0:
        judgement = "<strong>right on average</strong>, but too sure of some samples and not sure enough of others"
    else:
        judgement = "<strong>calibrated</strong> on average, as far as these samples can show"
    return f"{100 * sure:.1f} % sure, right in {100 * evaluation.accuracy:.1f} %: {judgement}"


def _change(contents: Contents) -> str:
    """Return how the calibration error changes from the first to the last method."""
    name = "expected_calibration_error"
    evaluations = [contents.evaluations[method] for method in (contents.methods[0], contents.methods[-1])]
    before, after = (evaluation.debiased.get(name, getattr(evaluation, name)) for evaluation in evaluations)
    kind = "debiased calibration error" if evaluations[0].debiased else "calibration error"
    if percent(before) == percent(after):
        return f"The {kind} stays at {percent(after)} %."
    return f"The {kind} {'falls' if after < before else 'rises'} from {percent(before)} % to {percent(after)} %."


def _classes(contents: Contents) -> str:
    """Return the classes whose errors are largest, and not chance if that is known."""
    errors = contents.class_errors
    if errors.beyond_chance is None or errors.debiased is None or errors.low is None or errors.high is None:
        worst = [k for k in errors.worst(CLASSES_NAMED).tolist() if np.isfinite(errors.error[k])]
        listed = ", ".join(f"{named(contents.class_names[k])} ({percent(errors.error[k])} %)" for k in worst)
        return f"Classes to look at, by their calibration error: {listed or 'none has samples'}."
    beyond_chance = np.flatnonzero(errors.beyond_chance)
    if len(beyond_chance) == 0:
        return "Classes to look at: none has a calibration error that chance alone would not give." + _all_classes(
            contents
        )
    sizes = np.fmax(errors.debiased, np.abs(errors.signed_error))[beyond_chance]
    order = beyond_chance[np.argsort(-sizes, kind="stable")].tolist()
    listed = ", ".join(
        f"{named(contents.class_names[k])} ({signed_text(errors.signed_error[k])}; debiased error "
        f"{percent(errors.debiased[k])} % [{percent(errors.low[k])}, {percent(errors.high[k])}])"
        for k in order[:CLASSES_NAMED]
    )
    more = f" and {len(order) - CLASSES_NAMED:,} more" if len(order) > CLASSES_NAMED else ""
    by_chance = round(len(errors.error) * (1 - contents.band))
    note = f" Of {len(errors.error):,} classes, chance alone would list about {by_chance:,}." if by_chance else ""
    return f"Classes to look at: {listed}{more}.{note}"


def _all_classes(contents: Contents) -> str:
    """Return a sentence if the classes together have an error that no single one shows."""
    name, evaluation = "classwise_calibration_error", contents.evaluation
    interval = evaluation.intervals.get(name)
    if interval is None or not interval.low > 0:
        return ""
    debiased, ends = percent(evaluation.debiased[name]), f"{percent(interval.low)}, {percent(interval.high)}"
    return f" Over all classes together the error is beyond chance: {debiased} % [{ends}]."
