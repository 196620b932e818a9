// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/metalplug/metalplug/internal/fsutil"
)

// pciClasses lists the PCI classes of hardware that metalplug can offer. The field class is the beginning of the text in the
// sysfs attribute "class" of a PCI function (include/linux/pci_ids.h).
var pciClasses = []struct{ class, what string }{
	{"0x03", "a display or GPU"}, {"0x12", "a processing accelerator"}, {"0x0207", "an InfiniBand adapter"}, {"0x0108", "an NVMe controller"},
}

// modules maps PCI vendors to the kernel modules of their drivers.
var modules = map[string]string{"0x10de": "nvidia", "0x1002": "amdgpu", "0x15b3": "mlx5_core"}

// checkDrivers finds hardware without a driver. metalplugd may not list hardware without a driver, because some classes recognise
// a device by its driver. The finding is a warning instead of a failure, because the hardware may be intended for a virtual
// machine.
func (d *doctor) checkDrivers() (fine string) {
	names, _ := filepath.Glob(d.path("/sys/bus/pci/devices/*")) // Glob fails only for an invalid pattern
	for _, name := range names {
		address := filepath.Base(name)
		dir := "/sys/bus/pci/devices/" + address
		class := d.read(dir + "/class")
		for _, kind := range pciClasses {
			if !strings.HasPrefix(class, kind.class) || d.exists(dir+"/driver") {
				continue
			}
			remedy := "lspci -k -s " + address + " names its modules"
			if module := modules[d.read(dir+"/vendor")]; module != "" {
				remedy = "modprobe " + module + "; " + remedy
			}
			d.warn(remedy, "%s (class %s, %s) has no driver", address, class, kind.what)
		}
	}
	return "all GPUs, accelerators, InfiniBand adapters and NVMe controllers have a driver"
}

// moduleFiles lists, for each package manager, the file from which the package metalplug-selinux installs its policy module. The
// file moduleBoolean is an SELinux boolean of this module (selinux/metalplug.te). This file exists while the module is loaded,
// and any user can see the file.
var moduleFiles = []struct{ file, reinstall string }{
	{"/usr/share/selinux/packages/metalplug.pp.bz2", "apt-get install --reinstall metalplug-selinux"},
	{"/usr/share/selinux/packages/metalplug/metalplug.te", "dnf reinstall metalplug-selinux"},
}

const moduleBoolean = "/sys/fs/selinux/booleans/metalplugd_metrics_tcp"

// checkSELinux checks the label of the kubelet's directory and searches the audit log for denials. If the package with the policy
// module is installed, checkSELinux also checks that the module is loaded.
func (d *doctor) checkSELinux() (fine string) {
	enforcing := d.read("/sys/fs/selinux/enforce")
	if enforcing == "" {
		return "SELinux is off"
	}
	for _, from := range moduleFiles {
		if d.exists(from.file) && !d.exists(moduleBoolean) {
			d.fail(from.reinstall+", which shows the error", "metalplug-selinux is installed, but its policy module is not loaded")
		}
	}
	dir := d.config.Paths.DevicePlugins
	switch label, err := d.label(d.path(dir)); {
	case err != nil:
		d.skip(readRemedy(err, "ls -Zd "+dir), "the label of %s cannot be read: %v", dir, fsutil.Cause(err))
	case !strings.Contains(label, ":container_file_t:") && !strings.Contains(label, ":kubelet_"):
		d.warn("restart the kubelet, which sets the label of the directory", "%s has the label %s, not container_file_t", dir, label)
	}
	switch n, err := d.countDenials(); {
	case err != nil:
		d.skip(readRemedy(err, "ausearch -m avc -c metalplugd; without auditd: journalctl -k -g avc"), "denials cannot be counted: %s: %v", auditLog, fsutil.Cause(err))
	case n > 0:
		d.fail("ausearch -m avc -c metalplugd; install metalplug-selinux, or report the denials",
			"the audit log contains %d denials for metalplug's programs", n)
	}
	mode := map[bool]string{true: "enforcing", false: "permissive"}[enforcing == "1"]
	return mode + ", the labels are correct, and nothing was denied"
}

// checkSandbox reports masked units of metalplug, and a kernel that allows no user namespaces. systemd cannot start the units in
// either case. Without such a problem, checkSandbox adds no finding.
func (d *doctor) checkSandbox() (fine string) {
	if d.read("/proc/sys/user/max_user_namespaces") == "0" {
		d.fail("sysctl -w user.max_user_namespaces=1024; to keep the value, write it to /etc/sysctl.d",
			"user.max_user_namespaces is 0, so PrivateUsers= of metalplugd.service fails (217/USER)")
	}
	// The command "systemctl mask" creates its links below these directories.
	for _, mask := range []struct{ dir, option string }{{"/etc", ""}, {"/run", "--runtime "}} {
		units, _ := filepath.Glob(d.path(mask.dir + "/systemd/system/metalplug*")) // Glob fails only for an invalid pattern
		for _, unit := range units {
			if to, err := os.Readlink(unit); err == nil && to == "/dev/null" {
				d.fail("systemctl unmask "+mask.option+filepath.Base(unit), "%s is masked", filepath.Base(unit))
			}
		}
	}
	return ""
}
