"""What really ran: signatures, fingerprints, effective parameters, the artifact cache."""
