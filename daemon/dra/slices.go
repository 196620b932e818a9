// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/metalplug/metalplug/daemon/api"
)

// sliceLen is the maximum number of devices in a ResourceSlice. A slice cannot have more devices if one of them has a taint
// (ResourceSliceMaxDevicesWithAdvancedFeatures in k8s.io/api/resource/v1).
const sliceLen = 64

// A taint has one of these keys.
const (
	taintCordoned  = DriverName + "/cordoned"
	taintGone      = DriverName + "/gone"
	taintUnhealthy = DriverName + "/unhealthy"
)

// state contains the devices from one of metalplugd's answers, prepared for the ResourceSlices.
type state struct {
	devices map[string]api.Device // keys are names; includes devices that no claim can get
	claimed map[string]int64      // maps a device that claims can get to the number of claims that may hold it at the same time
	shared  bool                  // whether several claims may hold one of the devices

	replaced chan struct{} // closed when the driver has a newer state
}

// newState returns the state with the given resources and devices. If a pod got a device through the device plugin API, the
// device is not available to claims until that pod has ended.
func newState(resources []api.Resource, devices []api.Device) state {
	s := state{devices: assignNames(devices), claimed: make(map[string]int64), replaced: make(chan struct{})}
	served := make(map[string]int64)
	for _, r := range resources {
		if r.ByClaim() {
			served[r.Name] = int64(max(1, r.Shares))
		}
	}
	for name, d := range s.devices {
		if shares := served[d.Resource]; shares > 0 && (!d.Held || len(d.Claims) > 0) {
			s.claimed[name] = shares
			s.shared = s.shared || shares > 1
		}
	}
	return s
}

// layout contains the device names in each ResourceSlice. A device stays in its slice, so that only one slice must be rewritten
// if the device changes.
type layout [][]string

// place removes and adds devices so that the slices contain exactly the keys of names. place keeps at least one slice, because a
// pool without slices would mean that no driver is running.
func (l layout) place(names map[string]int64) layout {
	left := maps.Clone(names)
	for i := range l {
		l[i] = slices.DeleteFunc(l[i], func(name string) bool { return names[name] == 0 })
		for _, name := range l[i] {
			delete(left, name)
		}
	}
	added := slices.Sorted(maps.Keys(left))
	for i := 0; len(added) > 0 || len(l) == 0; i++ {
		if i == len(l) {
			l = append(l, nil)
		}
		n := min(len(added), sliceLen-len(l[i]))
		l[i] = append(l[i], added[:n]...)
		added = added[n:]
	}
	for len(l) > 1 && len(l[len(l)-1]) == 0 {
		l = l[:len(l)-1]
	}
	return l
}

// pool returns the pool of ResourceSlices with the devices in the layout.
func (l layout) pool(s state) resourceslice.Pool {
	var p resourceslice.Pool
	for _, names := range l {
		var slice resourceslice.Slice
		for _, name := range names {
			slice.Devices = append(slice.Devices, newDevice(name, s.devices[name], s.claimed[name]))
		}
		p.Slices = append(p.Slices, slice)
	}
	return p
}

// newDevice returns the entry for a device in a ResourceSlice. If the device has several shares, several claims may hold it at
// the same time. A request consumes one share, unless the request specifies another number (KEP-5075).
func newDevice(name string, d api.Device, shares int64) resourceapi.Device {
	p := resourceapi.Device{Name: name, Attributes: attributes(d), Taints: taints(d)}
	if d.Size > 0 {
		size := resourceapi.DeviceCapacity{Value: *resource.NewQuantity(d.Size, resource.BinarySI)}
		p.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"size": size}
	}
	if shares > 1 {
		one, several := resource.NewQuantity(1, resource.DecimalSI), true
		p.AllowMultipleAllocations = &several
		p.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"shares": {
			Value: *resource.NewQuantity(shares, resource.DecimalSI),
			RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: one, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: one, Step: one},
			},
		}}
	}
	return p
}

// taints returns a device's taints. The taints prevent the scheduler from choosing a device that metalplugd would refuse now. A
// taint with the effect NoExecute also evicts the pod that holds the device. A device has this taint only if that pod has lost
// the device. All other problems may be temporary, so they do not evict the pod.
func taints(d api.Device) []resourceapi.DeviceTaint {
	var all []resourceapi.DeviceTaint
	if d.Cordoned {
		all = append(all, resourceapi.DeviceTaint{Key: taintCordoned, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if d.Health == "Healthy" || d.Cordoned && !d.Lost {
		return all
	}
	t := resourceapi.DeviceTaint{Key: taintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	if !d.Present {
		t.Key = taintGone
	}
	if d.Lost {
		t.Effect = resourceapi.DeviceTaintEffectNoExecute
	}
	return append(all, t)
}

// attributes returns a device's attributes. An attribute name without a domain belongs to the driver's domain.
func attributes(d api.Device) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	all := make(map[resourceapi.QualifiedName]resourceapi.DeviceAttribute)
	root, above := place(d.SysPath)
	for name, text := range map[resourceapi.QualifiedName]string{
		"id": d.ID, "class": d.Class, "resource": d.Resource, "model": d.Model, "serial": d.Serial, "wwid": d.WWID, "switch": above,
		"resource.kubernetes.io/pcieRoot": root, "resource.kubernetes.io/pciBusID": d.PCI,
	} {
		// A text that is too long is omitted rather than shortened, because two devices could have the same shortened text.
		if text = strings.TrimSpace(text); text != "" && len(text) <= resourceapi.DeviceAttributeMaxValueLength {
			all[name] = resourceapi.DeviceAttribute{StringValue: &text}
		}
	}
	if d.NUMANode >= 0 {
		all["resource.kubernetes.io/numaNode"] = resourceapi.DeviceAttribute{IntValue: new(int64(d.NUMANode))}
	}
	return all
}

// onPCI matches a device's path below a PCI host bridge. The first group matches the host bridge. The second group matches the
// PCI functions from the host bridge down to the device.
var onPCI = regexp.MustCompile(`/devices/(pci[0-9a-f]+:[0-9a-f]{2})((?:/[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])+)`)

// place returns the PCIe root of a device. If the device is connected to a switch, place also returns the PCI function of the
// switch's upstream port. A switch below a root port has one upstream port, and a downstream port for each device.
func place(path string) (root, above string) {
	m := onPCI.FindStringSubmatch(path)
	if m == nil {
		return "", ""
	}
	functions := strings.Split(m[2][1:], "/")
	if n := len(functions); n >= 4 {
		above = functions[n-3]
	}
	return m[1], above
}

// nameLen is the maximum length of a device name, which is a DNS label (RFC 1123).
const nameLen = 63

// assignNames assigns each device a name for the ResourceSlices. The names are the keys of the result. A device's name is its ID,
// converted to a DNS label. If the label is too long, or is the same as another device's, "--" and a hash of the ID are appended.
// Only such a name contains "--", so it cannot be the label of a third device.
func assignNames(devices []api.Device) map[string]api.Device {
	count := make(map[string]int)
	for _, d := range devices {
		count[label(d.ID)]++
	}
	names := make(map[string]api.Device, len(devices))
	for _, d := range devices {
		if d.ID == "" {
			continue // no claim can get the device
		}
		name := label(d.ID)
		if count[name] > 1 || len(name) > nameLen || name == "" {
			sum := sha256.Sum256([]byte(d.ID))
			hash := fmt.Sprintf("--%x", sum[:4])
			name = cmp.Or(name, "device")
			name = name[:min(len(name), nameLen-len(hash))] + hash
		}
		names[name] = d
	}
	return names
}

// notInLabel matches the characters between the letters and digits of a label.
var notInLabel = regexp.MustCompile(`[^a-z0-9]+`)

// label converts an ID to a DNS label. label changes letters to lower case, and replaces each sequence of characters other than
// letters and digits with "-".
func label(id string) string {
	return strings.Trim(notInLabel.ReplaceAllString(strings.ToLower(id), "-"), "-")
}
