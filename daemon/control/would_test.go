// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

func TestResourceInTOML(t *testing.T) {
	for want, r := range map[string]device.Rule{
		"[[resource]]\nname = \"t/x\"\nclass = \"nvme\"\nreset.scrub = \"discard\" # or another; with \"none\" the next pod can read the data\n": {Resource: "t/x", Class: &device.NVMe},
		"[[resource]]\nname = \"t/x\"\nclass = \"gpu\"\nmatch = { DRIVER = \"xe\", PCI_ID = \"8086:*\" }\n":                                      {Resource: "t/x", Class: &device.GPU, Match: map[string]string{"PCI_ID": "8086:*", "DRIVER": "xe"}},
	} {
		if got := inTOML(&r); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
}

// TestRulesForANode: by what outlives a reboot where there is such a thing; nothing for what has no node.
func TestRulesForANode(t *testing.T) {
	for _, c := range []struct {
		udev udev.Device
		want []string
	}{
		{udev.Device{Subsystem: "tty"}, nil},
		{
			udev.Device{DevNode: "/dev/ttyUSB0", Subsystem: "tty", Properties: udev.NewProperties(map[string]string{"ID_PATH": "p", "ID_SERIAL": "s"})},
			[]string{`{ ID_SERIAL = "s", SUBSYSTEM = "tty" }`, `{ ID_PATH = "p", SUBSYSTEM = "tty" }`, `{ DEVNAME = "/dev/ttyUSB0" }`},
		},
		{udev.Device{DevNode: "/dev/kvm", Subsystem: "misc"}, []string{`{ DEVNAME = "/dev/kvm" }`}},
		{udev.Device{DevNode: "/dev/x"}, []string{`{ DEVNAME = "/dev/x" }`}},
	} {
		got := nodeRules(c.udev)
		if len(got) != len(c.want) {
			t.Errorf("%s: %d rules, want %d", c.udev.DevNode, len(got), len(c.want))
			continue
		}
		for i, want := range c.want {
			name := "example.org/" + c.udev.Subsystem
			if c.udev.Subsystem == "" {
				name = "example.org/device"
			}
			if text := inTOML(&got[i]); text != "[[resource]]\nname = \""+name+"\"\nclass = \"node\"\nmatch = "+want+"\n" {
				t.Errorf("%s: %s, want %s", c.udev.DevNode, text, want)
			}
		}
	}
}
