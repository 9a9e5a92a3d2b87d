"""Answers people: each question reads a cluster that nothing else changes. Live that is a fork of the server."""
