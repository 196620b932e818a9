// SPDX-License-Identifier: Apache-2.0

package api

// Topology has the places of the devices on the PCI tree of a node.
type Topology struct {
	Devices []Place `json:"devices"` // sorted by PCI address, followed by devices that are not on PCI
	// Distances has the distance between each two GPUs and HCAs, by their names.
	Distances map[string]map[string]Distance `json:"distances"`
}

// Place is a device with its place.
type Place struct {
	Name string   `json:"name"` // such as GPU0 or HCA1, one for each PCI function; empty if no resource matches it or it is not on PCI
	Path []string `json:"path"` // bridges from the PCI host bridge down to the function; empty for a device that is not on PCI
	Link string   `json:"link"` // speed and width of the link if sysfs has them, or a note that the function does not answer
	CPUs string   `json:"cpus"` // CPUs near the device, such as "0-15,32-47", if sysfs has them
	Device
}

// Distance is the distance of two PCI functions, in the terms of "nvidia-smi topo -m".
type Distance string

// Distances, the nearest first.
const (
	PIX  Distance = "PIX"  // at most one switch is between them
	PXB  Distance = "PXB"  // several switches, but no host bridge
	PHB  Distance = "PHB"  // a host bridge
	NODE Distance = "NODE" // the interconnect between host bridges of one NUMA node
	SYS  Distance = "SYS"  // the interconnect between NUMA nodes
)
