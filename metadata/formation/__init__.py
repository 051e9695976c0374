"""How nodes that nobody has told of each other agree, once, on who the voters are. Pure."""
