// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// steps formats an explanation, one line for each step. The rule and the key that decided, as they are in the configuration, are in
// brackets.
func steps(e device.Explained) string {
	var text strings.Builder
	for _, s := range e.Steps {
		mark := "ok"
		if !s.OK {
			mark = "no"
		}
		fmt.Fprintf(&text, "%s %s %s: %s", mark, s.What, s.Name, s.Why)
		if s.Rule != "" {
			fmt.Fprintf(&text, " [%s %s]", s.Rule, s.Key)
		}
		text.WriteByte('\n')
	}
	return text.String()
}

// On every machine, the explanation and the inspection have the same result. If a device is not offered, one step has the
// reason.
func TestExplanationsAgreeWithInspections(t *testing.T) {
	files, err := filepath.Glob("testdata/*.umockdev")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	all := append(slices.Clone(everything), device.Rule{Resource: "test/node", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "tty|block"}})
	for _, file := range files {
		h, devices := loadMachine(t, strings.TrimSuffix(filepath.Base(file), ".umockdev"))
		for _, rules := range [][]device.Rule{all, nil} {
			for _, u := range devices {
				sightings, explanations := device.Inspect(h, rules, &u), device.Explain(h, rules, u)
				if len(sightings) == 0 {
					if len(explanations) != 1 || explanations[0].Device.ID != "" {
						t.Errorf("%s: nothing is seen in %s, explained is %v", file, u.SysPath, explanations)
					}
					continue
				}
				for i, s := range sightings {
					e := explanations[i]
					if formatSightings([]device.Sighting{s}) != formatSightings([]device.Sighting{e.Sighting}) {
						t.Errorf("%s: seen\n%s\nexplained\n%s", file, formatSightings([]device.Sighting{s}), formatSightings([]device.Sighting{e.Sighting}))
					}
					passed := slices.ContainsFunc(e.Steps, func(s device.Step) bool { return s.OK && s.What == "rule" }) &&
						!slices.ContainsFunc(e.Steps, func(s device.Step) bool { return !s.OK && s.What != "class" && s.What != "rule" })
					if taken := s.Resource != "" && s.Offer == nil && s.Health == nil; taken != passed {
						t.Errorf("%s: offer %v, health %v, explained\n%s", s.Device.SysPath, s.Offer, s.Health, steps(e))
					}
				}
			}
		}
	}
}

// TestExplain reads testdata/explain.txt, whose cases have the form of those in testdata/sights. After an empty line, a case lists the
// expected steps in the format of [steps].
func TestExplain(t *testing.T) {
	text, err := os.ReadFile("testdata/explain.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range strings.Split(string(text), "\n== ")[1:] {
		name, text, _ := strings.Cut(text, "\n")
		head, want, _ := strings.Cut(text, "\n\n")
		t.Run(name, func(t *testing.T) {
			h, devices, rules, _ := readSight(t, head)
			base, _, _ := strings.Cut(name, ":")
			i := slices.IndexFunc(devices, func(u udev.Device) bool { return path.Base(u.SysPath) == base })
			got := device.Explain(h, rules, devices[i])
			if len(got) != 1 || steps(got[0]) != strings.TrimRight(want, "\n")+"\n" {
				t.Errorf("got %d\n%s\nwant\n%s", len(got), steps(got[0]), want)
			}
		})
	}
}

// TestUnmatched checks the text about patterns that no device matches.
func TestUnmatched(t *testing.T) {
	for _, test := range []struct {
		recording string
		class     *device.Class
		patterns  map[string]string
		key, want string // want is the end of the text
	}{
		{"nvme", &device.NVMe, map[string]string{"PCI_ID": "144D:*"}, "", ""},
		{"nvme", &device.NVMe, map[string]string{"PCI_ID": "Micron"}, "PCI_ID", `: PCI_ID is "144D:A80A", not "Micron"`},
		{"nvme", &device.NVMe, map[string]string{"COLOUR": "blue"}, "COLOUR", ": the device has no COLOUR"},
		{"nvme", &device.NVMe, map[string]string{"ATTR{nsid}": "1"}, "ATTR{nsid}", `: ATTR{nsid} is "2", not "1"`},
		{"nvme", &device.GPU, map[string]string{"PCI_ID": "144D:*"}, "", "this node has no device of class gpu"},
		{
			"node-serial", &device.Generic,
			map[string]string{"ID_MODEL": "UPort*", "DEVNAME": "/dev/ttyUSB0"},
			"ID_MODEL",
			`no device of class node matches; the nearest is node-FTDI_FT232R_USB_UART_A50285BI-if00: ID_MODEL is "FT232R_USB_UART", not "UPort*"`,
		},
	} {
		h, seen := loadMachine(t, test.recording)
		key, text := device.Unmatched(h, test.class, seen, test.patterns)
		if key != test.key || !strings.HasSuffix(text, test.want) || (text == "") != (test.want == "") {
			t.Errorf("%v: key %q, %s\nwant %q, %s", test.patterns, key, text, test.key, test.want)
		}
	}
}
