"""The client for programs without asyncio."""
