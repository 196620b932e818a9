// SPDX-License-Identifier: Apache-2.0

package api

// Topology shows where the devices of a node are in the PCI tree.
type Topology struct {
	Devices []Place `json:"devices"` // sorted by PCI address, followed by devices that are not on PCI
	// Distances contains the distance between any two GPUs or HCAs. The keys are the names of the two devices.
	Distances map[string]map[string]Distance `json:"distances"`
}

// Place shows where a device is in the PCI tree.
type Place struct {
	// Name is a short name, such as GPU0 or HCA1. Each PCI function has one name. Name is empty if no resource matches the
	// device, or if the device is not on PCI.
	Name string   `json:"name"`
	Path []string `json:"path"` // path from the PCI host bridge down to the function, or empty if the device is not on PCI
	Link string   `json:"link"` // speed and width of the link if sysfs shows them, or a note that the function does not answer
	CPUs string   `json:"cpus"` // CPUs near the device, such as "0-15,32-47", if sysfs shows them
	Device
}

// Distance is the distance between two PCI functions, in the terms of "nvidia-smi topo -m".
type Distance string

// The possible distances, nearest first, say which component is between two functions.
const (
	PIX  Distance = "PIX"  // at most one switch in between
	PXB  Distance = "PXB"  // several switches in between, but no host bridge
	PHB  Distance = "PHB"  // a host bridge in between
	NODE Distance = "NODE" // the interconnect between host bridges of one NUMA node
	SYS  Distance = "SYS"  // the interconnect between NUMA nodes
)
