// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

func grouped(g device.Group, match map[string]string) []device.Rule {
	return []device.Rule{{Resource: "example.com/set", Class: &device.Generic, Group: &g, Match: match}}
}

func TestGroupOfTheMachine(t *testing.T) {
	virtualization := grouped(device.Group{Nodes: []string{"/dev/kvm", "/dev/net/tun"}, Optional: []string{"/dev/vhost-*", "/dev/none"}}, nil)
	node := func(name string) device.Rule {
		return device.Rule{Resource: "example.com/one", Class: &device.Generic, Match: map[string]string{"DEVNAME": name}}
	}
	testSights(t, []sight{
		{name: "complete", recording: "node-virtual", rules: virtualization, want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			group-example.com:set
			  /dev/kvm
			  /dev/net/tun
			  /dev/vhost-net
			(tun)
			  held back: a part of group-example.com:set
			(vhost-net)
			  held back: a part of group-example.com:set`},
		{name: "without what is optional", recording: "node-virtual", edits: []string{"vhost-net", "other"}, rules: virtualization, want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			group-example.com:set
			  /dev/kvm
			  /dev/net/tun
			(tun)
			  held back: a part of group-example.com:set`},
		{name: "without the first", recording: "node-virtual", edits: []string{"N: kvm", "N: other"}, rules: virtualization, want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			group-example.com:set
			  held back: not complete: /dev/kvm is missing
			  /dev/net/tun
			  /dev/vhost-net
			(vhost-net)
			  held back: a part of group-example.com:set`},
		{name: "with only what is optional", recording: "node-virtual", edits: []string{"N: kvm", "N: other", "N: net/tun", "N: net/other"}, rules: virtualization, want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			group-example.com:set
			  held back: not complete: /dev/kvm is missing; not complete: /dev/net/tun is missing
			  /dev/vhost-net`},
		{name: "a pattern that finds nothing", recording: "node-virtual", rules: grouped(device.Group{Nodes: []string{"/dev/kvm", "/dev/snd/*"}}, nil), want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			group-example.com:set
			  held back: not complete: /dev/snd/* is missing
			  /dev/kvm`},
		{name: "no node by itself", recording: "node-virtual", rules: append(virtualization, node("/dev/kvm")), want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			group-example.com:set
			  /dev/kvm
			  /dev/net/tun
			  /dev/vhost-net
			(tun)
			  held back: a part of group-example.com:set
			(vhost-net)
			  held back: a part of group-example.com:set`},
		{name: "a node by itself, and first", recording: "node-virtual", rules: append([]device.Rule{node("/dev/kvm")}, virtualization...), want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			group-example.com:set
			  /dev/kvm
			  /dev/net/tun
			  /dev/vhost-net
			(tun)
			  held back: a part of group-example.com:set
			(vhost-net)
			  held back: a part of group-example.com:set`},
		{name: "a node in two groups", recording: "node-virtual", rules: append(virtualization, device.Rule{
			Resource: "example.com/other", Class: &device.Generic, Group: &device.Group{Nodes: []string{"/dev/kvm", "/dev/vfio/vfio"}},
		}), want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			group-example.com:set
			  /dev/kvm
			  /dev/net/tun
			  /dev/vhost-net
			(tun)
			  held back: a part of group-example.com:set
			group-example.com:other
			  held back: not complete: /dev/kvm belongs to example.com/set
			  /dev/vfio/vfio
			(vhost-net)
			  held back: a part of group-example.com:set`},
		{name: "SGX", recording: "node-platform", rules: grouped(device.Group{Nodes: []string{"/dev/sgx_enclave"}, Optional: []string{"/dev/sgx_provision"}}, nil), want: `
			group-example.com:set
			  /dev/sgx_enclave
			  /dev/sgx_provision
			(sgx_provision)
			  held back: a part of group-example.com:set`},
		{name: "VFIO groups", recording: "node-vfio", rules: grouped(device.Group{Nodes: []string{"/dev/vfio/120", "/dev/vfio/37"}}, nil), want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			group-example.com:set
			  /dev/vfio/120
			  /dev/vfio/vfio
			  /dev/vfio/37
			(37)
			  held back: a part of group-example.com:set`},
		{name: "one of them sick", recording: "node-vfio", edits: []string{"config=4d140aa8060410000002080100", "config=ffffffffffffffffffffffff"}, rules: grouped(device.Group{Nodes: []string{"/dev/vfio/120", "/dev/vfio/37"}}, nil), want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			group-example.com:set
			  sick: the PCI configuration space does not answer: the device has fallen off the bus
			  /dev/vfio/120
			  /dev/vfio/vfio
			  /dev/vfio/37
			(37)
			  held back: a part of group-example.com:set`},
		{name: "a disk with partitions", recording: "node-disk", rules: grouped(device.Group{Nodes: []string{"/dev/sda", "/dev/sg0"}}, nil), want: `
			(sda)
			  held back: not for containers: /dev/sda is in the group and gives access to a disk: offer the disk separately
			(sg0)
			  held back: a part of group-example.com:set`},
		{name: "a partition", recording: "node-disk", rules: grouped(device.Group{Nodes: []string{"/dev/sda1"}}, nil), want: `
			(sda1)
			  held back: not for containers: /dev/sda1 is in the group and gives access to a disk: offer the disk separately`},
		{name: "a namespace", recording: "nvme-zoned", rules: grouped(device.Group{Nodes: []string{"/dev/nvme4", "/dev/nvme4n1"}}, nil), want: `
			(nvme4)
			  held back: not for containers: /dev/nvme4 bypasses the namespace checks: offer the namespaces with class nvme
			nvme-eui.0014ee83000ba210 "WZS4C8T1TDSP303" numa0
			  held back: no resource of class nvme is configured
			nvme-eui.0014ee83000ba211 "WZS4C8T1TDSP303" numa0
			  held back: not for containers: the disk is zoned: to offer the disk, match ATTR{queue/zoned}`},
		{name: "a namespace among others", recording: "nvme-zoned", edits: []string{"N: nvme4\n", "N: qrng\n", "SUBSYSTEM=nvme\n", "SUBSYSTEM=qrng\n"}, rules: grouped(device.Group{Nodes: []string{"/dev/nvme4n1", "/dev/qrng"}}, nil), want: `
			group-example.com:set numa0
			  held back: not complete: /dev/nvme4n1 belongs to class nvme
			  /dev/qrng
			nvme-eui.0014ee83000ba210 numa0
			  held back: no resource of class nvme is configured
			nvme-eui.0014ee83000ba211 numa0
			  held back: not for containers: the disk is zoned: to offer the disk, match ATTR{queue/zoned}`},
		{name: "without the container of VFIO", recording: "node-vfio", edits: []string{"N: vfio/vfio", "N: other"}, rules: grouped(device.Group{Nodes: []string{"/dev/vfio/120"}}, nil), want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			group-example.com:set numa0
			  held back: not complete: /dev/vfio/vfio is missing`},
		{name: "of one NUMA node and none", recording: "node-vfio", rules: grouped(device.Group{Nodes: []string{"/dev/vfio/37", "/dev/vfio/vfio"}}, nil), want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			(vfio)
			  held back: a part of group-example.com:set
			group-example.com:set numa1
			  /dev/vfio/37
			  /dev/vfio/vfio`},
		{name: "the generic node of a namespace", recording: "nvme-zoned", rules: grouped(device.Group{Nodes: []string{"/dev/ng4n1"}}, nil), want: `
			(ng4n1)
			  held back: not for containers: /dev/ng4n1 bypasses the namespace checks: offer the namespaces with class nvme
			nvme-eui.0014ee83000ba210 "WZS4C8T1TDSP303" numa0
			  held back: no resource of class nvme is configured
			nvme-eui.0014ee83000ba211 "WZS4C8T1TDSP303" numa0
			  held back: not for containers: the disk is zoned: to offer the disk, match ATTR{queue/zoned}`},
	})
}

func TestGroupOfHardware(t *testing.T) {
	camera := device.Group{Nodes: []string{"/dev/video*"}, Optional: []string{"/dev/media*", "/dev/snd/*"}, By: device.GroupUSB}
	whole := device.Group{Nodes: []string{"/dev/bus/usb/*"}, Optional: []string{"/dev/video*"}, By: device.GroupUSB}
	testSights(t, []sight{
		{name: "cameras", recording: "group-camera", rules: grouped(camera, nil), want: `
			(media0)
			  held back: a part of group-example.com:set-046d:082d-6B7F3E5F
			group-example.com:set-046d:082d-6B7F3E5F "HD Pro Webcam C920" numa0
			  /dev/video0 = /dev/v4l/by-id/usb-046d_HD_Pro_Webcam_C920_6B7F3E5F-video-index0
			  /dev/video1 = /dev/v4l/by-id/usb-046d_HD_Pro_Webcam_C920_6B7F3E5F-video-index1
			  /dev/media0
			  /dev/snd/controlC2
			(video1)
			  held back: a part of group-example.com:set-046d:082d-6B7F3E5F
			(controlC2)
			  held back: a part of group-example.com:set-046d:082d-6B7F3E5F
			group-example.com:set-0000:00:14.0-usb-9 numa0
			  /dev/video10`},
		{name: "with other numbers", recording: "group-camera", edits: []string{
			"video0", "video20", "video1\n", "video19\n", "media0", "media3",
		}, rules: grouped(camera, map[string]string{"ATTR{serial}": "6B7F3E5F"}), want: `
			(media3)
			  held back: a part of group-example.com:set-046d:082d-6B7F3E5F
			group-example.com:set-046d:082d-6B7F3E5F "HD Pro Webcam C920" numa0
			  /dev/video19 = /dev/v4l/by-id/usb-046d_HD_Pro_Webcam_C920_6B7F3E5F-video-index1
			  /dev/video20 = /dev/v4l/by-id/usb-046d_HD_Pro_Webcam_C920_6B7F3E5F-video-index0
			  /dev/media3
			  /dev/snd/controlC2
			(video20)
			  held back: a part of group-example.com:set-046d:082d-6B7F3E5F
			(controlC2)
			  held back: a part of group-example.com:set-046d:082d-6B7F3E5F`},
		{name: "of one product", recording: "group-camera", rules: grouped(camera, map[string]string{"ATTR{idProduct}": "0825"}), want: `
			group-example.com:set-0000:00:14.0-usb-9 numa0
			  /dev/video10`},
		{name: "without the ports that it is at", recording: "group-camera", edits: []string{"A: devpath=9", "A: other=9"}, rules: grouped(camera, map[string]string{"ATTR{idProduct}": "0825"}), want: `
			group-example.com:set-usb-1-9 numa0
			  /dev/video10`},
		{name: "whole USB devices", recording: "group-camera", rules: grouped(whole, map[string]string{"ATTR{idVendor}": "046d"}), want: `
			group-example.com:set-046d:082d-6B7F3E5F "HD Pro Webcam C920" numa0
			  /dev/bus/usb/001/004
			  /dev/video0 = /dev/v4l/by-id/usb-046d_HD_Pro_Webcam_C920_6B7F3E5F-video-index0
			  /dev/video1 = /dev/v4l/by-id/usb-046d_HD_Pro_Webcam_C920_6B7F3E5F-video-index1
			(video0)
			  held back: a part of group-example.com:set-046d:082d-6B7F3E5F
			(video1)
			  held back: a part of group-example.com:set-046d:082d-6B7F3E5F
			group-example.com:set-0000:00:14.0-usb-9 numa0
			  /dev/bus/usb/001/007
			  /dev/video10
			(video10)
			  held back: a part of group-example.com:set-0000:00:14.0-usb-9`},
		{name: "by function", recording: "group-camera", rules: grouped(device.Group{Nodes: []string{"/dev/video*"}, By: device.GroupPCI}, map[string]string{"DRIVER": "xhci_hcd"}), want: `
			group-example.com:set-0000:00:14.0 numa0
			  /dev/video0 = /dev/v4l/by-id/usb-046d_HD_Pro_Webcam_C920_6B7F3E5F-video-index0
			  /dev/video1 = /dev/v4l/by-id/usb-046d_HD_Pro_Webcam_C920_6B7F3E5F-video-index1
			  /dev/video10
			(video1)
			  held back: a part of group-example.com:set-0000:00:14.0
			(video10)
			  held back: a part of group-example.com:set-0000:00:14.0`},
		{name: "of no such hardware", recording: "node-virtual", rules: grouped(device.Group{Nodes: []string{"/dev/kvm"}, By: device.GroupPCI}, nil), want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node`},
		{name: "off the bus", recording: "group-camera", edits: []string{"config=86806da3", "config=ffffffff"}, rules: grouped(camera, map[string]string{"ATTR{idProduct}": "0825"}), want: `
			group-example.com:set-0000:00:14.0-usb-9 numa0
			  sick: the PCI configuration space does not answer: the device has fallen off the bus
			  /dev/video10`},
	})
}

// If a member is added or removed, the device that represents the group must be inspected.
func TestGroupIsWokenByItsMembers(t *testing.T) {
	rules := append(anyNode(nil), grouped(device.Group{Nodes: []string{"/dev/kvm"}, Optional: []string{"/dev/vhost-*"}}, nil)...)
	for node, want := range map[string]bool{"/dev/kvm": true, "/dev/vhost-net": true, "/dev/fuse": false, "": false} {
		if got := device.Generic.WokenBy(udev.Device{Subsystem: "misc", DevNode: node}, rules...); got != want {
			t.Errorf("%q wakes it: %t", node, got)
		}
	}
	if device.GPU.WokenBy(udev.Device{Subsystem: "misc", DevNode: "/dev/kvm"}, rules...) {
		t.Error("a member of a group wakes class gpu")
	}
}

// With any hardware and overlapping rules, no node is offered twice. The inspection of each member has the same result.
func TestGroupsShareNoNode(t *testing.T) {
	rules := []device.Rule{{Resource: "example.com/any", Class: &device.Generic}}
	for i, g := range []device.Group{
		{Nodes: []string{"/dev/video*"}, Optional: []string{"/dev/*"}, By: device.GroupUSB},
		{Nodes: []string{"/dev/*"}, By: device.GroupPCI},
		{Nodes: []string{"/dev/kvm", "/dev/*"}},
		{Nodes: []string{"/dev/*"}, By: device.GroupUSB},
	} {
		rules = append(rules, device.Rule{Resource: fmt.Sprintf("example.com/%d", i), Class: &device.Generic, Group: &g})
	}
	for name, text := range recordings(t) {
		h, devices := machine(t, text)
		by := make(map[string]string)
		for _, s := range inspectAll(h, rules, devices) {
			checkSighting(t, name, s)
			for _, n := range s.Allocation.Nodes {
				if n.Container == "/dev/vfio/vfio" || n.Container == "/dev/iommu" {
					continue // a node that all VFIO groups need
				}
				if other := by[n.Container]; other != "" {
					t.Errorf("%s: %s is offered as %s and as %s", name, n.Container, other, s.Device.ID)
				}
				by[n.Container] = s.Device.ID
			}
		}
	}
}
