#!/bin/sh
# Writes go.mod and go.sum for one release of Prometheus Operator:  ./regenerate.sh 0.85.0
set -eu
cd "$(dirname "$0")"

rm -f go.mod go.sum
{
	echo "module gpu-extender.io/prometheusoperator"
	echo
	echo "go 1.24.0"
	echo
	echo "require github.com/prometheus-operator/prometheus-operator v$1"
} > go.mod
go mod download github.com/prometheus-operator/prometheus-operator
