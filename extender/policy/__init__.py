"""Rules, scorers and cost terms, and what each of them promises."""
