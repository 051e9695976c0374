"""Tiers on Azure's emulator: needs what ``with_azurite`` makes, and is skipped where it is not there."""
