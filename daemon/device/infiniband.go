// SPDX-License-Identifier: Apache-2.0

package device

// RDMA devices, which are InfiniBand and RoCE adapters, whole or virtual functions.
//
// Follows: Documentation/ABI/stable/sysfs-class-infiniband; Documentation/infiniband/user_verbs.rst and user_mad.rst;
// drivers/infiniband/core/sysfs.c, uverbs_main.c, user_mad.c and device.c (netns_mode).
//
// Identity: the node GUID, which the vendor gives (RoCE derives it from the MAC address). The name, mlx5_0, is changed by
// rdma-core's udev rule soon after the device has come, and the number of uverbsN is the order of discovery. A virtual
// function that is not configured has the GUID 0. The PCI address takes its place there.
//
// An adapter whose virtual functions are RDMA devices of this host is not offered beside them, because they share its link.
//
// Health: a port is ACTIVE and its link is up. The kernel sends no event when that changes, so it is read every five seconds.
// And what pci_health.go says. Where RDMA devices belong to one network namespace each ("rdma system set netns exclusive") a
// pod with a network namespace of its own cannot open what is in the host's (ib_uverbs_open gives EPERM), unless its network
// plugin moves the device there. It is only a warning, because pods in the host's namespace can.
//
// Nodes: /dev/infiniband/uverbsN, and /dev/infiniband/rdma_cm, one for all devices, without which no connection can be made
// by address. Where the resource asks for them, umadN of every port, by which packets are sent to the manager of the fabric,
// and issmN, which only ports of InfiniBand have. A process that opens issmN is the subnet manager.
//
// Reset: none automatically, because no RDMA driver survives that of the PCI function. The last close of uverbsN frees what a
// process had of the adapter (ib_uverbs_close).
//
// Needs: sysfs. No ioctl, no capability, no node is opened. Containers need RLIMIT_MEMLOCK or CAP_IPC_LOCK.

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// InfiniBand is the class of RDMA devices. A device is an adapter, port or virtual function that the kernel shows as one.
var InfiniBand = Class{
	Name:  "infiniband",
	Doc:   "RDMA devices (InfiniBand, RoCE)",
	Match: []udev.Match{{Subsystem: "infiniband"}},
	// The device that has the node is a sibling of the subject, and comes before it.
	Wakes: []udev.Match{
		{Subsystem: "infiniband_verbs"},
		{Subsystem: "infiniband_mad"},
		{Subsystem: "misc", Properties: map[string]string{"DEVNAME": rdmaCM}},
	},
	Renamed:  true,            // by rdma-core's 60-rdma-persistent-naming.rules
	Every:    5 * time.Second, // no event tells that a port has lost its link
	DevNodes: []string{"/dev/infiniband/uverbs[0-9]*", rdmaCM, "/dev/infiniband/umad[0-9]*", "/dev/infiniband/issm[0-9]*"},
	Identify: infinibandIdentify,
	Offer:    infinibandOffer,
	Health:   infinibandHealth,
	Target:   functionTarget,
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
		identity = pciAddress(u.SysPath)
	}
	if identity == "" {
		return nil, incompletef("its node GUID is 0, and it is below no PCI function")
	}
	adapter, _ := h.Attr(u.SysPath, "hca_type") // not every driver says these
	board, _ := h.Attr(u.SysPath, "board_id")
	return []Device{{
		ID:       MakeID("infiniband", identity),
		Model:    strings.TrimSpace(adapter + " " + board),
		NUMANode: h.NUMANode(u.SysPath),
	}}, nil
}

// infinibandOffer keeps back the physical function of virtual ones that are RDMA devices of this host.
func infinibandOffer(h *Host, d Device) error {
	function := FunctionIn(d.SysPath)
	if function == "" || h.Uint(function, "sriov_numvfs") == 0 {
		return nil
	}
	var parts []string
	for _, name := range h.Names(function) {
		if sysfs.Numbered(name, "virtfn") {
			parts = append(parts, h.Names(function+"/"+name+"/infiniband")...)
		}
	}
	if len(parts) == 0 { // virtual machines have them, or they are unused
		return nil
	}
	return excludedf("divided into virtual functions, which are offered in its place: %s", strings.Join(parts, ", "))
}

// namespaceWarning warns of the mode in which every RDMA device belongs to one network namespace. The parameter is not only
// the one that the module was loaded with, because "rdma system set netns" changes the same variable (rdma_compatdev_set).
func namespaceWarning(h *Host) error {
	if shared, err := h.Read("/sys/module/ib_core/parameters/netns_mode"); err != nil || shared != "N" {
		return nil
	}
	return warningf("RDMA devices belong to one network namespace each: only pods with hostNetwork can open it " +
		"(rdma system set netns shared)")
}

// infinibandHealth asks the adapter for the state of its ports (ib_query_port), which may take as long as a dead
// adapter takes to time out. One usable port makes the device usable.
func infinibandHealth(h *Host, d Device) error {
	var reasons []error
	for _, port := range h.Names(d.SysPath + "/ports") {
		err := portHealth(h, d.SysPath+"/ports/"+port)
		if err == nil {
			return namespaceWarning(h)
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

func infinibandAllocate(r *recipe, d Device) {
	r.addInfiniBand(d.SysPath, "uverbs")
	if !r.Present(rdmaCM) {
		r.fail(incompletef("%s is missing: load the module rdma_ucm", rdmaCM))
	}
	r.add(rdmaCM)
	if d.rule != nil {
		for _, kind := range d.rule.Extras {
			r.addInfiniBand(d.SysPath, kind)
		}
	}
}

// addInfiniBand adds the nodes of one kind that the RDMA device at sysPath has, one for it or one for each port.
func (r *recipe) addInfiniBand(sysPath, kind string) {
	class, missing := "infiniband_mad", "load the module ib_umad"
	switch kind {
	case "uverbs":
		class, missing = "infiniband_verbs", "load the module ib_uverbs"
	case "issm":
		missing += ", unless no port is InfiniBand"
	}
	names := besides(r.Host, sysPath, class, kind)
	if len(names) == 0 {
		r.fail(incompletef("it has no %s device: %s", kind, missing))
	}
	// The links of rdma-core go by PCI address. Those in by-ibdev are stale after the device was renamed, since the uverbs
	// device gets no event then.
	const directory = "/dev/infiniband/by-path/"
	links := r.Names(directory)
	for i := range links {
		links[i] = directory + links[i]
	}
	for _, name := range names {
		r.add("/dev/infiniband/"+name, links...)
	}
}

// besides lists the devices that have the nodes of one kind of the RDMA device at sysPath. They lie beside it, below
// the same function (or among the virtual devices, for rxe), and tell in ibdev the name that the RDMA device has now.
func besides(h *Host, sysPath, class, kind string) []string {
	directory := path.Dir(path.Dir(sysPath)) + "/" + class
	var names []string
	for _, name := range h.Names(directory) {
		if !sysfs.Numbered(name, kind) {
			continue
		}
		if ibdev, err := h.Attr(directory+"/"+name, "ibdev"); err == nil && ibdev == path.Base(sysPath) {
			names = append(names, name)
		}
	}
	return names
}
