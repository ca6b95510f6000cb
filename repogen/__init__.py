"""One manifest in, a Triton model repository out: built, checked, served, loaded and tuned."""

__version__ = "0.1.0"
