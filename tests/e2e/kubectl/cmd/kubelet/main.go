// Command kubelet serves the one path of a kubelet that `kubectl port-forward` needs, by kubelet's own streaming code:
// the API server connects to it as to the kubelet of a node.
//
//	kubelet ADDRESS CERTIFICATE KEY NAMESPACE/POD:PORT=ADDRESS...
//
// A simulated pod has no network namespace: the last arguments name where its loopback ports are served.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

const (
	path    = "/portForward/"
	idle    = time.Hour
	created = 30 * time.Second // kubelet's limit for the creation of a stream
)

// pods has the address of each NAMESPACE/POD:PORT.
type pods map[string]string

// PortForward copies between a stream of the API server and a port of a pod.
func (p pods) PortForward(ctx context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	address, known := p[fmt.Sprintf("%s:%d", pod, port)]
	if !known {
		return fmt.Errorf("nothing listens on port %d of pod %s", port, pod)
	}
	var dialer net.Dialer
	there, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer there.Close()
	go func() {
		io.Copy(there, stream)            //nolint:errcheck // a client that has left
		there.(*net.TCPConn).CloseWrite() //nolint:errcheck // the pod ends its half then
	}()
	_, err = io.Copy(stream, there)
	return err
}

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: kubelet ADDRESS CERTIFICATE KEY NAMESPACE/POD:PORT=ADDRESS...")
	}
	served := pods{}
	for _, argument := range os.Args[4:] {
		pod, address, _ := strings.Cut(argument, "=")
		served[pod] = address
	}
	http.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		options, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		pod := strings.TrimPrefix(r.URL.Path, path)
		log.Printf("%s %s upgrade=%s", r.Method, r.URL, r.Header.Get("Upgrade"))
		portforward.ServePortForward(w, r, served, pod, "", options, idle, created, portforward.SupportedProtocols)
	})
	log.Fatal(http.ListenAndServeTLS(os.Args[1], os.Args[2], os.Args[3], nil))
}
