// Command selectors evaluates CEL selectors of devices with the code of kube-scheduler's allocator: JSON lines in,
// one word a line out: true, false, error (at evaluation) or invalid (at compilation), and the message behind it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Expression string
	Driver     string
	Device     resourceapi.Device
}

func answer(cache *cel.Cache, asked question) (word, message string) {
	compiled := cache.GetOrCompile(asked.Expression)
	if compiled.Error != nil {
		return "invalid", compiled.Error.Error()
	}
	matches, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   asked.Driver,
		AllowMultipleAllocations: asked.Device.AllowMultipleAllocations,
		Attributes:               asked.Device.Attributes,
		Capacity:                 asked.Device.Capacity,
	})
	if err != nil {
		return "error", err.Error()
	}
	return fmt.Sprint(matches), ""
}

func main() {
	// The features are those of 1.37 that are on without being asked for.
	cache := cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		word, message := answer(cache, asked)
		fmt.Fprintln(out, word, strings.ReplaceAll(message, "\n", " "))
	}
}
