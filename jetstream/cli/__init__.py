"""The jetstream command."""
