"""The engines there are, over reloads: health, marks, load, models."""
