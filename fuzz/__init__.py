"""Hostile command lines, files and calls from a seed: `python -m fuzz --cases N --seed S`.

Every command is found by its file and its options are read from typer's own description, so a new
one is attacked from its first line. Each case runs in a forked child with limits on memory and
time.
"""
