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

func TestGroupProblems(t *testing.T) {
	const hardware = "is set by udev's rules; match a group by a property that the kernel reports for its hardware, such as ATTR{serial} or PCI_ID"
	for _, test := range []struct{ text, want string }{
		{node + "group = \"/dev/kvm\"", `m.toml:4: resource.group: is a string in quotes, not an array of device nodes; write group = ["/dev/video*"]`},
		{node + "group = [1]", `m.toml:4: resource.group: contains an integer, but all elements must be strings; write group = ["/dev/video*"]`},
		{node + "group = [[\"/dev/a\"], [\"/dev/a\"]]", "m.toml:4: resource.group: contains an array, but all elements must be strings; write group = [\"/dev/video*\"]\nm.toml:4: resource.group: contains an array, but all elements must be strings; write group = [\"/dev/video*\"]"},
		{node + "group = []", `m.toml:1: resource.match: is empty: class node would take every device node on this machine; write match = { DEVNAME = "/dev/kvm" } for one node`},
		{node + "group = []\noptional = [\"/dev/a\"]\nmatch.DEVNAME = \"/dev/b\"", `m.toml:5: resource.optional: needs a group; write group = ["/dev/video*"] too`},
		{node + "group_by = \"usb\"\nmatch.DEVNAME = \"/dev/b\"", `m.toml:4: resource.group_by: needs a group; write group = ["/dev/video*"] too`},
		{node + "group = [\"/dev/a\"]\ngroup_by = \"parent\"", `m.toml:5: resource.group_by: "parent" is not a kind of hardware: usb or pci; write one of them`},
		{node + "group = [\"/dev/a\", \"/dev/a\"]", `m.toml:4: resource.group: has "/dev/a" twice; remove one`},
		{node + "group = [\"/dev/a\"]\noptional = [\"/dev/b\", \"/dev/a\"]", `m.toml:5: resource.optional: "/dev/a" is already in the group; remove it here`},
		{node + "group = [\"kvm\"]", `m.toml:4: resource.group: "kvm" is not a device node; write group = ["/dev/video*"]`},
		{node + "group = [\"/dev/\"]", `m.toml:4: resource.group: "/dev/" is not a device node; write group = ["/dev/video*"]`},
		{node + "group = [\"/dev/../etc/x\"]", `m.toml:4: resource.group: "/dev/../etc/x" is not a device node; write group = ["/dev/video*"]`},
		{node + "group = [\"/dev/a|/dev/b\"]", `m.toml:4: resource.group: "/dev/a|/dev/b" is not a device node; write group = ["/dev/video*"]`},
		{node + "group = [\"/dev/a\"]\noptional = [\"/dev/[\"]", `m.toml:5: resource.optional: "/dev/[" is not a valid pattern: it has an unclosed "[" or ends in "\"; write optional = ["/dev/snd/*"]`},
		{node + "group = [\"/dev/a\"]\nmatch.PCI_ID = \"8086:*\"", `m.toml:5: resource.match.PCI_ID: describes the hardware of a group; write group_by = "usb" or "pci" too`},
		{node + "group = [\"/dev/a\"]\nexclude.PCI_ID = \"8086:*\"", `m.toml:5: resource.exclude.PCI_ID: describes the hardware of a group; write group_by = "usb" or "pci" too`},
		{node + "group = [\"/dev/a\"]\ngroup_by = \"usb\"\nmatch.ID_SERIAL = \"x\"\nexclude.TAGS = \"y\"", "m.toml:6: resource.match.ID_SERIAL: " + hardware + "\nm.toml:7: resource.exclude.TAGS: " + hardware},
		{valid + "group = [\"/dev/a\"]", `m.toml:4: resource.group: is only for class node, not for gpu; remove it`},
		{node + "group = [\"/dev/a\"]\ngroups = [\"/dev/b\"]", `m.toml:5: resource.groups: unknown key; did you mean group?`},
	} {
		if got := problems(t, test.text); got != test.want {
			t.Errorf("%s\n%s\nwant\n%s", test.text, got, test.want)
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
	for text, want := range map[string]string{
		valid + `nodes = "char"`:                                     `m.toml:4: resource.nodes: "char" is not a choice of nodes: block, generic or both; write one of them`,
		valid + `nodes = []`:                                         `m.toml:4: resource.nodes: is an array, not a string in quotes; write nodes = "block"`,
		node + "match.DEVNAME = \"/dev/x\"\nnodes = \"both\"":        `m.toml:5: resource.nodes: is only for class nvme, not for node; remove it`,
		"[[resource]]\nname = \"example.com/x\"\nnodes = \"both\"\n": `m.toml:1: resource.class: is missing: a resource that overrides no other needs class gpu, fpga, infiniband, nvme, node or bundle; write class = "gpu"`,
	} {
		if got := problems(t, text); got != want {
			t.Errorf("%s\n%s\nwant\n%s", text, got, want)
		}
	}
	if r := good(t, node+"match.DEVNAME = \"/dev/x\"\nnodes = \"block\"").Resources[0]; r.Nodes != "" {
		t.Errorf("the default, written down for another class, is %q", r.Nodes)
	}
}
