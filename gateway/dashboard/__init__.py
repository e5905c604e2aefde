"""The live page at `/kvgate/` of `admin` locations: what it shows, how it is fed, and its files.

Invariant: nothing here runs per token; what is read is what the worker has in memory anyway, once
a second, and only while somebody looks.
"""
