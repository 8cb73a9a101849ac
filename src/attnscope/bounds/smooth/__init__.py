"""Theorems on the smoothness of attention: on a ball, anywhere, at a measure, along a flow."""
