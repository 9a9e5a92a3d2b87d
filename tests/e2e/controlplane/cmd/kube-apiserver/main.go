// Command kube-apiserver is the API server of the Kubernetes release named in go.mod, unchanged.
package main

import (
	"os"
	_ "time/tzdata" // CronJob time zones must work on a machine without a zone database

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
