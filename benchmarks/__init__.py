"""Suites: one folder each, with its loader, grader, initial scaffold and environment surface."""
