// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/metalplug/metalplug/daemon/api"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("x", 80)
	var devices []api.Device
	for _, id := range []string{"GPU-36F6a1", "nvme-eui.36344730", "node-A_b", "node-a.b", long, ""} {
		devices = append(devices, api.Device{ID: id})
	}
	got := make(map[string]string)
	for name, d := range assignNames(devices) {
		if len(name) > nameLen || label(name) != strings.Replace(name, "--", "-", 1) {
			t.Errorf("%q is not a DNS label", name)
		}
		got[d.ID] = name
	}
	if got["GPU-36F6a1"] != "gpu-36f6a1" || got["nvme-eui.36344730"] != "nvme-eui-36344730" {
		t.Errorf("the names are %v", got)
	}
	if len(got) != 5 || got["node-A_b"] == got["node-a.b"] || !strings.HasPrefix(got["node-A_b"], "node-a-b-") || !strings.HasPrefix(got[long], "xxx") {
		t.Errorf("the names are %v", got)
	}
	// A device whose ID looks like the name of another device does not replace that device.
	devices = append(devices, api.Device{ID: got["node-A_b"]}, api.Device{ID: got[long]})
	if names := assignNames(devices); len(names) != 7 {
		t.Errorf("of 7 devices, %d have a name: %v", len(names), slices.Sorted(maps.Keys(names)))
	}
}

// A pool without slices would mean that no driver is running.
func TestLayoutWithoutDevices(t *testing.T) {
	l := layout{}.place(map[string]int64{"a": 1})
	if l = l.place(nil); len(l) != 1 || len(l[0]) != 0 {
		t.Errorf("without a device, the slices are %v", l)
	}
}

func TestPublished(t *testing.T) {
	d := api.Device{
		ID: "nvme-eui.01", Resource: "metalplug.io/nvme", Class: "nvme", Health: "Unhealthy", NUMANode: 1,
		SysPath:  "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:04.0/0000:1c:00.0/nvme/nvme0/nvme0n1",
		Hardware: api.Hardware{Model: strings.Repeat("m", 65), WWID: "eui.01", Size: 1 << 40, PCI: "0000:1c:00.0"},
	}
	p := newDevice("nvme-eui-01", d, 0)
	got := make(map[string]string)
	for name, a := range p.Attributes {
		switch {
		case a.StringValue != nil:
			got[string(name)] = *a.StringValue
		case a.IntValue != nil:
			got[string(name)] = fmt.Sprint(*a.IntValue)
		}
	}
	want := map[string]string{
		"id": "nvme-eui.01", "class": "nvme", "resource": "metalplug.io/nvme", "wwid": "eui.01", "switch": "0000:16:00.0",
		"resource.kubernetes.io/pcieRoot": "pci0000:15", "resource.kubernetes.io/pciBusID": "0000:1c:00.0", "resource.kubernetes.io/numaNode": "1",
	}
	if !maps.Equal(got, want) {
		t.Errorf("the attributes are %v", got)
	}
	if size := p.Capacity["size"]; size.Value.String() != "1Ti" {
		t.Errorf("the size is %v", size)
	}
	if len(p.Taints) != 1 || p.Taints[0].Key != taintGone {
		t.Errorf("the taints are %v", p.Taints)
	}
}

// A shared device counts once for each share, and a request that names no number gets one share.
func TestShared(t *testing.T) {
	s := newState([]api.Resource{{Name: "a", Serve: "dra", Shares: 4}, {Name: "b", Serve: "dra", Shares: 1}}, []api.Device{{ID: "x", Resource: "a"}, {ID: "y", Resource: "b"}})
	p := layout{{"x", "y"}}.pool(s).Slices[0].Devices
	if p[0].AllowMultipleAllocations == nil || p[1].AllowMultipleAllocations != nil || len(p[1].Capacity) > 0 {
		t.Errorf("the devices are %+v", p)
	}
	c := p[0].Capacity["shares"]
	if c.Value.Value() != 4 || c.RequestPolicy.Default.Value() != 1 || c.RequestPolicy.ValidRange.Min.Value() != 1 || c.RequestPolicy.ValidRange.Step.Value() != 1 {
		t.Errorf("the capacity is %+v", c)
	}
}

// The first two columns are metalplugd's answer for an Unhealthy device.
func TestTaints(t *testing.T) {
	const stays, evicted = resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute
	for _, test := range []struct {
		present, lost, cordoned bool
		want                    []resourceapi.DeviceTaint
	}{
		{present: true, want: []resourceapi.DeviceTaint{{Key: taintUnhealthy, Effect: stays}}},
		{present: true, lost: true, want: []resourceapi.DeviceTaint{{Key: taintUnhealthy, Effect: evicted}}},
		{lost: true, want: []resourceapi.DeviceTaint{{Key: taintGone, Effect: evicted}}},
		{want: []resourceapi.DeviceTaint{{Key: taintGone, Effect: stays}}}, // not found since metalplugd was started
		{present: true, cordoned: true, want: []resourceapi.DeviceTaint{{Key: taintCordoned, Effect: stays}}},
		{cordoned: true, lost: true, want: []resourceapi.DeviceTaint{{Key: taintCordoned, Effect: stays}, {Key: taintGone, Effect: evicted}}},
	} {
		d := api.Device{Health: "Unhealthy", Cordoned: test.cordoned, Hardware: api.Hardware{Present: test.present, Lost: test.lost}}
		if got := taints(d); !slices.Equal(got, test.want) {
			t.Errorf("%+v: the taints are %v", test, got)
		}
	}
	if got := taints(api.Device{Health: "Healthy"}); got != nil {
		t.Errorf("a device that is Healthy has the taints %v", got)
	}
}

// A claim may hold a device of a resource that is no longer served through DRA. The pod still shows the health of this device.
func TestDevicesForClaims(t *testing.T) {
	resources := []api.Resource{{Name: "a", Serve: "dra"}, {Name: "b", Serve: "plugin"}}
	free, held, claimed, other := api.Device{ID: "free", Resource: "a"}, api.Device{ID: "held", Resource: "a"}, api.Device{ID: "claimed", Resource: "a"}, api.Device{ID: "other", Resource: "b"}
	held.Held, claimed.Held = true, true
	claimed.Claims = []api.ClaimRef{{UID: "c"}}
	kept := claimed
	kept.ID, kept.Resource = "kept", "b"
	s := newState(resources, []api.Device{free, held, claimed, other, kept})
	if !maps.Equal(s.claimed, map[string]int64{"free": 1, "claimed": 1}) || len(s.devices) != 5 {
		t.Errorf("the devices for claims are %v", s.claimed)
	}
	if all := healthOf("n1", s).Devices; len(all) != 3 || all[2].Device.DeviceName != "kept" {
		t.Errorf("the kubelet gets the health of %v", all)
	}
}
