"""The definitions of every figure once more: in float64, with plain loops, apart from the code that they judge.

Nothing here but the tests imports from the project or from scikit-learn. `python -m tests.evidence.oracles` prints the
largest deviations.
"""
