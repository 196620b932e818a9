// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strconv"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// listSize is the maximum size, in bytes, of a list that the kubelet accepts. listSize is gRPC's default, which the kubelet does
// not change.
const listSize = 4 << 20

// response returns the list for the kubelet. If a list is too large, the kubelet drops all devices, so response omits the last
// ones. The second result is the number of omitted devices.
func (r *Resource) response(offer *inventory.Offer) (list *pluginapi.ListAndWatchResponse, left int) {
	list = &pluginapi.ListAndWatchResponse{Devices: r.list(offer)}
	all := len(list.Devices)
	for proto.Size(list) > listSize {
		list.Devices = list.Devices[:len(list.Devices)*9/10]
	}
	return list, all - len(list.Devices)
}

// list returns the devices for the kubelet, one for each share. If any of the resource's devices has no NUMA node, the list omits
// the NUMA nodes of all devices, because the kubelet would otherwise never allocate that device under a strict topology policy.
func (r *Resource) list(offer *inventory.Offer) []*pluginapi.Device {
	withNUMA := true
	for _, s := range offer.Devices {
		withNUMA = withNUMA && s.Device.NUMANode >= 0
	}
	// All entries are allocated together, because there may be thousands of devices.
	all := make([]pluginapi.Device, 0, len(offer.Devices)*max(1, r.Shares))
	nodes := make(map[int]*pluginapi.TopologyInfo)
	for _, s := range offer.Devices {
		d := pluginapi.Device{Health: pluginapi.Unhealthy}
		outdated := r.outdatedIDs(s)
		if s.Healthy && len(outdated) == 0 {
			d.Health = pluginapi.Healthy
		}
		if withNUMA {
			d.Topology = numaTopology(nodes, s)
		}
		for n := range max(1, r.Shares) {
			all = append(all, pluginapi.Device{ID: r.shareID(s.Device.ID, n), Health: d.Health, Topology: d.Topology})
		}
		for _, id := range outdated {
			all = append(all, pluginapi.Device{ID: id, Health: d.Health, Topology: d.Topology})
		}
	}
	devices := make([]*pluginapi.Device, len(all))
	for i := range all {
		devices[i] = &all[i]
	}
	return devices
}

// outdatedIDs returns the IDs under which pods hold a device, but which the resource no longer has after its number of shares has
// changed. Until the device is free, these IDs stay in the list and no other pod gets the device, because more pods would
// otherwise share it than its current pods expect.
func (r *Resource) outdatedIDs(s *inventory.Status) []string {
	var ids []string
	for _, id := range s.HeldAs {
		if device, ok := r.deviceID(id); !ok || device != s.Device.ID {
			ids = append(ids, id)
		}
	}
	return ids
}

// numaTopology returns the description of a device's NUMA node. Devices on the same node share one description. For a bundle
// with members on several NUMA nodes, numaTopology creates a separate description.
func numaTopology(nodes map[int]*pluginapi.TopologyInfo, s *inventory.Status) *pluginapi.TopologyInfo {
	node := s.Device.NUMANode
	if s.Members == nil && nodes[node] != nil {
		return nodes[node]
	}
	info := &pluginapi.TopologyInfo{}
	for _, n := range s.NUMANodes() {
		info.Nodes = append(info.Nodes, &pluginapi.NUMANode{ID: int64(n)})
	}
	if s.Members == nil {
		nodes[node] = info
	}
	return info
}

// shareID returns the ID of the nth share of a device.
func (r *Resource) shareID(id string, n int) string {
	if r.Shares <= 1 {
		return id
	}
	return id + checkpoint.ShareMark + strconv.Itoa(n)
}

// deviceID returns the ID of the device that the share with the given ID belongs to. The result ok is false if the resource
// has no such share.
func (r *Resource) deviceID(id string) (_ string, ok bool) {
	if r.Shares <= 1 {
		return id, true
	}
	device, number, marked := checkpoint.CutShare(id)
	n, err := strconv.Atoi(number)
	return device, marked && err == nil && n >= 0 && n < r.Shares
}
