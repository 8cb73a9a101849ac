"""The papers' figures: one file is one figure, with `run` (the numbers) and `draw` (the
picture).
"""
