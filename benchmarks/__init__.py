"""Times and ratios, printed as tables: every ratio is measured side by side in one run. Nothing here is a test."""
