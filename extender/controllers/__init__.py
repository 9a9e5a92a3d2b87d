"""What acts on its own, beside the requests: the watches, the Binding that the bind verb asks for."""
