// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
)

// setting returns the first value of a key in a TOML text, regardless of the section, or "" if the key is missing.
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

// infiniband is the class of the devices that need locked memory.
const infiniband = "infiniband"

// By default, the container runtimes use these configuration files.
const (
	containerdFile = "/etc/containerd/config.toml"
	crioFile       = "/etc/crio/crio.conf"
)

// checkCDI checks that the container runtime accepts CDI device names. checkCDI does nothing if no resource uses such names.
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

// checkMemlock checks how much memory containers may lock, because RDMA locks all its buffers. A container inherits the limit of
// its runtime. checkMemlock reads the limit from the runtime's process, because the unit file may have changed since the process
// started.
func (d *doctor) checkMemlock() (fine string) {
	offered := slices.ContainsFunc(d.devices, func(v api.Device) bool { return v.Class == infiniband && v.Resource != "" })
	configured := slices.ContainsFunc(d.config.Resources, func(r config.Resource) bool { return r.Class == infiniband })
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
