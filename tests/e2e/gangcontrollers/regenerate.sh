#!/bin/sh
# Writes go.mod and go.sum for one release of each controller:  ./regenerate.sh 0.10.1 0.8.0
# Take two that use the same minor release of Kubernetes' libraries: they are built as one module.
set -eu
cd "$(dirname "$0")"

rm -f go.mod go.sum
{
	echo "module gpu-extender.io/gangcontrollers"
	echo
	echo "go 1.25.0"
	echo
	echo "tool ("
	echo "	sigs.k8s.io/jobset"
	echo "	sigs.k8s.io/lws/cmd"
	echo ")"
	echo
	echo "require ("
	echo "	sigs.k8s.io/jobset v$1"
	echo "	sigs.k8s.io/lws v$2"
	echo ")"
} > go.mod
go mod tidy
