"""How far the output of attention can move when its input moves by at most eps."""
