// SPDX-License-Identifier: Apache-2.0

package device

// RDMA devices: InfiniBand and RoCE adapters, whole or virtual functions.
//
// Follows: Documentation/ABI/stable/sysfs-class-infiniband; Documentation/infiniband/user_verbs.rst;
// drivers/infiniband/core/sysfs.c and uverbs_main.c.
//
// Identity: the node GUID, which the vendor gives (RoCE derives it from the MAC address). The name, mlx5_0, is changed by
// rdma-core's udev rule soon after the device has come, and the number of uverbsN is the order of discovery. A virtual
// function that nobody has configured has the GUID 0: there the PCI address has to do.
//
// Health: a port is ACTIVE and its link is up. No event tells when that changes: it is read every five seconds. And what
// pci_health.go says.
//
// Nodes: /dev/infiniband/uverbsN, and /dev/infiniband/rdma_cm, one for all devices, without which no connection can be
// made by address. Not umadN and issmN, which are for who manages the fabric.
//
// Needs: sysfs. No ioctl, no capability, no node is opened. Containers need RLIMIT_MEMLOCK or CAP_IPC_LOCK.

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/metalplug/metalplug/udev"
)

// InfiniBand is the class of RDMA devices: one device an adapter, port or virtual function that the kernel shows as one.
var InfiniBand = Class{
	Name:  "infiniband",
	Doc:   "RDMA devices (InfiniBand, RoCE)",
	Match: []udev.Match{{Subsystem: "infiniband"}},
	// The device that has the node is a sibling of the subject, and comes before it.
	Wakes: []udev.Match{
		{Subsystem: "infiniband_verbs"},
		{Subsystem: "misc", Properties: map[string]string{"DEVNAME": rdmaCM}},
	},
	Every:    5 * time.Second, // no event tells that a port has lost its link
	DevNodes: []string{"/dev/infiniband/uverbs[0-9]*", rdmaCM},
	Identify: infinibandIdentify,
	Health:   infinibandHealth,
	Allocate: infinibandAllocate,
}

// rdmaCM is the node of the connection manager, of the module rdma_ucm.
const rdmaCM = "/dev/infiniband/rdma_cm"

func infinibandIdentify(h *Host, u udev.Device) ([]Device, error) {
	guid, err := h.Attr(u.SysPath, "node_guid")
	if err != nil {
		return nil, err
	}
	identity := strings.ReplaceAll(guid, ":", "")
	if strings.Trim(identity, "0") == "" {
		identity = h.pciAddress(u.SysPath)
	}
	if identity == "" {
		return nil, incompletef("its node GUID is 0, and it is below no PCI function")
	}
	return []Device{{
		ID:       MakeID("infiniband", identity),
		Model:    infinibandModel(h, u.SysPath),
		NUMANode: h.NUMANode(u.SysPath),
	}}, nil
}

// infinibandModel puts together what the driver says of the adapter, if it does.
func infinibandModel(h *Host, sysPath string) string {
	var model []string
	for _, name := range []string{"hca_type", "board_id"} {
		if text, err := h.Attr(sysPath, name); err == nil && text != "" {
			model = append(model, text)
		}
	}
	return strings.Join(model, " ")
}

// infinibandHealth asks the adapter for the state of its ports (ib_query_port), which may take as long as a dead adapter
// takes to time out. One usable port makes the device usable.
func infinibandHealth(h *Host, d Device) error {
	var reasons []error
	for _, port := range h.Names(d.SysPath + "/ports") {
		err := portHealth(h, d.SysPath+"/ports/"+port)
		if err == nil {
			return nil
		}
		reasons = append(reasons, fmt.Errorf("port %s: %w", port, err))
	}
	if len(reasons) == 0 {
		return errors.New("it has no port")
	}
	return joined(reasons...)
}

func portHealth(h *Host, port string) error {
	state, err := h.Attr(port, "state")
	if err != nil {
		return err
	}
	physical, err := h.Attr(port, "phys_state")
	if err != nil {
		return err
	}
	if state != "4: ACTIVE" || physical != "5: LinkUp" {
		return fmt.Errorf("state %s, phys_state %s", state, physical)
	}
	return nil
}

func infinibandAllocate(h *Host, d Device) (Allocation, error) {
	uverbs := uverbsOf(h, d.SysPath)
	if uverbs == "" {
		return Allocation{}, incompletef("it has no uverbs device: load the module ib_uverbs")
	}
	var a Allocation
	if err := a.add(h, "/dev/infiniband/"+uverbs, byPath(h)...); err != nil {
		return Allocation{}, err
	}
	if err := a.add(h, rdmaCM); err != nil {
		return Allocation{}, fmt.Errorf("%w: load the module rdma_ucm", err)
	}
	return a, nil
}

// uverbsOf returns the name of the device that has the node of the RDMA device at sysPath. It lies beside it, below the
// same function (or among the virtual devices, for rxe), and tells in ibdev the name that the RDMA device has now.
func uverbsOf(h *Host, sysPath string) string {
	beside := path.Dir(path.Dir(sysPath)) + "/infiniband_verbs"
	for _, name := range h.Names(beside) {
		if ibdev, err := h.Attr(beside+"/"+name, "ibdev"); err == nil && ibdev == path.Base(sysPath) {
			return name
		}
	}
	return ""
}

// byPath lists the links of rdma-core that go by PCI address. Those in by-ibdev are stale after the device was renamed,
// since the uverbs device gets no event then.
func byPath(h *Host) []string {
	const directory = "/dev/infiniband/by-path"
	var links []string
	for _, name := range h.Names(directory) {
		links = append(links, directory+"/"+name)
	}
	return links
}
