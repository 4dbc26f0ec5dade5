"""The exceptions and warnings of kcal; imports nothing."""


class KcalError(Exception):
    """Base of every error that kcal raises on purpose."""


class InvalidInputError(KcalError, ValueError):
    """An argument or an array is not what was expected; the message says what was, what came and what to do."""


class FileFormatError(KcalError, ValueError):
    """A file is not what it should be: foreign, truncated, corrupt or from a newer kcal."""


class MissingExtraError(KcalError, ImportError):
    """An optional dependency is not installed; the message says how to install it."""


class KcalWarning(UserWarning):
    """Base of every warning of kcal, so that one filter catches them all."""


class LeakageWarning(KcalWarning):
    """The same samples stand on two sides that must be kept apart, so that results look better than they are."""


class MissingClassWarning(KcalWarning):
    """A class has no calibration sample, so that nothing can be said about it."""


class HeldOutWarning(KcalWarning):
    """No training set was given, so that a part of the calibration set was held out to learn the projection."""


class FewSamplesWarning(KcalWarning):
    """There are too few calibration samples to tell what helps."""


class BandwidthWarning(KcalWarning):
    """The bandwidth search ended at the edge of what it may look at."""


class ConvergenceWarning(KcalWarning):
    """A solver stopped at a bound or before it converged."""
