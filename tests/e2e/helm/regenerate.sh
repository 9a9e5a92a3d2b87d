#!/bin/sh
# Writes go.mod and go.sum for one release of Helm:  ./regenerate.sh 4.3.1
set -eu
cd "$(dirname "$0")"

rm -f go.mod go.sum
{
	echo "module gpu-extender.io/helm"
	echo
	echo "go 1.26.0"
	echo
	echo "tool helm.sh/helm/v4/cmd/helm"
	echo
	echo "require helm.sh/helm/v4 v$1"
} > go.mod
go mod tidy
