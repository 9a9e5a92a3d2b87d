#!/bin/sh
# Writes go.mod and go.sum for one release of actionlint:  ./regenerate.sh 1.7.12
set -eu
cd "$(dirname "$0")"

rm -f go.mod go.sum
{
	echo "module gpu-extender.io/actionlint"
	echo
	echo "go 1.26.0"
	echo
	echo "tool github.com/rhysd/actionlint/cmd/actionlint"
	echo
	echo "require github.com/rhysd/actionlint v$1"
} > go.mod
go mod tidy
