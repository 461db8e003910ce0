"""A mutation campaign over the product: small faults drawn at random, put in one by one, and does a test notice?

`python -m mutation` with tools/ on the path, or `make mutants`. It works in copies of the tree under build/mutation.
"""
