// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// pciClasses lists the PCI classes of hardware that metalplug can offer. The field class contains the first characters of a PCI
// function's sysfs attribute "class" (include/linux/pci_ids.h).
var pciClasses = []struct{ class, what string }{
	{"0x03", "a display or GPU"}, {"0x12", "a processing accelerator"}, {"0x0207", "an InfiniBand adapter"}, {"0x0108", "an NVMe controller"},
}

// modules maps PCI vendors to their drivers' kernel modules.
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
	mode := "permissive"
	if enforcing == "1" {
		mode = "enforcing"
	}
	return mode + ", the labels are correct, and nothing was denied"
}

// checkSandbox reports masked units of metalplug, and a kernel that allows no user namespaces. systemd cannot start the units in
// either case. If there is no such problem, checkSandbox adds no finding.
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

// setting returns the first value of a key in TOML text, regardless of the section, or "" if the key is missing.
func setting(text, key string) string {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, "=")
		if ok && strings.TrimSpace(name) == key {
			value, _, _ = strings.Cut(value, "#")
			return strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return ""
}

// These are the container runtimes' default configuration files.
const (
	containerdFile = "/etc/containerd/config.toml"
	crioFile       = "/etc/crio/crio.conf"
)

// checkCDI checks that the container runtime accepts CDI device names. checkCDI does nothing if no resource uses CDI names.
func (d *doctor) checkCDI() (fine string) {
	if !slices.ContainsFunc(d.config.Resources, func(r config.Resource) bool {
		return r.Inject == config.InjectCDI || r.Serve == config.ServeDRA
	}) {
		return "no resource needs it"
	}
	runtime := d.read(containerdFile)
	switch enabled := setting(runtime, "enable_cdi"); {
	case runtime == "" && (d.exists(crioFile) || d.exists(crioFile+".d")):
		return "CRI-O enables it by default"
	case runtime == "":
		d.skip("check that the runtime supports CDI names, as CRI-O and containerd 2 do", "%s cannot be read", containerdFile)
	case enabled == "":
		d.warn(`set enable_cdi = true in the CRI plugin's section of /etc/containerd/config.toml`,
			"enable_cdi is not set: containerd 1.7 then disables CDI, and containerd 1.6 starts containers without their devices")
	case enabled == "false":
		d.fail("set enable_cdi = true in /etc/containerd/config.toml and restart containerd",
			"containerd's enable_cdi is false: containers with devices do not start")
	}
	return "containerd's enable_cdi is true"
}

// checkMemlock checks how much memory containers may lock, because RDMA locks all its buffers. A container inherits its runtime's
// limit. checkMemlock reads the limit from the runtime's process, because the unit file may have changed since the process
// started.
func (d *doctor) checkMemlock() (fine string) {
	offered := slices.ContainsFunc(d.devices, func(v api.Device) bool { return v.Class == device.InfiniBandName && v.Resource != "" })
	configured := slices.ContainsFunc(d.config.Resources, func(r config.Resource) bool { return r.Class == device.InfiniBandName })
	if !offered && (d.status != nil || !configured) {
		return "no offered device needs it"
	}
	names, _ := filepath.Glob(d.path("/proc/[0-9]*/comm")) // Glob fails only for an invalid pattern
	for _, name := range names {
		process := filepath.Base(filepath.Dir(name))
		runtime := d.read("/proc/" + process + "/comm")
		if runtime != "containerd" && runtime != "crio" {
			continue
		}
		limit := lockedMemory(d.read("/proc/" + process + "/limits"))
		if limit != "unlimited" {
			d.warn("systemctl edit "+runtime+": [Service] LimitMEMLOCK=infinity; then restart the runtime and the pods",
				"%s (pid %s) and its containers may lock at most %s bytes: RDMA programs cannot register memory", runtime, process, limit)
		}
		return runtime + " has no limit"
	}
	d.skip("start the container runtime", "neither containerd nor CRI-O is running")
	return ""
}

// lockedMemory returns the soft limit for locked memory. The parameter limits is the text of /proc/PID/limits.
func lockedMemory(limits string) string {
	for line := range strings.Lines(limits) {
		if rest, ok := strings.CutPrefix(line, "Max locked memory"); ok {
			if fields := strings.Fields(rest); len(fields) > 0 {
				return fields[0]
			}
		}
	}
	return "an unknown number of"
}
