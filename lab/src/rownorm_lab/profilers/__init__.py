"""Profilers: how each is run, and what it writes as figures."""
