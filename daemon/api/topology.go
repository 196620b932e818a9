// SPDX-License-Identifier: Apache-2.0

package api

// Topology is where the devices of a node are on its PCI tree.
type Topology struct {
	Devices []Place `json:"devices"` // by PCI address, then those that are not on PCI
	// Distances has the distance of each GPU and each HCA to each of the others, by their names.
	Distances map[string]map[string]Distance `json:"distances"`
}

// Place is a device with its place.
type Place struct {
	Name string   `json:"name"` // such as GPU0 or HCA1, one for each PCI function, or empty if no resource takes it or it is not on PCI
	Path []string `json:"path"` // from the PCI host bridge down to the function, or empty if it is not on PCI
	Link string   `json:"link"` // its speed and its width, as far as sysfs has them, or that the function does not answer
	CPUs string   `json:"cpus"` // those next to it, such as "0-15,32-47", as far as sysfs has them
	Device
}

// Distance is how far two PCI functions are from each other, in the words of "nvidia-smi topo -m".
type Distance string

// Distances, the nearest first.
const (
	PIX  Distance = "PIX"  // at most one switch is between them
	PXB  Distance = "PXB"  // several switches, but no host bridge
	PHB  Distance = "PHB"  // a host bridge
	NODE Distance = "NODE" // the way between host bridges of one NUMA node
	SYS  Distance = "SYS"  // the way between NUMA nodes
)
