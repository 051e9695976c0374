"""Pure state machine of metadata commands: nodes, streams and leaders.

Same commands in the same order, same state and same snapshot bytes, in every process and every version
that reads the same catalogue format. A command carries all that it needs of chance or clock (an incarnation,
a time); limits and rules that may differ between versions are checked before a command is proposed, never
here.
"""
