"""How a blend's pool is fitted: on what estimates and network say of samples that had no part in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from kcal.calibrators.blend.answers import share_of_pool
from kcal.calibrators.blend.class_frequencies import likely_frequencies
from kcal.calibrators.blend.experts import Expert, told_of_absent
from kcal.calibrators.blend.network import Partner, find_partners
from kcal.calibrators.blend.pool import Pool, PoolProblem
from kcal.calibrators.blend.sharpness import Sharpness, fit_sharpness
from kcal.calibrators.fit_warnings import warn_without_out_of_fold
from kcal.calibrators.holdout import fold_codes, stratified_folds
from kcal.errors import InvalidInputError

if TYPE_CHECKING:
    from kcal.calibrators.blend.estimator import KCalBlend

BACKGROUNDS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Background mass, in units of the mass that reaches a typical sample; tried upwards as long as the loss falls."""
ROUNDS = 2
"""Of finding out what a sample of a group is worth, which depends on the weights, and the weights on it."""
SPREAD = 0.35
"""How far weights are expected to lie from the network alone, as a standard deviation."""
FAINTEST = -20.0
"""The least log mass, in units of a sample's own, that is to reach a typical sample from the others."""
STEEPNESS = 4.0
"""How fast the network takes over as the logarithm of the evidence falls."""
NOTHING_LEFT = 1e-9
"""Share of a class below which leaving a sample or a group out leaves nothing of it."""


@dataclass(frozen=True)
class Samples:
    """Calibration samples: class codes, weights (1 on average) and groups."""

    codes: NDArray[np.int64]
    weights: NDArray[np.float64]
    groups: NDArray[np.int64] | None

    def totals(self, n_classes: int) -> torch.Tensor:
        """Return the weight of each class, (n_classes,)."""
        return torch.from_numpy(np.bincount(self.codes, weights=self.weights, minlength=n_classes).astype(np.float64))

    def left_out(self, n_classes: int) -> torch.Tensor:
        """Return the weight of each class that judging a sample leaves out, (n, n_classes): its own or its group's."""
        keys = np.arange(len(self.codes)) if self.groups is None else np.unique(self.groups, return_inverse=True)[1]
        by_key = np.zeros((int(keys.max()) + 1, n_classes))
        np.add.at(by_key, (keys, self.codes), self.weights)
        return torch.from_numpy(by_key[keys])


def cross_fitted_partners(blend: KCalBlend, scores: torch.Tensor, samples: Samples) -> list[Partner]:
    """Calibrate the network, and note what it says of samples that it was not calibrated on."""
    codes, groups = samples.codes, samples.groups
    if groups is None:
        folds = stratified_folds(codes, min(blend.folds, len(codes)), blend.seed)
    else:
        folds = fold_codes(codes, min(blend.folds, len(np.unique(groups))), groups, blend.seed)
    return find_partners(blend.network_calibrator, scores, codes, samples.weights, folds, blend.representation, groups)


def fit_pool(blend: KCalBlend, samples: Samples) -> None:
    """Find evidence, background, weights, biases and sharpness by what was said of samples left out.

    Without some samples nothing is left of their class. They cannot tell who should be heard (the class that lacks all
    would be theirs), but what becomes of classes never seen: they help to choose the background alone. The others are
    judged among the classes that they could have, so that it tells nothing that theirs is not one of the rarest.
    """
    n_classes, codes = len(blend.classes_), torch.from_numpy(samples.codes)
    left, totals = samples.left_out(n_classes), samples.totals(n_classes)
    sums = [_left_out_sums(blend, expert, left, totals) for expert in blend._experts]
    evidence = torch.logsumexp(sums[0][blend._experts[0].middle], dim=1)
    finite = evidence[torch.isfinite(evidence)]
    if len(finite) == 0:
        raise InvalidInputError("no calibration sample may see another one; at least two groups are needed.")
    lowest = float(np.quantile(finite.numpy(), blend.fallback_quantile))
    blend._least_evidence, blend._steepness = lowest if blend.fallback_quantile > 0 else -np.inf, STEEPNESS
    for expert, found in zip(blend._experts, sums, strict=True):
        expert.keep_typical(found)
    rows = torch.arange(len(codes))
    alone = (totals - left <= NOTHING_LEFT * totals)[rows, codes]
    for each in sums:
        each[:, rows[alone], codes[alone]] = -torch.inf
    blend.group_efficiency_, blend.sharpness_ = 1.0, Sharpness()
    blend._pool = Pool(blend._centre(), np.zeros(n_classes), float(np.log(n_classes)))
    known = torch.from_numpy(np.log(likely_frequencies((totals - left).clamp_min(0.0).numpy(), blend._strength)))
    unseen = _Judged(blend, samples, sums, rows[alone], known)
    likely = torch.from_numpy(np.log(blend._frequencies)).expand(len(codes), -1)
    judged = _Judged(blend, samples, sums, rows[~alone], likely)
    problem = _choose_background(blend, judged, unseen)
    if problem is None:
        warn_without_out_of_fold()
    else:
        _finish(blend, samples, judged, unseen, problem)


def _left_out_sums(blend: KCalBlend, expert: Expert, left: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """Return log class sums of every sample given the others, at a bandwidth wide enough for them to be seen.

    With few samples the leave-one-out loss may like one so narrow that it tells no more than who is nearest, with a
    certainty that nothing supports.
    """
    log_factors = torch.from_numpy(np.log(blend._frequency_factors()))
    for _ in range(2):
        sums = whole_class_sums(expert.leave_out_log_sums(), left, totals) + log_factors
        evidence = torch.logsumexp(sums[expert.middle], dim=1)
        seen = evidence[torch.isfinite(evidence)]
        if len(seen) == 0 or float(seen.median()) >= FAINTEST:
            break
        expert.estimate.bandwidth_ *= float(np.sqrt(float(seen.median()) / FAINTEST))  # exponents go with 1/b²
    return sums


class _Judged:
    """Some calibration samples, and what was said of them; ``log_frequencies`` are those that each may know."""

    def __init__(
        self,
        blend: KCalBlend,
        samples: Samples,
        sums: list[torch.Tensor],
        rows: torch.Tensor,
        log_frequencies: torch.Tensor,
    ) -> None:
        self.blend, self.rows = blend, rows.numpy()
        self.codes, self.weights = samples.codes[self.rows], samples.weights[self.rows]
        self.sums, self.log_frequencies = [each[:, rows] for each in sums], log_frequencies[rows]
        self.said = [partner.cross_fitted[rows] for partner in blend._partners]
        evidence = torch.logsumexp(self.sums[0][blend._experts[0].middle], dim=1, keepdim=True)
        self.near = share_of_pool(blend, evidence)
        self.far = self.said[0] if self.said else self.log_frequencies

    def problem(self, background: float) -> PoolProblem:
        """Return what the pool is to be fitted on."""
        experts = torch.stack(self._estimates(background) + self.said)
        centre, bias = self.blend._centre(), float(self.blend.bias)
        return PoolProblem(experts, self.codes, self.weights, self.near, self.far, centre, SPREAD, bias, self.barred)

    def _estimates(self, background: float) -> list[torch.Tensor]:
        """Return what every metric and bandwidth says, with background, each (n, n_classes)."""
        absent = torch.from_numpy(self.blend._experts[0].estimate._frequencies == 0)
        return [
            told_of_absent(masses, absent, self.far)
            for expert, found in zip(self.blend._experts, self.sums, strict=True)
            for masses in expert.log_masses_of_logarithms(found, self.log_frequencies, background)
        ]

    @property
    def barred(self) -> torch.Tensor | None:
        """Classes that none of the samples has, (n_classes,); None if they have all."""
        missing = np.bincount(self.codes, minlength=len(self.blend.classes_)) == 0
        return torch.from_numpy(missing) if missing.any() else None

    def loss(self, pool: Pool, background: float) -> float:
        """Return the weighed sum of the log-loss, among all classes."""
        if len(self.rows) == 0:
            return 0.0
        answers = replace(self.problem(background), barred=None).answers(pool)
        return -float(answers[torch.arange(len(self.rows)), self.codes] @ torch.from_numpy(self.weights))


def _choose_background(blend: KCalBlend, judged: _Judged, unseen: _Judged) -> PoolProblem | None:
    """Set background and pool, and return the problem that the pool solves; None where no sample can be judged."""
    least, chosen = np.inf, None
    pool = blend._pool
    for background in BACKGROUNDS if blend.background == "cv" else (float(blend.background),):
        problem = judged.problem(background) if len(judged.rows) else None
        if problem is not None:
            pool = problem.solve(None if chosen is None else pool)
        loss = judged.loss(pool, background) + unseen.loss(pool, background)
        if loss >= least:
            break
        least, chosen = loss, problem
        blend._pool, blend.background_ = pool, background
    return chosen


def _finish(blend: KCalBlend, samples: Samples, judged: _Judged, unseen: _Judged, problem: PoolProblem) -> None:
    """Let groups count for what they tell, be cautious where classes have one sample, and sharpen."""
    groups = None if samples.groups is None else samples.groups[judged.rows]
    if groups is not None and len(np.unique(groups)) > 1:
        for _ in range(ROUNDS):
            blend.group_efficiency_ = blend._worth_of_a_sample(problem, groups)
            blend._pool = problem.solve(blend._pool, worth=blend.group_efficiency_)
    if len(unseen.rows):
        blend._pool = _cautious(blend, judged, unseen)
    answers = problem.answers(blend._pool)
    blend.sharpness_ = fit_sharpness(
        answers, judged.codes, judged.weights, judged.near, spread=float(blend.sharpness), worth=blend.group_efficiency_
    )


def _cautious(blend: KCalBlend, judged: _Judged, unseen: _Judged) -> Pool:
    """Return a pool between what is expected before any data and the fitted one, best for all samples together.

    The fit heard nothing of samples whose class others do not have; that there are some says that new samples will be
    of classes that hardly any, or no, calibration sample has.
    """
    fitted, centre = blend._pool, blend._centre()

    def between(share: float) -> Pool:
        return replace(fitted, weights=centre + share * (fitted.weights - centre), bias=share * fitted.bias)

    def loss(share: float) -> float:
        pool = between(share)
        return judged.loss(pool, blend.background_) + unseen.loss(pool, blend.background_)

    return between(float(minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded").x))


def whole_class_sums(sums: torch.Tensor, left: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """Return left-out log class sums, (n_scales, n, n_classes), as if all of each class had been there.

    What is left of a class stands for the whole of it: otherwise the class that lacks something would tell a sample's
    own, the more surely the fewer samples classes have. A class of which nothing is left gets its share of the sum.
    """
    rest = totals - left
    gone = (rest <= NOTHING_LEFT * totals) & (totals > 0)
    factors = torch.where(gone | (totals == 0), 0.0, torch.log(totals / rest))
    whole = sums.cpu().double() + factors
    if not bool(gone.any()):
        return whole
    seen = torch.where(gone, 0.0, totals).sum(dim=1, keepdim=True)
    mass = torch.logsumexp(whole.masked_fill(gone, -torch.inf), dim=2, keepdim=True)
    return torch.where(gone, mass + torch.log(totals / seen), whole)
