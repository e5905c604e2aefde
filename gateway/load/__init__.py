"""Load: what is measured of requests that were sent to an endpoint, and what it says of an SLO."""
