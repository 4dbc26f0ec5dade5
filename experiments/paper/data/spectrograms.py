"""Spectrograms of EEG: log-power over time and frequency."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-4
"""Least power, in squared units of the signal per hertz, so that silence has a logarithm."""


@dataclass(frozen=True)
class Spectrogram:
    """Windows of a signal and the frequencies that are kept.

    Attributes
    ----------
    rate : int
        Samples a second.
    window, step : int
        Samples of a window, and from the start of one to the next.
    highest : float
        Highest frequency in hertz; the mean, frequency 0, is left out.
    """

    rate: int
    window: int
    step: int
    highest: float

    @property
    def n_frequencies(self) -> int:
        """Number of frequencies: rate/window, 2·rate/window, … up to the highest."""
        return int(self.highest * self.window / self.rate)

    def n_times(self, n_samples: int) -> int:
        """Return the number of whole windows."""
        return (n_samples - self.window) // self.step + 1

    def of(self, signals: NDArray[np.float32]) -> NDArray[np.float32]:
        r"""Return the spectrogram of each signal in decibels.

        .. math:: S(f, t) = 10 \log_{10} \frac{2 |\sum_j h_j x_{t+j} e^{-2πi f j}|^2}{r \sum_j h_j^2}

        with h the periodic Hann window, r the rate and x the signal less its mean over the window.

        Parameters
        ----------
        signals : (…, n_samples) array

        Returns
        -------
        (…, n_frequencies, n_times) float32 array
        """
        windows = np.lib.stride_tricks.sliding_window_view(signals, self.window, axis=-1)[..., :: self.step, :]
        taper = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)).astype(np.float32)
        tapered = (windows - windows.mean(axis=-1, keepdims=True)) * taper
        amplitudes = np.fft.rfft(tapered, axis=-1)[..., 1 : self.n_frequencies + 1]
        power = 2 * np.abs(amplitudes) ** 2 / (self.rate * np.sum(taper**2))
        decibels: NDArray[np.float32] = 10 * np.log10(np.maximum(power, FLOOR)).astype(np.float32)
        return np.swapaxes(decibels, -1, -2)
