// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
)

const (
	firstGPU = "GPU-6513270e-269e-4d37-b2a7-4de452e6b438" // at 0000:18:00.0, /dev/nvidia2
	lastDisk = "nvme-eui.36344830545001270025384300000001"
	gpus     = "[[resource]]\nname = \"nvidia.com/gpu\"\nclass = \"gpu\"\n"
)

// Exit codes of metalplugctl, as in docs/operating.md and metalplugctl(1).
const (
	exitOK       = 0
	exitProblem  = 1
	exitNoAnswer = 3
)

// fault is a reason why a node shows too few devices, with the command that diagnoses it.
type fault struct {
	name      string
	hardware  change   // changes the hardware of the recording
	resources string   // configured resources, or empty for the defaults
	before    []string // a command that runs first, like another program on the node
	stopped   bool     // the daemon does not run
	ask       []string
	code      int    // expected exit code of ask
	cause     string // expected text in the output
}

// change replaces a text in the recording. The zero value changes nothing.
type change struct{ from, to string }

// faults has the faults about which operators ask most.
var faults = []fault{
	{
		name: "a disk is mounted",
		ask:  []string{"why", "/dev/nvme0n1"}, code: exitProblem, cause: "in use: nvme0n1p2 is mounted on /",
	},
	{
		name: "a node is missing", hardware: change{"F: /dev/nvidia-uvm=\n", ""},
		ask: []string{"why", "18:00.0"}, code: exitProblem, cause: "/dev/nvidia-uvm is missing",
	},
	{
		name: "the pattern is wrong", resources: gpus + "match = { DRIVER = \"NVIDIA\" }\n",
		ask: []string{"why", firstGPU}, code: exitProblem, cause: `DRIVER is "nvidia", not "NVIDIA"`,
	},
	{
		name: "a rule excludes it", resources: gpus + "exclude = { PCI_SLOT_NAME = \"0000:18:*\" }\n",
		ask: []string{"why", "0000:18:00.0"}, code: exitProblem, cause: `excluded by PCI_SLOT_NAME = "0000:18:*"`,
	},
	{
		name: "a rule excludes it, and only its node is known", resources: gpus + "exclude = { PCI_SLOT_NAME = \"0000:18:*\" }\n",
		ask: []string{"why", "/dev/nvidia2"}, code: exitProblem, cause: `excluded by PCI_SLOT_NAME = "0000:18:*" (`,
	},
	{
		name: "its kind is not configured", resources: gpus,
		ask: []string{"why", "/dev/infiniband/uverbs0"}, code: exitProblem, cause: `name = "metalplug.io/infiniband" class = "infiniband"`,
	},
	{
		name: "no resource is configured for it", resources: gpus,
		ask: []string{"why", "/dev/nvme1n1"}, code: exitProblem, cause: "no resource of class nvme is configured",
	},
	{
		name: "it is unhealthy", hardware: change{"A: state=live\\n\n", "A: state=dead\\n\n"},
		ask: []string{"list"}, code: exitOK, cause: "controller nvme1 is dead",
	},
	{
		name: "an operator has cordoned it", before: []string{"cordon", lastDisk, "--reason", "ask Ann"},
		ask: []string{"list"}, code: exitOK, cause: "cordoned: ask Ann (by ",
	},
	{
		name: "the kubelet does not run",
		ask:  []string{"doctor", "--config", "try.toml"}, code: exitProblem, cause: "the kubelet is not running",
	},
	{
		name: "the kubelet is not connected",
		ask:  []string{"status"}, code: exitProblem, cause: "8 of 8 healthy; kubelet not connected",
	},
	{
		name: "it is not there at all",
		ask:  []string{"why", "/dev/nvme9n1"}, code: exitProblem, cause: "no such device",
	},
	{
		name: "the daemon does not run", stopped: true,
		ask: []string{"list"}, code: exitNoAnswer, cause: "systemctl status metalplugd",
	},
}

// answer is the output of the diagnostic command.
type answer struct {
	text string
	code int
}

// play prepares the fault on a separate node and runs the command. An error means that the node failed, and not that the
// answer is wrong.
func (f fault) play(ctx context.Context, programs string) (a answer, err error) {
	hardware := gpuServer()
	if !strings.Contains(hardware, f.hardware.from) {
		return a, fmt.Errorf("spoil the hardware: the recording has no %q", f.hardware.from)
	}
	n, err := newNode(programs, strings.ReplaceAll(hardware, f.hardware.from, f.hardware.to), f.resources)
	if err != nil {
		return a, err
	}
	defer func() {
		if removed := n.remove(); err == nil {
			err = removed
		}
	}()
	if !f.stopped {
		if err := n.boot(); err != nil {
			return a, err
		}
	}
	if f.before != nil {
		switch out, code, err := n.ctl(ctx, f.before...); {
		case err != nil:
			return a, fmt.Errorf("run %q: %w: %s", f.before, err, out)
		case code != exitOK:
			return a, fmt.Errorf("run %q: exit %d: %s", f.before, code, out)
		}
	}
	a.text, a.code, err = n.ctl(ctx, f.ask...)
	return a, err
}

// checkAnswer reports whether an answer contains the cause, possibly on several lines, and has the expected exit code.
func (f fault) checkAnswer(a answer) bool {
	return a.code == f.code && strings.Contains(strings.Join(strings.Fields(a.text), " "), f.cause)
}
