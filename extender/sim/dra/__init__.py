"""Simulated DRA drivers: what they publish for a machine."""
