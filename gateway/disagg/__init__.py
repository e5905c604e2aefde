"""Serving over two engines: a prompt computed on one, its answer written on another; and roles."""
