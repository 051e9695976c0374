"""The metadata log applied to the catalogue, and the group that holds both."""
