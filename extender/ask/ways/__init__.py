"""What would let a pod or a gang start, one file for each kind of change; each way is verified by our own filter."""
