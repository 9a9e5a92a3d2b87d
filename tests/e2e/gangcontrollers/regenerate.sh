#!/bin/sh
# Writes go.mod and go.sum for one release of each controller: JobSet, LeaderWorkerSet, KubeRay, Kubeflow Trainer, and of
# controller-gen, which makes Volcano's definitions:  ./regenerate.sh 0.10.1 0.8.0 1.5.0 2.0.0 0.19.0
# Take those that use the same minor release of Kubernetes' libraries: they are built as one module.
set -eu
cd "$(dirname "$0")"

rm -f go.mod go.sum
{
	echo "module gpu-extender.io/gangcontrollers"
	echo
	echo "go 1.25.0"
	echo
	echo "tool ("
	echo "	github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
	echo "	github.com/ray-project/kuberay/ray-operator"
	echo "	sigs.k8s.io/controller-tools/cmd/controller-gen"
	echo "	sigs.k8s.io/jobset"
	echo "	sigs.k8s.io/lws/cmd"
	echo ")"
	echo
	echo "require ("
	echo "	github.com/kubeflow/trainer/v2 v$4"
	echo "	github.com/ray-project/kuberay/ray-operator v$3"
	echo "	sigs.k8s.io/controller-tools v$5"
	echo "	sigs.k8s.io/jobset v$1"
	echo "	sigs.k8s.io/lws v$2"
	echo ")"
} > go.mod
go mod tidy
