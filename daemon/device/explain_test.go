// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// steps formats an explanation, one line for each step.
func steps(e device.Explained) string {
	var text strings.Builder
	for _, s := range e.Steps {
		mark := "ok"
		if !s.OK {
			mark = "no"
		}
		fmt.Fprintf(&text, "%s %s %s: %s\n", mark, s.What, s.Name, s.Why)
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

func TestExplain(t *testing.T) {
	const disk = "/sys/devices/pci0000:64/0000:64:02.0/0000:65:00.0/nvme/nvme2/nvme2n1"
	tests := []struct {
		name  string
		edits []string
		rules []device.Rule
		want  string
	}{
		{
			"the second rule takes it", nil,
			[]device.Rule{
				{Resource: "t/intel", Class: &device.NVMe, Match: map[string]string{"PCI_ID": "8086:*"}},
				{Resource: "t/out", Class: &device.NVMe, Exclude: map[string]string{"ID_NSID": "2"}},
				{Resource: "t/samsung", Class: &device.NVMe, Match: map[string]string{"PCI_ID": "144D:*"}},
				{Resource: "t/late", Class: &device.NVMe},
			},
			`ok class nvme: the class matches: NVMe namespaces
ok identity nvme: the ID is nvme-eui.36344830545001230025384300000001, SAMSUNG MZQL23T8HCLS-00A07, firmware GDC5602Q
no rule t/intel: PCI_ID is "144D:A80A", not "8086:*"
no rule t/out: excluded by ID_NSID = "2"
ok rule t/samsung: matches: PCI_ID is "144D:A80A" ("144D:*")
ok offer : the device can be offered
ok health : no fault is known
ok nodes : /dev/nvme2n1
`,
		},
		{
			"mounted and sick",
			[]string{"8:2 / / rw", "259:4 / /srv rw", "state=live", "state=dead"},
			everything,
			`ok class nvme: the class matches: NVMe namespaces
ok identity nvme: the ID is nvme-eui.36344830545001230025384300000001, SAMSUNG MZQL23T8HCLS-00A07, firmware GDC5602Q
ok rule test/nvme: matches: every nvme
no offer : in use: nvme2n1 is mounted on /srv
no health : controller nvme2 is dead
ok nodes : /dev/nvme2n1
`,
		},
		{
			"allowed in use",
			[]string{"8:2 / / rw", "259:4 / /srv rw"},
			[]device.Rule{{Resource: "t/x", Class: &device.NVMe, AllowInUse: true}},
			`ok class nvme: the class matches: NVMe namespaces
ok identity nvme: the ID is nvme-eui.36344830545001230025384300000001, SAMSUNG MZQL23T8HCLS-00A07, firmware GDC5602Q
ok rule t/x: matches: every nvme
ok offer : in use: nvme2n1 is mounted on /srv: overruled by t/x
ok health : no fault is known
ok nodes : /dev/nvme2n1
`,
		},
		{
			"no identity",
			[]string{"wwid=eui.36344830545001230025384300000001", "wwid="},
			everything,
			`ok class nvme: the class matches: NVMe namespaces
no identity nvme: not complete: the wwid of the disk is empty
`,
		},
		{
			"no rule of the class", nil, everything[:1],
			`ok class nvme: the class matches: NVMe namespaces
ok identity nvme: the ID is nvme-eui.36344830545001230025384300000001, SAMSUNG MZQL23T8HCLS-00A07, firmware GDC5602Q
no rule : no resource of class nvme is configured
ok offer : the device can be offered
`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h, devices := loadMachine(t, "nvme", test.edits...)
			i := slices.IndexFunc(devices, func(u udev.Device) bool { return u.SysPath == disk })
			got := device.Explain(h, test.rules, devices[i])
			if len(got) != 1 || steps(got[0]) != test.want {
				t.Errorf("got %d\n%s\nwant\n%s", len(got), steps(got[0]), test.want)
			}
		})
	}
}

func TestExplainGeneric(t *testing.T) {
	h, devices := loadMachine(t, "nvme")
	rule := device.Rule{Resource: "t/tty", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "tty"}}
	i := slices.IndexFunc(devices, func(u udev.Device) bool { return u.Subsystem == "nvme" })
	got := steps(device.Explain(h, []device.Rule{rule}, devices[i])[0])
	if want := `no class node: t/tty: SUBSYSTEM is "nvme", not "tty"` + "\n"; !strings.HasSuffix(got, want) {
		t.Errorf("%s", got)
	}
	if got := steps(device.Explain(h, everything, devices[i])[0]); !strings.HasSuffix(got, "no class node: no resource of class node is configured\n") {
		t.Errorf("%s", got)
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
