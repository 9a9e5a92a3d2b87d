"""What four public texts about GPU scheduling state, typed as a reader would type it, and what the commands answer.

The YAML in `yaml/` is theirs, word by word. Each test quotes the statement that it is about.
"""
