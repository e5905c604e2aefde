"""Settings of the whole test tree. `harness` is importable everywhere (pythonpath in pyproject)."""
