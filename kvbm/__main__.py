"""`python -m kvbm` is `kvbm`."""

from kvbm.cli import program

if __name__ == "__main__":
    program()
