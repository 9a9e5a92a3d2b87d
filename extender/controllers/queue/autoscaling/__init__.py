"""What an autoscaler sees of the queue."""
