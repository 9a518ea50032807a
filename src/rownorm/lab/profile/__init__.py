"""Profilers and what they write."""
