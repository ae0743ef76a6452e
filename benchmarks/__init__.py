"""Benchmarks: times and ratios, printed as tables. Every ratio is measured side by side; nothing here is a test."""
