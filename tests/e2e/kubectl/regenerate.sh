#!/bin/sh
# Writes go.mod and go.sum for one Kubernetes release:  ./regenerate.sh 1.37.0
set -eu
cd "$(dirname "$0")"
staging=v0.${1#1.}

rm -f go.mod go.sum
{
	echo "module gpu-extender.io/kubectl"
	echo
	echo "go 1.26.0"
	echo
	echo "require ("
	for module in client-go component-base cri-streaming kubectl; do
		echo "	k8s.io/$module $staging"
	done
	echo ")"
} > go.mod
go mod tidy
