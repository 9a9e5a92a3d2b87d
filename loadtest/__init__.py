"""A load test for gpu-extender and any deployment of it; locust makes the load. docs/loadtest.md has the options."""
