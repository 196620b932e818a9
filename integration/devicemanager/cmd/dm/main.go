// SPDX-License-Identifier: Apache-2.0

// Command dm is the kubelet's device manager as a program, for machines without a kubelet. It reads requests from stdin
// and writes replies to stdout, one JSON object on each line (see package protocol). It runs until its stdin ends or it
// gets a signal. Both close all connections, like the end of a kubelet.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/metalplug/metalplug/integration/devicemanager/host"
	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "dm:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	var o protocol.Options
	flags := flag.NewFlagSet("dm", flag.ExitOnError)
	flags.StringVar(&o.DevicePlugins, "device-plugins", "/var/lib/kubelet/device-plugins", "`directory` of kubelet.sock")
	flags.StringVar(&o.PodResources, "pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock", "`socket` of PodResources, empty for none")
	flags.StringVar(&o.TopologyPolicy, "topology-policy", "none", "none, best-effort, restricted or single-numa-node")
	flags.IntVar(&o.NUMANodes, "numa", 1, "number of NUMA nodes")
	flags.DurationVar(&o.FirstBatch, "first-batch", 50*time.Millisecond, "from kubelet.sock to the admission of --pods")
	flags.IntVar(&o.Verbosity, "v", 0, "log level of the device manager, on stderr")
	pods := flags.String("pods", "", "`file` with the pods of the first batch, JSON as in protocol.Pod")
	flags.BoolVar(&o.Watch, "watch", false, "write a line each time the node's capacity changes")
	forever := flags.Bool("forever", false, "do not end with stdin")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := readPods(*pods, &o); err != nil {
		return err
	}
	if err := host.SetVerbosity(o.Verbosity); err != nil {
		return err
	}
	if *forever {
		in = io.MultiReader(in, never{})
	}
	return host.Serve(o, in, out)
}

func readPods(path string, o *protocol.Options) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read pods: %w", err)
	}
	if err := json.Unmarshal(text, &o.Pods); err != nil {
		return fmt.Errorf("read pods from %s: %w", path, err)
	}
	return nil
}

// never is an input that never ends and has no data.
type never struct{}

func (never) Read([]byte) (int, error) { select {} }
