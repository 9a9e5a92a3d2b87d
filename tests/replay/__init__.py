"""Recorded requests, replayed: the same cluster and the same requests must give the same answers, byte by byte."""
