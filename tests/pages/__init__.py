"""The pages of docs/ that the code prints: `python -m tests.pages` writes all, with a NAME prints one."""
