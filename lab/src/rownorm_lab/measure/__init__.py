"""Checking and timing providers on cases. docs/method.md explains the method."""
