"""The remote tier: an object store that several machines share, kept off the way of the others."""


class StoreError(Exception):
    """The store did not answer, or said no; the text is for people and names no secret."""
