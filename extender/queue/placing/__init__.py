"""The joint placement: nodes and GPUs for all pods of a gang at once, inside one domain."""
