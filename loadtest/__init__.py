"""A load test for gpu-extender and any deployment of it; locust makes the load (docs/internals/loadtest.md)."""
