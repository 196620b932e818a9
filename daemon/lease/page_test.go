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
		t.Errorf("%s is not what the table says (go test ./daemon/lease -run TestPage -update writes it): %v", file, err)
	}
}

func page() string {
	var b strings.Builder
	b.WriteString(introduction)
	b.WriteString("## Picture\n\nEvents that leave the state as it is are not drawn.\n\n```mermaid\nstateDiagram-v2\n")
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
	b.WriteString("```\n\n## Table\n\nOf the rows for a state and an event the first applies whose condition is met.\n\n")
	b.WriteString("| event | in state | if | next state | effects |\n|---|---|---|---|---|\n")
	for _, r := range lease.Table {
		to := string(r.To)
		if to == "" {
			to = "the same"
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

const introduction = `# The lease of a device

Each device has one lease. The lease says where the device stands between two tenants. A tenant is a pod or a claim.
Package ` + "`daemon/lease`" + ` has the table below as data, and a test writes this page from it.

A lease also records whether a tenant has the device and whether a container was started with it, the UIDs of its tenants,
whether a tenant of this node wrote what is on the disk, and why the last work failed. metalplugd keeps all of it in
` + "`/var/lib/metalplug/state.json`" + `.

The test ` + "`TestExplore`" + ` visits every state that the kubelet, pods, the operator, hardware changes and crashes can lead to. It
holds these promises in each:

- metalplug erases no byte that is not a tenant's of this node, unless the operator ordered it for this disk.
- No tenant gets a disk with the data of another tenant.
- The ID of a device stays in the device list while the kubelet holds it.
- A start that is repeated erases nothing that its own pod wrote.
- After a boot, content counts as a tenant's if it is what was found after the tenant had gone, or if the same tenant starts a
  container with it again. A disk that a tenant held when the machine went down may have served elsewhere. If the tenant does not
  start again, the disk is unproven after it, and the operator decides.
- A container starts only if the kubelet's checkpoint names its pod.
- From every state there is a way to a free device, or to an order of the operator.

`
