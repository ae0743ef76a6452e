"""What several solvers share: bounds, gradients, batches, descent, vertices, snapshots."""
