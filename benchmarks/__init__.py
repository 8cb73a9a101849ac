"""Side by side with the baselines, in one process: `python -m benchmarks` prints ratios and writes
benchmarks/results.json.
"""
