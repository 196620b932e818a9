// SPDX-License-Identifier: Apache-2.0

// Package config reads the configuration file and its drop-ins, and returns checked values.
//
// The package follows three rules. Files are read strictly, so unknown, contradictory and impossible settings are errors. All
// errors are reported together, each with its file, line and key. The result of [Load] needs no further check, so a daemon can
// run with any [Config] that was loaded without an error. Load reads only the configuration files, so a configuration can be
// checked on any machine. [LoadUsable] also checks the other files that must exist. The file metalplug.toml in this directory
// lists every key with its default.
package config

import (
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// DefaultFile is the configuration file that is read by default. DefaultFile need not exist.
const DefaultFile = "/etc/metalplug/metalplug.toml"

// Values that several keys share.
const (
	// Direct is used instead of a helper's socket path. The helper then runs as a child process of metalplugd.
	Direct = "direct"
	// Auto stands for one of the class's reset methods after which the bound driver still works. If there is no such method, the
	// device is not reset.
	Auto = "auto"
	// None means that a device is not reset, or that a disk is not erased.
	None = "none"
)

// Values of the key "prefer", which decides which free devices metalplug recommends to the kubelet.
const (
	Packed = "packed" // devices that are near each other
	Spread = "spread" // devices with the fewest shares in use, for devices with several shares
)

// Values of the key "inject", which decides how a container gets its devices.
const (
	InjectNodes = "nodes" // containers get a list of device nodes
	InjectCDI   = "cdi"   // containers get CDI device names, which the runtime must support
)

// Values of the key "when", which determines when a device is reset and erased.
const (
	WhenStart   = "start"   // before a container starts
	WhenRelease = "release" // after the last container with the device has ended
	WhenBoth    = "both"
)

// Values of the key "serve", which selects the API that offers the devices to the kubelet.
const (
	ServePlugin = "plugin" // through the device plugin API
	ServeDRA    = "dra"    // through resource claims (Dynamic Resource Allocation)
)

// variablePrefix is the prefix of the variable names that metalplug sets.
const variablePrefix = "METALPLUG_"

// Config holds all settings.
type Config struct {
	Paths     Paths
	Hardware  Hardware
	Reset     Reset
	Resources []Resource // ordered by precedence; a device belongs to the first resource that matches
	Files     []string   // files that the configuration was read from, in this order

	source Problem // position of the recording in hardware.source, with an empty field What
	// places maps resource names to their tables in the files. places is separate from Resources, so that a resource counts as
	// unchanged if it only moved within a file.
	places map[string]*table
}

// Paths is the table [paths], which locates files on the node. All paths are absolute. The comments give each field's key,
// meaning and default.
type Paths struct {
	DevicePlugins string // device_plugins, the directory of kubelet.sock, at most 76 bytes, default "/var/lib/kubelet/device-plugins"
	PodResources  string // pod_resources, the kubelet's API socket, default pod-resources/kubelet.sock next to device_plugins
	State         string // state, the directory for files that survive a reboot, default "/var/lib/metalplug"
	Run           string // run, the directory for the control socket, default "/run/metalplug"
	CDI           string // cdi, the directory for CDI specs, default "/run/cdi"
	Sysfs         string // sysfs, where the kernel's sysfs is mounted, default "/sys"
	Dev           string // dev, the directory of the device nodes, default "/dev"
	Proc          string // proc, where the kernel's procfs is mounted, default "/proc"
	Cgroup        string // cgroup, where cgroups are mounted, default "/sys/fs/cgroup"
}

// Hardware is the table [hardware], which sets the device source.
type Hardware struct {
	// Recording is the absolute path of the recording that replaces this node's hardware. If Recording is empty, devices come
	// from udev. In a file, the key is source = "recording:PATH", and the default is source = "udev". A relative PATH is relative
	// to the main file's directory, even in a drop-in.
	Recording string
}

// Reset is the table [reset], which sets the helpers' sockets. The comments give each field's key, helper and default. Each key
// accepts the value [Direct].
type Reset struct {
	Socket  string // socket, for metalplug-reset, or [Direct], default "/run/metalplug/reset.sock"
	Holders string // holders, for metalplug-holders, default "/run/metalplug/holders.sock", or [Direct] if socket is [Direct]
	Units   string // units, for metalplug-unit, default "/run/metalplug/unit.sock", or [Direct] if socket is [Direct]
}

// Resource is a table [[resource]], which configures devices that are offered to the kubelet under one name. The comments
// give the key, the meaning, the classes that support the key, and the default.
type Resource struct {
	Name    string            // name, an extended resource in Kubernetes, required
	Class   string            // class, the devices' class, required
	Match   map[string]string // match, patterns by property, which must all match (see [device.Rule]), default none
	Exclude map[string]string // exclude, patterns by property, which exclude a device if any of them matches, default none

	Shares int    // shares, how many times each device is offered, 1 to 1000, default 1
	Prefer string // prefer, [Packed] or [Spread], default packed
	Inject string // inject, [InjectNodes] or [InjectCDI], default nodes
	// cdi_kind, the vendor/class of another CDI spec whose device names replace metalplug's own, default empty
	CDIKind     string
	Permissions string            // permissions, rights to the nodes, any of "rwm" for read, write and mknod, default rw
	Env         map[string]string // env, templates by variable, with {id}, {pci} and {node} for the devices' values, default none
	AllowInUse  bool              // allow_in_use, offers a device even if the host uses it, only for nvme and node, default false
	// umad and issm, the nodes for management datagrams and for a subnet manager, only for infiniband, default none
	Extras []string
	// nodes, [device.NVMeGeneric], [device.NVMeBoth] or empty for [device.NVMeBlock], only for nvme, default block
	Nodes string

	// Group holds the keys group, optional and group_by, for several nodes that form one device. Group is only for class node,
	// and nil by default.
	Group *device.Group

	// Members holds the keys members, near and rest, for the devices in a bundle. Members is only for class bundle, and nil by
	// default.
	Members *device.Members

	Serve    string // serve, [ServeDRA], or empty for [ServePlugin]
	Takeover bool   // takeover, registers even if another plugin serves the name (see [Resource.Yields]), default false

	Reset ResourceReset
	Units Units

	// Optional is true for a built-in resource that no file contains. An optional resource is not registered with the kubelet
	// until a device has matched it. A resource in a file is always registered, but a pod that requests the resource does not
	// start while the resource has no devices.
	Optional bool
}

// Yields reports whether metalplugd does not register the resource while another plugin serves the same name. A resource with a
// built-in name yields, even if a file overrides its keys, because a vendor's plugin may have used this name before metalplug was
// installed. A resource with any other name does not yield, because the operator chose the name. A resource with takeover never
// yields.
func (r Resource) Yields() bool { return builtinValues(r.Name) != nil && !r.Takeover }

// ResourceReset is the table [resource.reset], which configures the work on a device between two containers.
type ResourceReset struct {
	// Method is one of the class's reset methods, [Auto] or [None]. The default is auto. In three cases, auto has no effect, and
	// Method is [None]: Shares is more than 1, AllowInUse is set, or the class's drivers would stop working after a reset.
	Method string
	// Scrub is the method that erases a disk between two pods: none, discard, zero, format, crypto-erase or sanitize. The default
	// is none. A file must set this key for a resource that offers disks.
	Scrub string
	// When says when the work is done: [WhenStart], [WhenRelease] or [WhenBoth]. The default is start.
	When string
	// Timeout is the maximum duration of a reset and erasure. The default is 20 s. For an erasure after a release, and for every
	// erasure with DRA, the default is 1 h. With [WhenStart], the maximum is 25 s, except with DRA. With [WhenBoth], Timeout
	// applies only to the release, and the work before a start must end within 25 s.
	Timeout time.Duration
	// ScrubUnset is true for a resource of class node for which no file sets a scrub. metalplug does not offer disks that match a
	// resource with ScrubUnset.
	ScrubUnset bool
}

// AtStart reports whether there is work to do before a container starts.
func (r ResourceReset) AtStart() bool { return r.When != WhenRelease && r.hasWork() }

// AtRelease reports whether there is work to do after a device is released.
func (r ResourceReset) AtRelease() bool { return r.When != WhenStart && r.hasWork() }

func (r ResourceReset) hasWork() bool { return r.Method != None || r.Scrubs() }

// Scrubs reports whether disks are erased between two pods.
func (r ResourceReset) Scrubs() bool { return r.Scrub != None }

// Units is the table [resource.units], which names a vendor's systemd template units, "name@.service". The instance name
// is the escaped device ID. An empty field means that there is no unit.
type Units struct {
	Init    string // init, must succeed before a device is offered
	Start   string // start, runs before each container start, after the reset
	Release string // release, runs after each release, before the device is offered again
}

// Templates returns all resources' units in sorted order, without duplicates.
func (c Config) Templates() []string {
	var names []string
	for _, r := range c.Resources {
		names = append(names, r.Units.Init, r.Units.Start, r.Units.Release)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	slices.Sort(names)
	return slices.Compact(names)
}

// Rule returns the rule that selects the resource's devices.
func (r Resource) Rule() device.Rule {
	scrub := r.Reset.Scrub
	switch {
	case r.Reset.ScrubUnset:
		scrub = device.ScrubUnset
	case scrub == None:
		scrub = ""
	}
	class := device.ClassNamed(r.Class)
	if r.Class == device.BundleName {
		class = &device.Bundle
	}
	claims := 0
	if r.Serve == ServeDRA {
		claims = r.Shares
	}
	return device.Rule{
		Resource: r.Name, Class: class, Match: r.Match, Exclude: r.Exclude, AllowInUse: r.AllowInUse,
		Group: r.Group, Bundle: r.Members, Nodes: r.Nodes, Extras: r.Extras, Scrub: scrub,
		ErasedAtStart:    r.Reset.AtStart() && r.Reset.Scrubs(),
		ClearedAtRelease: r.ClearedAtRelease(), Init: r.Units.Init, Claims: claims,
	}
}

// SharesUse reports whether the configuration allows several pods, or a pod and the host, to have a device open at the same time.
// Such a device is neither reset nor erased.
func (r Resource) SharesUse() bool { return r.Shares > 1 || r.AllowInUse }

// ClearedAtRelease reports whether there is work to do after the last container with a device has ended.
func (r Resource) ClearedAtRelease() bool { return r.Reset.AtRelease() || r.Units.Release != "" }

// NeedsSpec reports whether metalplug must write a CDI spec for the devices.
func (r Resource) NeedsSpec() bool { return r.Inject == InjectCDI && r.CDIKind == "" }

// WritesSpecs reports whether the daemon writes CDI specs for the resource, either one for all devices or one for each claim.
func (r Resource) WritesSpecs() bool { return r.NeedsSpec() || r.Serve == ServeDRA }

// Variable returns the name of the environment variable that contains the IDs of a container's devices. For
// nvidia.com/gpu, the name is METALPLUG_NVIDIA_COM_GPU.
func (r Resource) Variable() string {
	return variablePrefix + strings.Map(func(c rune) rune {
		if c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, strings.ToUpper(r.Name))
}

// Resource returns the resource with the given name. The result ok is false if there is no such resource.
func (c Config) Resource(name string) (r Resource, ok bool) {
	i := slices.IndexFunc(c.Resources, func(r Resource) bool { return r.Name == name })
	if i < 0 {
		return r, false
	}
	return c.Resources[i], true
}

// Rules returns the rules of all resources, in order of precedence.
func (c Config) Rules() []device.Rule {
	rules := make([]device.Rule, len(c.Resources))
	for i, r := range c.Resources {
		rules[i] = r.Rule()
	}
	return rules
}

// Default returns the configuration that applies if there are no files.
func Default() Config {
	c := staticDefaults()
	c.apply("/")
	return c
}

// staticDefaults returns the defaults that do not depend on the values of other keys.
func staticDefaults() (c Config) {
	for _, path := range c.pathKeys() {
		*path.to = strings.Trim(exampleValues[path.key], `"`)
	}
	return c
}

// builtin lists the built-in resources as they would appear in a file. Most of them have the names that vendors' plugins use, so
// that existing pods need no changes.
var builtin = []map[string]any{
	{"name": "nvidia.com/gpu", "class": "gpu", "match": map[string]any{"PCI_ID": "10DE:*"}},
	{"name": "amd.com/gpu", "class": "gpu", "match": map[string]any{"PCI_ID": "1002:*"}},
	{"name": "gpu.intel.com/i915", "class": "gpu", "match": map[string]any{"PCI_ID": "8086:*", "DRIVER": "i915"}},
	{"name": "gpu.intel.com/xe", "class": "gpu", "match": map[string]any{"PCI_ID": "8086:*", "DRIVER": "xe"}},
	{"name": "intel.com/fpga", "class": "fpga", "match": map[string]any{"DEVNAME": "/dev/dfl-port.*|/dev/intel-fpga-port.*"}},
	{"name": "xilinx.com/fpga", "class": "fpga", "match": map[string]any{"DRIVER": "xocl"}},
	{"name": "metalplug.io/infiniband", "class": "infiniband"},
	{"name": nvme, "class": "nvme"},
}

// nvme is a built-in resource that metalplugd ignores unless a file contains the resource and sets its scrub.
const nvme = "metalplug.io/nvme"

// builtinValues returns the built-in values for a resource name, or nil.
func builtinValues(name string) map[string]any {
	for _, values := range builtin {
		if values["name"] == name {
			return values
		}
	}
	return nil
}

// builtinResource returns the resource with the given built-in values.
func builtinResource(values ...map[string]any) Resource {
	t := &table{}
	for _, v := range values {
		t.merge(place{}, v)
	}
	return resource(t)
}

// BuiltinRules returns the rules of all built-in resources, including those that metalplugd ignores unless a file contains them.
func BuiltinRules() []device.Rule {
	none := map[string]any{"reset": map[string]any{"scrub": None}}
	var rules []device.Rule
	for _, values := range builtin {
		rules = append(rules, builtinResource(values, none).Rule())
	}
	return rules
}
