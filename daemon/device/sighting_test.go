// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/integration/udevtest"
	"github.com/metalplug/metalplug/udev"
)

// sight is one case of a table, with a recording, changes to it, and the expected sightings.
type sight struct {
	name      string
	recording string        // name of a file in testdata, without its extension
	edits     []string      // pairs of old and new text in the recording
	rules     []device.Rule // nil means one rule for each class, without a match
	want      string        // expected sighting in the format of [formatSightings]
}

// everything offers all hardware of the classes that have a match of their own.
var everything = []device.Rule{
	{Resource: "test/gpu", Class: &device.GPU},
	{Resource: "test/fpga", Class: &device.FPGA},
	{Resource: "test/infiniband", Class: &device.InfiniBand},
	{Resource: "test/nvme", Class: &device.NVMe},
}

func testSights(t *testing.T, sights []sight) {
	t.Helper()
	for _, s := range sights {
		t.Run(s.name, func(t *testing.T) {
			rules := s.rules
			if rules == nil {
				rules = everything
			}
			h, devices := loadMachine(t, s.recording, s.edits...)
			got := formatSightings(inspectAll(h, rules, devices))
			if want := strings.TrimSpace(strings.ReplaceAll(s.want, "\n\t\t\t", "\n")); got != want {
				t.Errorf("saw\n%s\n\nwant\n%s", got, want)
			}
		})
	}
}

// loadMachine makes a machine from a recording in testdata.
func loadMachine(t testing.TB, name string, edits ...string) (*device.Host, []udev.Device) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".umockdev"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for edit := range slices.Chunk(edits, 2) {
		if !strings.Contains(text, edit[0]) {
			t.Fatalf("%s: nothing to replace: %q", name, edit[0])
		}
		text = strings.ReplaceAll(text, edit[0], edit[1])
	}
	return machine(t, text)
}

func machine(t testing.TB, text string) (*device.Host, []udev.Device) {
	t.Helper()
	m := udevtest.New(t, text)
	devices, err := m.Enumerate()
	if err != nil {
		t.Fatal(err)
	}
	root := m.Root()
	return &device.Host{Tree: sysfs.At(root)}, devices
}

func inspectAll(h *device.Host, rules []device.Rule, devices []udev.Device) []device.Sighting {
	var sightings []device.Sighting
	for _, u := range devices {
		sightings = append(sightings, device.Inspect(h, rules, &u)...)
	}
	return sightings
}

// formatSightings formats sightings, one line for the device and one for each of its facts.
func formatSightings(sightings []device.Sighting) string {
	var out strings.Builder
	for _, s := range sightings {
		id := s.Device.ID
		if id == "" {
			id = "(" + filepath.Base(s.Device.SysPath) + ")"
		}
		fmt.Fprintf(&out, "%s", id)
		if s.Device.Model != "" {
			fmt.Fprintf(&out, " %q", s.Device.Model)
		}
		if s.Device.NUMANode >= 0 {
			fmt.Fprintf(&out, " numa%d", s.Device.NUMANode)
		}
		out.WriteByte('\n')
		if s.Offer != nil {
			fmt.Fprintf(&out, "  held back: %v\n", s.Offer)
		}
		if s.Health != nil {
			fmt.Fprintf(&out, "  sick: %v\n", s.Health)
		}
		if s.Warning != "" {
			fmt.Fprintf(&out, "  warning: %s\n", s.Warning)
		}
		for _, c := range s.Counters {
			if c.Value > 0 {
				fmt.Fprintf(&out, "  counted: %s of %s is %d\n", c.Name, filepath.Base(c.SysPath), c.Value)
			}
		}
		for _, n := range s.Allocation.Nodes {
			fmt.Fprintf(&out, "  %s", n.Container)
			if n.Host != n.Container {
				fmt.Fprintf(&out, " = %s", n.Host)
			}
			out.WriteByte('\n')
		}
		for _, key := range slices.Sorted(maps.Keys(s.Allocation.Env)) {
			fmt.Fprintf(&out, "  %s=%s\n", key, s.Allocation.Env[key])
		}
	}
	return strings.TrimSpace(out.String())
}
