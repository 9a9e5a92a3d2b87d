"""The slow, obvious twins of the kernels: one module for each, of the same name, with the same functions over lists.

They are documentation and oracle. Tests import them, the server never does. A twin states what the answer is, and not
how to find it fast: it sorts where the kernel keeps a heap, and tries all sets where the kernel looks one up.
"""
