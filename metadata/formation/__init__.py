"""Formation: nodes that are not configured with each other agree, once, on the voters. Pure."""
