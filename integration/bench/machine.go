// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

const (
	resource = "example.org/widget"
	few      = 8
	many     = 10_000
)

// widget is the recording of a PCI device with a node, a serial number, links, and an attribute with its state.
const widget = `P: /devices/pci0000:00/0000:00:01.0/0000:%02[2]x:%02[3]x.%[4]d/widget/widget%[1]d
N: widget%[1]d
S: widget/by-id/bench-W%06[1]d
S: widget/by-path/pci-0000:%02[2]x:%02[3]x.%[4]d
E: SUBSYSTEM=widget
E: DEVNAME=/dev/widget%[1]d
E: MAJOR=240
E: MINOR=%[1]d
E: ID_BUS=pci
E: ID_MODEL=Widget_of_the_bench
E: ID_SERIAL=Widget_of_the_bench_W%06[1]d
E: ID_SERIAL_SHORT=W%06[1]d
E: ID_PATH=pci-0000:%02[2]x:%02[3]x.%[4]d
E: ID_PATH_TAG=pci-0000_%02[2]x_%02[3]x_%[4]d
E: DEVLINKS=/dev/widget/by-path/pci-0000:%02[2]x:%02[3]x.%[4]d /dev/widget/by-id/bench-W%06[1]d
E: TAGS=:systemd:
E: CURRENT_TAGS=:systemd:
E: USEC_INITIALIZED=4711
A: numa_node=%[5]d
A: state=live

`

// recordingOf returns the recording of a machine with n devices on two NUMA nodes.
func recordingOf(n int) []byte {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, widget, i, 1+i/256, i/8%32, i%8, i%2)
	}
	return []byte(text.String())
}

// rules are the same rules as in the configuration of the daemon. A device whose state is not live is Unhealthy.
var rules = []device.Rule{{
	Resource: resource, Class: &device.Generic,
	Match: map[string]string{"SUBSYSTEM": "widget", "ATTR{state}": "live"},
}}

// machine is a directory tree that simulates hardware.
type machine struct {
	root    string
	devices []udev.Device // sorted by number
}

func newMachine(root string, n int) (*machine, error) {
	r, err := recording.Parse(recordingOf(n))
	if err != nil {
		return nil, err
	}
	if err := r.Write(root); err != nil {
		return nil, err
	}
	devices := r.Devices()
	slices.SortFunc(devices, func(a, b udev.Device) int { return number(a) - number(b) })
	return &machine{root, devices}, nil
}

func number(d udev.Device) (n int) {
	fmt.Sscan(d.Properties.Value("MINOR"), &n) // 0 for a device that is not a widget
	return n
}

func (m *machine) host() *device.Host {
	return &device.Host{Tree: sysfs.At(m.root)}
}

// setState makes a device healthy, with "live", or unhealthy.
func (m *machine) setState(i int, state string) error {
	return os.WriteFile(filepath.Join(m.root, m.devices[i].SysPath, "state"), []byte(state+"\n"), 0o644)
}

// message returns the message of udevd about a device, which is struct monitor_netlink_header of systemd's
// src/libsystemd/sd-device/device-monitor.c followed by the properties.
func (m *machine) message(action string, i int) []byte {
	const head = 40
	d := m.devices[i]
	body := fmt.Sprintf("ACTION=%s\x00DEVPATH=%s\x00SEQNUM=%d\x00", action, strings.TrimPrefix(d.SysPath, "/sys"), 1000+i)
	for key, value := range d.Properties.All() {
		body += key + "=" + value + "\x00"
	}
	message := make([]byte, head, head+len(body))
	copy(message, "libudev\x00")
	binary.BigEndian.PutUint32(message[8:], 0xfeedcafe)
	binary.NativeEndian.PutUint32(message[12:], head)
	binary.NativeEndian.PutUint32(message[16:], head)
	binary.NativeEndian.PutUint32(message[20:], uint32(len(body)))
	return append(message, body...)
}

// source is the hardware of a machine with events from a real event socket.
type source struct {
	*udev.Monitor
	devices []udev.Device // the devices at the start
}

// Enumerate returns the devices.
func (s *source) Enumerate() ([]udev.Device, error) { return s.devices, nil }
