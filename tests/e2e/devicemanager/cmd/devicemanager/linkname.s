// An assembler file, empty, lets main.go declare a function without its body (go:linkname).
