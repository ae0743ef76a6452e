"""What pairs of several solvers share: designs of records, and exact likelihoods of what is released."""
