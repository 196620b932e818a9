// SPDX-License-Identifier: Apache-2.0

package config

import (
	_ "embed"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// Default returns the configuration that holds without any file.
func Default() Config {
	c := basic()
	c.complete()
	return c
}

// Reference returns the text of metalplug.toml, in which every key is shown, commented out, with its default.
func Reference() string { return reference }

//go:embed metalplug.toml
var reference string

// basic returns the defaults of all keys that do not depend on others.
func basic() Config {
	return Config{
		Paths: Paths{
			DevicePlugins: "/var/lib/kubelet/device-plugins",
			PodResources:  "/var/lib/kubelet/pod-resources/kubelet.sock",
			State:         "/var/lib/metalplug",
			Run:           "/run/metalplug",
			CDI:           "/run/cdi",
			Sysfs:         "/sys",
			Dev:           "/dev",
			Proc:          "/proc",
			Cgroup:        "/sys/fs/cgroup",
		},
		Reset: Reset{Socket: "/run/metalplug/reset.sock"},
	}
}

// complete sets what no file has set and what depends on what the files say.
func (c *Config) complete() {
	if c.Reset.Holders == "" {
		c.Reset.Holders = "/run/metalplug/holders.sock"
		if c.Reset.Socket == Direct {
			c.Reset.Holders = Direct
		}
	}
	if c.Reset.Units == "" {
		c.Reset.Units = "/run/metalplug/unit.sock"
		if c.Reset.Socket == Direct {
			c.Reset.Units = Direct
		}
	}
	if len(c.Resources) == 0 {
		c.Resources = defaultResources()
	}
}

// defaultResources are offered where no resource is configured: under the names that the vendors' own plugins gave
// them, so that pods which ask for these keep working.
func defaultResources() []Resource {
	all := []Resource{
		newResource("nvidia.com/gpu", &device.GPU, map[string]string{"PCI_ID": "10DE:*"}),
		newResource("amd.com/gpu", &device.GPU, map[string]string{"PCI_ID": "1002:*"}),
		newResource("gpu.intel.com/i915", &device.GPU, map[string]string{"PCI_ID": "8086:*", "DRIVER": "i915"}),
		newResource("gpu.intel.com/xe", &device.GPU, map[string]string{"PCI_ID": "8086:*", "DRIVER": "xe"}),
		newResource("intel.com/fpga", &device.FPGA, map[string]string{"DEVNAME": "/dev/dfl-port.*|/dev/intel-fpga-port.*"}),
		newResource("xilinx.com/fpga", &device.FPGA, map[string]string{"DRIVER": "xocl"}),
		newResource("metalplug.io/infiniband", &device.InfiniBand, nil),
		newResource("metalplug.io/nvme", &device.NVMe, nil),
	}
	for i := range all {
		all[i].settle()
		all[i].Optional = true
	}
	return all
}

// newResource returns a resource with the defaults of all its keys.
func newResource(name string, class *device.Class, match map[string]string) Resource {
	return Resource{
		Name: name, Class: class, Match: match,
		Shares: 1, Prefer: Packed, Inject: InjectNodes, Permissions: "rw",
		Reset: ResourceReset{Method: Auto, Scrub: None, When: WhenStart, Timeout: 20 * time.Second},
	}
}
