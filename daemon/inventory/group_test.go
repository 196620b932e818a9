// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/udevtest"
)

func group(g device.Group) func(*inventory.Options) {
	return func(o *inventory.Options) {
		o.Rules = []device.Rule{{Resource: "test/group", Class: &device.Generic, Group: &g}}
	}
}

// state returns the nodes and the fault of the only device of the resource.
func state(s *inventory.Snapshot) string {
	devices := s.Offer("test/group").Devices
	if len(devices) != 1 {
		return ""
	}
	var nodes []string
	for _, n := range devices[0].Allocation.Nodes {
		nodes = append(nodes, n.Container)
	}
	return devices[0].Device.ID + ": " + strings.Join(nodes, " ") + devices[0].Reason
}

// A group is one device with one ID. Its ID does not depend on which members appear or vanish, or on which member represents
// the group.
func TestGroupFollowsItsMembers(t *testing.T) {
	m := udevtest.New(t, testdata(t, "node-virtual"))
	r := start(t, m, "", group(device.Group{Nodes: []string{"/dev/kvm", "/dev/net/tun"}, Optional: []string{"/dev/vhost-*"}}))
	is := func(want string) {
		t.Helper()
		r.waitSnapshot(want, func(s *inventory.Snapshot) bool { return state(s) == want })
	}
	const id = "group-test:group: "
	is(id + "/dev/kvm /dev/net/tun /dev/vhost-net")
	m.Plug("P: /devices/virtual/misc/vhost-vsock\nN: vhost-vsock\nE: SUBSYSTEM=misc\nE: MAJOR=10\nE: MINOR=241\n")
	is(id + "/dev/kvm /dev/net/tun /dev/vhost-net /dev/vhost-vsock")
	m.Unplug("/sys/devices/virtual/misc/vhost-net")
	is(id + "/dev/kvm /dev/net/tun /dev/vhost-vsock")
	m.Unplug("/sys/devices/virtual/misc/tun")
	is(id + "/dev/kvm /dev/vhost-vsocknot complete: /dev/net/tun is missing")
	m.Unplug("/sys/devices/virtual/misc/kvm")
	is(id + "/dev/vhost-vsocknot complete: /dev/kvm is missing; not complete: /dev/net/tun is missing")
	m.Plug("P: /devices/virtual/misc/tun\nN: net/tun\nE: SUBSYSTEM=misc\nE: MAJOR=10\nE: MINOR=200\n")
	is(id + "/dev/net/tun /dev/vhost-vsocknot complete: /dev/kvm is missing")
	m.Plug("P: /devices/virtual/misc/kvm\nN: kvm\nE: SUBSYSTEM=misc\nE: MAJOR=10\nE: MINOR=232\n")
	is(id + "/dev/kvm /dev/net/tun /dev/vhost-vsock")
	m.Apply("")
	is(id + "gone")
}

// A group is Unhealthy if any of its hardware is unhealthy. A disk with several controllers needs only one healthy
// controller.
func TestGroupIsSickWithAnyOfItsHardware(t *testing.T) {
	m := udevtest.New(t, testdata(t, "node-vfio"))
	r := start(t, m, "", group(device.Group{Nodes: []string{"/dev/vfio/120", "/dev/vfio/37", "/dev/vfio/9"}}))
	healthy := func(what string, want bool) {
		t.Helper()
		r.waitSnapshot(what, func(s *inventory.Snapshot) bool {
			devices := s.Offer("test/group").Devices
			return len(devices) == 1 && devices[0].Healthy == want
		})
	}
	healthy("offered", true)
	for _, function := range []string{"pci0000:6a/0000:6b:00.1", "pci0000:80/0000:80:01.0/0000:81:00.0", "pci0000:c0/0000:c1:00.1"} {
		r.send("change pci " + function + " ERROR_EVENT=BEGIN_RECOVERY")
		healthy(function+" is being recovered", false)
		r.send("change pci " + function + " ERROR_EVENT=SUCCESSFUL_RECOVERY")
		healthy(function+" is well", true)
	}
}

// A VFIO group can be used only with certain drivers of its functions, which are elsewhere in sysfs. So the group must be
// inspected after events of these functions.
func TestVFIOGroupInspectedWithFunctions(t *testing.T) {
	text := testdata(t, "node-vfio")
	m := udevtest.New(t, text)
	r := start(t, m, "", everything)
	is := func(what, want string) {
		t.Helper()
		r.waitSnapshot(what, func(s *inventory.Snapshot) bool {
			devices := s.Offer("test/vfio").Devices
			at := slices.IndexFunc(devices, func(d *inventory.Status) bool { return d.Device.ID == "node-vfio-0000:c1:00.0" })
			return at >= 0 && devices[at].Reason == want
		})
	}
	is("offered", "")
	const bound = "PCI_ID=10DE:228B\nE: PCI_SLOT_NAME=0000:c1:00.1\nH: config=de108b22\nL: driver=../../../bus/pci/drivers/"
	m.Apply(strings.NewReplacer(bound+"vfio-pci", bound+"snd_hda_intel").Replace(text))
	is("taken back by the host", "not complete: 0000:c1:00.1, in the same IOMMU group, is bound to snd_hda_intel: bind it to vfio-pci too")
	m.Apply(text)
	is("given away again", "")
}
