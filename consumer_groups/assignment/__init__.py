"""Who is to own which partition: the assignors and the words that they share."""
