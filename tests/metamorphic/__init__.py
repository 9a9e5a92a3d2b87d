"""The same cluster stated in another way gets the same answers: names, order, labels, times and forms of objects that
mean the same."""
