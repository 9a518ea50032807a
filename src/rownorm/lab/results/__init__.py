"""Records on disk, and what is computed from them: medians, ratios, bandwidths, comparisons."""
