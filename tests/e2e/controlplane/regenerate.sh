#!/bin/sh
# Writes the Go module files for one Kubernetes release:
#
#   ./regenerate.sh 1.37.0              go.mod, go.sum (the default release)
#   ./regenerate.sh 1.36.3 go-1.36      go-1.36.mod, go-1.36.sum (used with -modfile)
#
# k8s.io/kubernetes points its own sibling modules at folders inside its repository, and such replacements
# do not reach a module that depends on it. So every sibling is replaced here by its published version.
set -eu
cd "$(dirname "$0")"
release=$1
name=${2:-go}
file=$name.mod
siblings=v0.${release#1.}

rm -f "$file" "$name.sum"
upstream=$(go mod download -json "k8s.io/kubernetes@v$release" | sed -n 's/^\t"GoMod": "\(.*\)",\{0,1\}$/\1/p')
{
	echo "module gpu-extender.io/controlplane"
	echo
	grep '^go ' "$upstream"
	echo
	grep '^godebug ' "$upstream"
	echo
	echo "require ("
	echo "	go.etcd.io/etcd/server/v3 $(sed -n 's|^\tgo.etcd.io/etcd/server/v3 \([^ ]*\).*|\1|p' "$upstream")"
	echo "	k8s.io/component-base $siblings"
	echo "	k8s.io/kubernetes v$release"
	echo ")"
	echo
	echo "replace ("
	sed -n "s|^\t\(k8s.io/[^ ]*\) => ./staging/.*|	\1 => \1 $siblings|p" "$upstream"
	echo ")"
} > "$file"
go mod tidy -modfile="$file"
