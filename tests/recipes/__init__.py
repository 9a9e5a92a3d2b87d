"""Tests of docs/examples/saving: what training pods do when they are asked to save."""
