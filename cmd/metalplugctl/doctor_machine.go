// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// read returns a small file of the machine; empty if it cannot be read.
func (d *doctor) read(name string) string {
	text, err := os.ReadFile(d.path(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// driven are the PCI classes of what is offered, by the beginning of sysfs's attribute class (include/linux/pci_ids.h).
var driven = []struct{ class, what string }{
	{"0x03", "a display or GPU"}, {"0x12", "a processing accelerator"}, {"0x0207", "an InfiniBand adapter"}, {"0x0108", "an NVMe controller"},
}

// modules are the drivers' modules by PCI vendor.
var modules = map[string]string{"0x10de": "nvidia", "0x1002": "amdgpu", "0x15b3": "mlx5_core"}

// checkDrivers looks for hardware without a driver: it is in no class that needs one, so that the daemon may not even
// show it. It is only a warning, since a card may be there for a virtual machine.
func (d *doctor) checkDrivers() []finding {
	const check = "drivers"
	if d.recorded() {
		return foreign(check)
	}
	names, _ := filepath.Glob(d.path("/sys/bus/pci/devices/*")) // the pattern is well-formed
	var found []finding
	for _, name := range names {
		address := filepath.Base(name)
		class := d.read("/sys/bus/pci/devices/" + address + "/class")
		if _, err := os.Lstat(filepath.Join(name, "driver")); err == nil {
			continue
		}
		for _, kind := range driven {
			if !strings.HasPrefix(class, kind.class) {
				continue
			}
			remedy := "lspci -k -s " + address + " names the modules for it"
			if module := modules[d.read("/sys/bus/pci/devices/"+address+"/vendor")]; module != "" {
				remedy = "modprobe " + module + "; " + remedy
			}
			found = append(found, warn(check, remedy, "%s (class %s, %s) has no driver", address, class, kind.what)...)
		}
	}
	if len(found) == 0 {
		return ok(check, "all GPUs, accelerators, InfiniBand adapters and NVMe controllers have one")
	}
	return found
}

// checkLinks looks for /dev/char/MAJ:MIN or /dev/block/MAJ:MIN of each node that is given out. runc's systemd driver
// names nodes by these, and leaves out of a container's list whichever has none: the next "systemctl daemon-reload"
// takes the device away (opencontainers/cgroups devices/systemd.go).
func (d *doctor) checkLinks() []finding {
	const check = "/dev/char links"
	switch {
	case d.status == nil:
		return silent(check)
	case d.recorded():
		return foreign(check)
	}
	var found []finding
	seen := make(map[string]bool)
	for _, v := range d.devices {
		for _, node := range v.Nodes {
			kind, number, ok := d.number(d.path(node))
			if !ok || v.Resource == "" || seen[node] {
				continue
			}
			link := "/dev/" + kind + "/" + number
			if _, err := os.Lstat(d.path(link)); err == nil {
				continue
			}
			seen[node] = true
			text := fmt.Sprintf("%s has no link %s: the next 'systemctl daemon-reload' takes it from running containers", node, link)
			if by := holder(v); by != "-" {
				text += ", now from " + by
			}
			found = append(found, warn(check, "mkdir -p /dev/"+kind+" && ln -s ../"+strings.TrimPrefix(node, "/dev/")+" "+link, "%s", text)...)
		}
	}
	if len(found) == 0 {
		return ok(check, "every node that is given out has its link")
	}
	return found
}

// checkRDMA tells whether containers see the RDMA devices of the host (ib_core's parameter netns_mode: shared or not).
func (d *doctor) checkRDMA() []finding {
	const check = "RDMA namespaces"
	if d.recorded() {
		return foreign(check)
	}
	switch d.read("/sys/module/ib_core/parameters/netns_mode") {
	case "":
		return ok(check, "ib_core is not loaded")
	case "Y", "1":
		return ok(check, "shared")
	}
	return fail(check, "rdma system set netns shared; at boot: options ib_core netns_mode=1 in /etc/modprobe.d",
		"exclusive: a container in a network namespace of its own cannot use an RDMA device")
}

// checkSELinux looks at the labels that the kubelet and we need, and for denials.
func (d *doctor) checkSELinux() []finding {
	const check = "SELinux"
	enforcing := d.read("/sys/fs/selinux/enforce")
	if enforcing == "" {
		return ok(check, "it is off")
	}
	found := d.checkLabel(check)
	switch n, err := d.denials(); {
	case err != nil:
		found = append(found, skip(check, d.unread(err, "ausearch -m avc -c metalplugd; without auditd: journalctl -k -g avc"),
			"denials: %s: %v", auditLog, plainCause(err))...)
	case n > 0:
		found = append(found, fail(check, "ausearch -m avc -c metalplugd; install metalplug-selinux, or report them",
			"%d denials of metalplug's programs are in the audit log", n)...)
	}
	if len(found) == 0 {
		mode := "permissive"
		if on, err := strconv.ParseBool(enforcing); err == nil && on {
			mode = "enforcing"
		}
		return ok(check, "%s, the labels are right and nothing was denied", mode)
	}
	return found
}

// checkLabel looks at the label of the kubelet's directory; nil: it is right.
func (d *doctor) checkLabel(check string) []finding {
	dir := d.config.Paths.DevicePlugins
	switch label, err := d.label(d.path(dir)); {
	case err != nil:
		return skip(check, d.unread(err, "ls -Zd "+dir), "the label of %s: %v", dir, plainCause(err))
	case !strings.Contains(label, ":container_file_t:") && !strings.Contains(label, ":kubelet_"):
		return warn(check, "restart the kubelet, which labels it", "%s is labelled %s, not container_file_t", dir, label)
	}
	return nil
}

// auditLog is where auditd writes denials; auditSize is how much of its end is read, in bytes.
const (
	auditLog  = "/var/log/audit/audit.log"
	auditSize = 4 << 20
)

// denials counts those of our programs at the end of the audit log.
func (d *doctor) denials() (n int, err error) {
	f, err := os.Open(d.path(auditLog))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > auditSize {
		if _, err := f.Seek(-auditSize, io.SeekEnd); err != nil {
			return 0, err
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, 2*auditSize))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte("avc:  denied")) && bytes.Contains(line, []byte("metalplug")) {
			n++
		}
	}
	return n, nil
}
