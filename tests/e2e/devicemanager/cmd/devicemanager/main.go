// Command devicemanager is kubelet's device manager and topology manager of the release named in go.mod, unchanged,
// without the rest of kubelet. It serves the real sockets (device plugin registration, PodResources) and is told what
// kubelet would hear from the API server: one JSON object a line on standard input, one answer a line on standard output.
//
//	{"op": "admit", "pod": {...}}   {"seconds": 0.003, "devices": {"c1": {"nvidia.com/gpu": ["GPU-..."]}}} or {"error": "..."}
//	{"op": "known", "pod": {...}}   a pod that was admitted before this process began (after a restart)
//	{"op": "remove", "uid": "..."}  the pod has ended
//	{"op": "list"}                  {"pods": {"uid": {"c1": {...}}}}
//	{"op": "capacity"}              {"capacity": {...}, "allocatable": {...}}
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	cadvisorapi "github.com/google/cadvisor/lib/model"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// NewManagerImpl is this function with the folder /var/lib/kubelet/device-plugins, which a test may not have.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(klog.Logger, string, []cadvisorapi.Node, topologymanager.Store) (*devicemanager.ManagerImpl, error)

// node is what kubelet knows of its pods, and the two managers that admit them.
type node struct {
	logger   klog.Logger
	devices  *devicemanager.ManagerImpl
	topology topologymanager.Manager

	mutex sync.Mutex
	pods  map[string]*v1.Pod
}

type request struct {
	Op  string  `json:"op"`
	UID string  `json:"uid"`
	Pod *v1.Pod `json:"pod"`
}

type answer struct {
	Error       string                         `json:"error,omitempty"`
	Reason      string                         `json:"reason,omitempty"`
	Seconds     float64                        `json:"seconds"`
	Devices     map[string]map[string][]string `json:"devices,omitempty"`
	Pods        map[string]held                `json:"pods,omitempty"`
	Capacity    map[string]int64               `json:"capacity,omitempty"`
	Allocatable map[string]int64               `json:"allocatable,omitempty"`
}

// held is container -> resource -> device ids.
type held map[string]map[string][]string

func main() {
	folder := flag.String("folder", "", "the device plugin folder: kubelet.sock and the checkpoint")
	podResources := flag.String("pod-resources", "", "the socket of the PodResources API; empty: none")
	policy := flag.String("topology-policy", "none", "of the topology manager")
	scope := flag.String("topology-scope", "container", "of the topology manager")
	numa := flag.Int("numa", 1, "NUMA nodes of the machine")
	klog.InitFlags(nil)
	flag.Parse()
	if err := run(*folder, *podResources, *policy, *scope, *numa); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(folder, podResources, policy, scope string, numa int) error {
	logger := klog.Background()
	var machine []cadvisorapi.Node
	for id := 0; id < numa; id++ {
		machine = append(machine, cadvisorapi.Node{Id: id})
	}
	topology, err := topologymanager.NewManager(logger, machine, policy, scope, nil)
	if err != nil {
		return err
	}
	devices, err := newManagerImpl(logger, filepath.Join(folder, "kubelet.sock"), machine, topology)
	if err != nil {
		return err
	}
	topology.AddHintProvider(logger, devices)
	n := &node{logger: logger, devices: devices, topology: topology, pods: map[string]*v1.Pod{}}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := devices.Start(logger, n.GetActivePods, ready, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return err
	}
	if podResources != "" {
		if err := n.servePodResources(podResources); err != nil {
			return err
		}
	}
	out := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	if err := out.Encode(answer{}); err != nil { // ready
		return err
	}
	for lines.Scan() {
		var said request
		if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
			return err
		}
		if err := out.Encode(n.do(said)); err != nil {
			return err
		}
	}
	return devices.Stop(logger)
}

func (n *node) do(said request) answer {
	switch said.Op {
	case "admit":
		return n.admit(said.Pod)
	case "known":
		n.put(said.Pod)
		return answer{}
	case "remove":
		n.drop(said.UID)
		return answer{}
	case "list":
		n.devices.UpdateAllocatedDevices(n.logger)
		found := map[string]held{}
		for _, pod := range n.GetPods() {
			found[string(pod.UID)] = n.held(pod)
		}
		return answer{Pods: found}
	case "capacity":
		capacity, allocatable, _ := n.devices.GetCapacity(n.logger)
		return answer{Capacity: numbers(capacity), Allocatable: numbers(allocatable)}
	}
	return answer{Error: "no such op: " + said.Op}
}

// admit asks the topology manager, as kubelet does; that one asks the device manager, container by container.
func (n *node) admit(pod *v1.Pod) answer {
	n.put(pod)
	begun := time.Now()
	result := n.topology.Admit(context.Background(), &lifecycle.PodAdmitAttributes{Pod: pod, Operation: lifecycle.AddOperation})
	took := time.Since(begun).Seconds()
	if !result.Admit {
		n.drop(string(pod.UID))
		return answer{Error: result.Message, Reason: result.Reason, Seconds: took}
	}
	// PreStartContainer follows when the containers are made.
	for _, container := range pod.Spec.Containers {
		if _, err := n.devices.GetDeviceRunContainerOptions(context.Background(), pod, &container); err != nil {
			return answer{Error: err.Error(), Reason: "CreateContainer", Seconds: took}
		}
	}
	return answer{Seconds: took, Devices: n.held(pod)}
}

func (n *node) held(pod *v1.Pod) held {
	found := held{}
	for _, container := range append(append([]v1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		ids := map[string][]string{}
		for resource, instances := range n.devices.GetDevices(string(pod.UID), container.Name) {
			for id := range instances {
				ids[resource] = append(ids[resource], id)
			}
			sort.Strings(ids[resource])
		}
		if len(ids) > 0 {
			found[container.Name] = ids
		}
	}
	return found
}

func (n *node) put(pod *v1.Pod) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.pods[string(pod.UID)] = pod
}

func (n *node) drop(uid string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	delete(n.pods, uid)
}

func numbers(amounts v1.ResourceList) map[string]int64 {
	found := map[string]int64{}
	for name, amount := range amounts {
		found[string(name)] = amount.Value()
	}
	return found
}

// ---- PodResources: kubelet's own server, over what the managers here know

func (n *node) servePodResources(socket string) error {
	server := grpc.NewServer()
	podresourcesapi.RegisterPodResourcesListerServer(server, podresources.NewV1PodResourcesServer(context.Background(),
		podresources.PodResourcesProviders{Pods: n, Devices: n, Cpus: none{}, Memory: none{}, DynamicResources: none{}}))
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() { _ = server.Serve(listener) }()
	return nil
}

func (n *node) GetActivePods() []*v1.Pod { return n.GetPods() }

func (n *node) GetPods() []*v1.Pod {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	var found []*v1.Pod
	for _, pod := range n.pods {
		found = append(found, pod)
	}
	sort.Slice(found, func(a, b int) bool { return strings.Compare(string(found[a].UID), string(found[b].UID)) < 0 })
	return found
}

func (n *node) GetPodByName(namespace, name string) (*v1.Pod, bool) {
	for _, pod := range n.GetPods() {
		if pod.Namespace == namespace && pod.Name == name {
			return pod, true
		}
	}
	return nil, false
}

func (n *node) UpdateAllocatedDevices(logger klog.Logger) { n.devices.UpdateAllocatedDevices(logger) }

func (n *node) GetDevices(podUID, containerName string) []*podresourcesapi.ContainerDevices {
	return told(n.devices.GetDevices(podUID, containerName))
}

func (n *node) GetAllocatableDevices(logger klog.Logger) []*podresourcesapi.ContainerDevices {
	return told(n.devices.GetAllocatableDevices(logger))
}

// told is one entry for each device and NUMA node, as kubelet's container manager tells it.
func told(known devicemanager.ResourceDeviceInstances) []*podresourcesapi.ContainerDevices {
	var found []*podresourcesapi.ContainerDevices
	for resource, instances := range known {
		for id, device := range instances {
			entry := func(at *podresourcesapi.TopologyInfo) {
				found = append(found, &podresourcesapi.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}, Topology: at})
			}
			if device.GetTopology() == nil {
				entry(nil)
			}
			for _, numa := range device.GetTopology().GetNodes() {
				entry(&podresourcesapi.TopologyInfo{Nodes: []*podresourcesapi.NUMANode{{ID: numa.GetID()}}})
			}
		}
	}
	return found
}

// none answers for what this program has not: CPU, memory and claims managers.
type none struct{}

func (none) GetCPUs(*v1.Pod, *v1.Container) []int64 { return nil }
func (none) GetPodCPUs(string) []int64              { return nil }
func (none) GetAllocatableCPUs() []int64            { return nil }
func (none) GetMemory(klog.Logger, *v1.Pod, *v1.Container) []*podresourcesapi.ContainerMemory {
	return nil
}
func (none) GetPodMemory(klog.Logger, string) []*podresourcesapi.ContainerMemory { return nil }
func (none) GetAllocatableMemory(klog.Logger) []*podresourcesapi.ContainerMemory { return nil }
func (none) GetDynamicResources(klog.Logger, *v1.Pod, *v1.Container) []*podresourcesapi.DynamicResource {
	return nil
}
