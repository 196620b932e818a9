// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"reflect"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

// node is the beginning of a resource of class node. Its last line is the third.
const node = "[[resource]]\nname = \"example.com/x\"\nclass = \"node\"\n"

func TestGroup(t *testing.T) {
	for _, test := range []struct {
		text string
		want *device.Group
	}{
		{"match.DEVNAME = \"/dev/kvm\"", nil},
		{"match.DEVNAME = \"/dev/kvm\"\ngroup = []\noptional = []\ngroup_by = \"\"", nil},
		{"group = [\"/dev/kvm\"]", &device.Group{Nodes: []string{"/dev/kvm"}}},
		{"group = [\"/dev/kvm\"]\nmatch = {}", &device.Group{Nodes: []string{"/dev/kvm"}}},
		{
			"group = ['/dev/snd/controlC0', '/dev/snd/pcmC0D[0-3]*']\noptional = [\"/dev/snd/seq\"]",
			&device.Group{Nodes: []string{"/dev/snd/controlC0", "/dev/snd/pcmC0D[0-3]*"}, Optional: []string{"/dev/snd/seq"}},
		},
		{
			"group = [\"/dev/video*\"]\ngroup_by = \"usb\"\nmatch = { \"ATTR{idVendor}\" = \"046d\" }\nexclude.PRODUCT = \"46d/*\"",
			&device.Group{Nodes: []string{"/dev/video*"}, By: device.GroupUSB},
		},
	} {
		r := good(t, node+test.text).Resources[0]
		if !reflect.DeepEqual(r.Group, test.want) || !reflect.DeepEqual(r.Rule().Group, test.want) {
			t.Errorf("%s\n%+v, want %+v", test.text, r.Group, test.want)
		}
	}
}

func TestNodes(t *testing.T) {
	for text, want := range map[string]string{
		``: "", `nodes = "block"`: "", `nodes = "generic"`: device.NVMeGeneric, `nodes = "both"`: device.NVMeBoth,
	} {
		r := good(t, disk+"reset.scrub = \"none\"\n"+text).Resources[0]
		if r.Nodes != want || r.Rule().Nodes != want {
			t.Errorf("%s: %q, in the rule %q, want %q", text, r.Nodes, r.Rule().Nodes, want)
		}
	}
	if r := good(t, node+"match.DEVNAME = \"/dev/x\"\nnodes = \"block\"").Resources[0]; r.Nodes != "" {
		t.Errorf("the default, written down for another class, is %q", r.Nodes)
	}
}
