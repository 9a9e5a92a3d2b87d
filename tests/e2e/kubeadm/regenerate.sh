#!/bin/sh
# Writes go.mod and go.sum for one Kubernetes release:  ./regenerate.sh 1.37.0
#
# The replacements are those of ../controlplane/regenerate.sh, which has the reason.
set -eu
cd "$(dirname "$0")"
siblings=v0.${1#1.}

rm -f go.mod go.sum
upstream=$(go mod download -json "k8s.io/kubernetes@v$1" | sed -n 's/^\t"GoMod": "\(.*\)",\{0,1\}$/\1/p')
{
	echo "module gpu-extender.io/kubeadm"
	echo
	grep '^go ' "$upstream"
	echo
	grep '^godebug ' "$upstream"
	echo
	echo "tool k8s.io/kubernetes/cmd/kubeadm"
	echo
	echo "require k8s.io/kubernetes v$1"
	echo
	echo "replace ("
	sed -n "s|^\t\(k8s.io/[^ ]*\) => ./staging/.*|	\1 => \1 $siblings|p" "$upstream"
	echo ")"
} > go.mod
go mod tidy
