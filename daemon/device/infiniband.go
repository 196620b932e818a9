// SPDX-License-Identifier: Apache-2.0

package device

// This file handles RDMA devices. An RDMA device is an InfiniBand or RoCE adapter, or a virtual function of such an adapter.
//
// Follows: Documentation/ABI/stable/sysfs-class-infiniband; Documentation/infiniband/user_verbs.rst and user_mad.rst;
// drivers/infiniband/core/sysfs.c, uverbs_main.c, user_mad.c and device.c (netns_mode).
//
// Identity: the node GUID, which the vendor assigns. RoCE adapters derive it from the MAC address. A device's name is not used,
// because rdma-core's udev rule renames a device such as mlx5_0 soon after it appears. The number in uverbsN depends on the order
// of discovery. An unconfigured virtual function has the GUID 0, so its identity is its PCI address.
//
// All of an adapter's virtual functions share its link. If this host uses virtual functions as RDMA devices, metalplug does not
// offer the adapter itself.
//
// Health: at least one port must be ACTIVE with its link up. The kernel sends no event when a port's state changes, so the state
// is read every five seconds. The checks in pci.go also apply. After "rdma system set netns exclusive", each RDMA device belongs
// to a single network namespace. For a pod with its own network namespace, the network plugin must then move the device into this
// namespace, because ib_uverbs_open returns EPERM otherwise. The exclusive mode causes only a warning, because pods in the host's
// network namespace can still open the devices.
//
// Nodes: a container gets /dev/infiniband/uverbsN, and /dev/infiniband/rdma_cm, which all devices share. Programs need rdma_cm to
// connect by address. A resource can also request the nodes umadN and issmN of each port. A process uses umadN to send packets to
// the fabric manager. Only InfiniBand ports have issmN, and a process that opens issmN becomes the subnet manager.
//
// Reset: metalplug does not reset an RDMA device automatically, because every RDMA driver stops working after its PCI function is
// reset. When a process closes uverbsN, the driver frees all of the process's resources on the adapter (ib_uverbs_close).
//
// Needs: sysfs. The class needs no ioctl or capability, and does not open device nodes. Containers need a sufficient
// RLIMIT_MEMLOCK, or CAP_IPC_LOCK.

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/metalplug/metalplug/udev"
)

// InfiniBand is the class of RDMA devices. The kernel presents each adapter, port or virtual function as an RDMA device.
var InfiniBand = Class{
	Name:  InfiniBandName,
	Doc:   "RDMA devices (InfiniBand, RoCE)",
	Match: []udev.Match{{Subsystem: "infiniband"}},
	// In sysfs, the device that has the node is a sibling of the subject and appears before it.
	Wakes: []udev.Match{
		{Subsystem: "infiniband_verbs"},
		{Subsystem: "infiniband_mad"},
		{Subsystem: "misc", Properties: map[string]string{"DEVNAME": rdmaCM}},
	},
	Renamed:  true,            // rdma-core's 60-rdma-persistent-naming.rules renames RDMA devices
	Every:    5 * time.Second, // the kernel sends no event when a port loses its link
	DevNodes: []string{"/dev/infiniband/uverbs[0-9]*", rdmaCM, "/dev/infiniband/umad[0-9]*", "/dev/infiniband/issm[0-9]*"},
	Identify: infinibandIdentify,
	Offer:    infinibandOffer,
	Health:   infinibandHealth,
	Warning:  namespaceWarning,
	Target:   functionTarget,
	Allocate: infinibandAllocate,
}

// rdmaCM is the connection manager's node, from the module rdma_ucm.
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
		return nil, incompletef("the node GUID is 0, and the adapter has no PCI parent")
	}
	adapter, _ := h.Attr(u.SysPath, "hca_type") // some drivers lack these attributes
	board, _ := h.Attr(u.SysPath, "board_id")
	return []Device{{
		ID:    MakeID("infiniband", identity),
		Model: strings.TrimSpace(adapter + " " + board),
	}}, nil
}

// infinibandOffer returns an error for a physical function if this host uses its virtual functions as RDMA devices.
func infinibandOffer(h *Host, d Device) error {
	function := FunctionIn(d.SysPath)
	if function == "" || h.Uint(function, "sriov_numvfs") == 0 {
		return nil
	}
	var parts []string
	for _, name := range h.Numbered(function, "virtfn") {
		parts = append(parts, h.Names(function+"/"+name+"/infiniband")...)
	}
	if len(parts) == 0 { // virtual functions without an RDMA device are unused, or belong to virtual machines
		return nil
	}
	return excludedf("divided into virtual functions, which are offered instead: %s", strings.Join(parts, ", "))
}

// namespaceWarning returns a warning if each RDMA device belongs to a single network namespace. The module parameter shows the
// current mode, because "rdma system set netns" changes the same variable (rdma_compatdev_set).
func namespaceWarning(h *Host, _ Device) string {
	if shared, err := h.Read("/sys/module/ib_core/parameters/netns_mode"); err != nil || shared != "N" {
		return ""
	}
	return "RDMA devices belong to one network namespace each: only pods with hostNetwork can open this device " +
		"(rdma system set netns shared; at boot: options ib_core netns_mode=1 in /etc/modprobe.d)"
}

// infinibandHealth asks the adapter for the state of each port (ib_query_port). If the adapter does not respond, reading the
// state blocks until the request times out. A device is usable if at least one of its ports is usable.
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
		return errors.New("the adapter has no port")
	}
	return joinErrors(reasons...)
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
		r.fail(incompletef("%s is missing: load the rdma_ucm module", rdmaCM))
	}
	r.add(rdmaCM)
	if d.rule != nil {
		for _, kind := range d.rule.Extras {
			r.addInfiniBand(d.SysPath, kind)
		}
	}
}

// addInfiniBand adds the nodes of one kind, such as "uverbs" or "umad", for an RDMA device. Depending on the kind, the device has
// one node, or one node for each port.
func (r *recipe) addInfiniBand(sysPath, kind string) {
	class, missing := "infiniband_mad", "load the ib_umad module"
	switch kind {
	case "uverbs":
		class, missing = "infiniband_verbs", "load the ib_uverbs module"
	case "issm":
		missing += " if a port is InfiniBand"
	}
	names := rdmaNodes(r.Host, sysPath, class, kind)
	if len(names) == 0 {
		r.fail(incompletef("the adapter has no %s device: %s", kind, missing))
	}
	// rdma-core creates links in by-path and in by-ibdev. The links in by-path contain the PCI address. The links in by-ibdev
	// become outdated when a device is renamed, because the kernel sends no event for the uverbs device.
	const directory = "/dev/infiniband/by-path/"
	links := r.Names(directory)
	for i := range links {
		links[i] = directory + links[i]
	}
	for _, name := range names {
		r.add("/dev/infiniband/"+name, links...)
	}
}

// rdmaNodes returns the names of the devices that provide the nodes of one kind for the RDMA device at sysPath. These devices are
// below the RDMA device's PCI function or, with the driver rxe, among the virtual devices. The attribute "ibdev" of such a device
// contains the RDMA device's current name.
func rdmaNodes(h *Host, sysPath, class, kind string) []string {
	directory := path.Dir(path.Dir(sysPath)) + "/" + class
	var names []string
	for _, name := range h.Numbered(directory, kind) {
		if ibdev, err := h.Attr(directory+"/"+name, "ibdev"); err == nil && ibdev == path.Base(sysPath) {
			names = append(names, name)
		}
	}
	return names
}
