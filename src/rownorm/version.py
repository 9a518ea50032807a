"""The version, in a file that can be read without importing anything else."""

__version__ = "0.1.0"
