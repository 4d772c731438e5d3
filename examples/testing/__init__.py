"""Shared fixtures of the examples' tests."""
