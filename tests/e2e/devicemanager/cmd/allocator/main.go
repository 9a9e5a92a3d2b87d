// Command allocator is kube-scheduler's allocator of ResourceClaims, of the release named in go.mod, for one node at a
// time: one JSON object a line on standard input, one answer a line on standard output.
//
//	{"node": {...}, "slices": [...], "classes": [...], "allocated": [...], "claims": [...]}
//
// `allocated` are claims with an allocation. The answer has the allocation of each of `claims`, null where they do not
// fit, or why they cannot be allocated anywhere; `tooLong` where the search was ended after a second:
//
//	{"allocations": [{"devices": {"results": [...]}}]} or {"allocations": null} or {"error": "...", "tooLong": true}
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type request struct {
	Node      *v1.Node                     `json:"node"`
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Classes   classes                      `json:"classes"`
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`
}

type answer struct {
	Allocations []resourceapi.AllocationResult `json:"allocations"`
	Error       string                         `json:"error,omitempty"`
	TooLong     bool                           `json:"tooLong,omitempty"`
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("no DeviceClass %s", name)
}

// longest is how long one answer may take: kube-scheduler gives 10 seconds to a node.
const longest = time.Second

// features are those that are on in kube-scheduler by default.
var features = structured.Features{
	AdminAccess:             true,
	ConsumableCapacity:      true,
	DeviceBindingAndStatus:  true,
	DeviceTaints:            true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true,
	PrioritizedList:         true,
}

// taken is what the claims hold, as kube-scheduler's plugin counts it (foreachAllocatedDevice).
func taken(claims []*resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	return state
}

func main() {
	cache := cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked request
		var reply answer
		if err := json.Unmarshal(line, &asked); err != nil {
			reply.Error = err.Error()
		} else {
			allocator, err := structured.NewAllocator(
				context.Background(), features, taken(asked.Allocated), asked.Classes, asked.Slices, cache)
			if err == nil {
				ctx, cancel := context.WithTimeout(context.Background(), longest)
				reply.Allocations, err = allocator.Allocate(ctx, asked.Node, asked.Claims)
				reply.TooLong = ctx.Err() != nil
				cancel()
			}
			if err != nil {
				reply.Error = err.Error()
			}
		}
		if out.Encode(reply) != nil {
			return
		}
	}
}
