"""I-Max binning: bins that keep the mutual information between label and binned score."""
