#!/bin/sh
# Writes go.mod and go.sum for one Kubernetes release:  ./regenerate.sh 1.37.0
# The siblings of k8s.io/kubernetes are replaced as in ../controlplane, whose script says why.
set -eu
cd "$(dirname "$0")"
release=$1
siblings=v0.${release#1.}

rm -f go.mod go.sum
upstream=$(go mod download -json "k8s.io/kubernetes@v$release" | sed -n 's/^\t"GoMod": "\(.*\)",\{0,1\}$/\1/p')
{
	echo "module gpu-extender.io/devicemanager"
	echo
	grep '^go ' "$upstream"
	echo
	grep '^godebug ' "$upstream"
	echo
	echo "require k8s.io/kubernetes v$release"
	echo
	echo "replace ("
	sed -n "s|^\t\(k8s.io/[^ ]*\) => ./staging/.*|	\1 => \1 $siblings|p" "$upstream"
	echo ")"
} > go.mod
go mod tidy
