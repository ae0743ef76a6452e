"""The suite behind ``python -m benchmarks``: times beside counted work, whose saved run is docs/performance.md."""
