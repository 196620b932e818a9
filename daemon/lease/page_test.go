// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/lease"
)

var update = flag.Bool("update", false, "write docs/lease.md from the table")

// TestPage compares docs/lease.md with the table that the program uses.
func TestPage(t *testing.T) {
	const file = "../../docs/lease.md"
	want := page()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s differs from the table (to write it, run go test ./daemon/lease -run TestPage -update): %v", file, err)
	}
}

func page() string {
	var b strings.Builder
	b.WriteString(introduction)
	b.WriteString("## Picture\n\nThe picture shows only events that change the state.\n\n```mermaid\nstateDiagram-v2\n")
	name := func(s lease.State) string { return strings.ReplaceAll(string(s), "-", "_") }
	for _, s := range lease.States {
		fmt.Fprintf(&b, "    state \"%s\" as %s\n", s, name(s))
	}
	for _, from := range lease.States {
		labels := make(map[lease.State][]string)
		for _, r := range lease.Table {
			for _, state := range r.From {
				if state == from && r.To != "" && r.To != from {
					labels[r.To] = append(labels[r.To], string(r.Event))
				}
			}
		}
		for _, to := range lease.States {
			if events := labels[to]; len(events) > 0 {
				fmt.Fprintf(&b, "    %s --> %s: %s\n", name(from), name(to), strings.Join(unique(events), ", "))
			}
		}
	}
	b.WriteString("```\n\n## Table\n\nFor each state and event, the first row whose condition is met applies.\n\n")
	b.WriteString("| event | in state | if | next state | effects |\n|---|---|---|---|---|\n")
	for _, r := range lease.Table {
		to := string(r.To)
		if to == "" {
			to = "unchanged"
		}
		var from, effects []string
		for _, s := range r.From {
			from = append(from, string(s))
		}
		for _, do := range r.Do {
			effects = append(effects, string(do))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.Event, strings.Join(from, ", "), r.If, to, strings.Join(effects, "; "))
	}
	return b.String()
}

func unique(texts []string) []string {
	seen := make(map[string]bool)
	var all []string
	for _, text := range texts {
		if !seen[text] {
			seen[text] = true
			all = append(all, text)
		}
	}
	return all
}

const introduction = `# A device's lease

Each device has one lease. The lease is the device's state between two tenants. A tenant is a pod or a claim. The package
` + "`daemon/lease`" + ` contains the table below as data, and a test generates this page from the table.

A lease also records:

- whether a tenant has the device, and whether a container of this tenant was started
- the UIDs of the tenants
- whether a tenant on this node wrote the disk's content
- why the last preparation or clean-up failed

metalplugd saves all leases in ` + "`/var/lib/metalplug/state.json`" + ` in the background. A crash loses all changes since the last
completed write. metalplugd waits until all changes are saved:

- before it erases a disk
- after an erasure, before it reports that the disk is clean
- before a container starts with a disk, or with a device that is reset after its pod has ended

The test ` + "`TestExplore`" + ` visits each device state that the kubelet, pods, the operator, hardware changes and crashes can
cause. In each state, the test checks that these statements are true:

- metalplug erases a disk only if the data is from a tenant on this node, or if an operator has ordered the erasure.
- No tenant gets a disk that contains another tenant's data.
- While the kubelet has allocated a device, the device's ID stays in the device list.
- If one of a pod's containers starts again, metalplug does not erase the pod's data.
- After a boot, metalplug treats a disk's content as a tenant's data only in two cases. Either the content has not changed
  since the tenant ended, or the same tenant starts a container with the disk again. If a tenant held a disk when the node went
  down, another machine may have used the disk. If this tenant does not start again, the disk becomes unproven, and the
  operator decides what happens to the disk.
- A container starts only if the kubelet's checkpoint names the container's pod.
- A device in any state can become free, or can reach a state in which it waits for an operator's order.

`
