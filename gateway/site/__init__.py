"""What a configuration makes of a request: servers, locations, variables, limits, headers, TLS."""
