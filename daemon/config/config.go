// SPDX-License-Identifier: Apache-2.0

// Package config holds the configuration file and its drop-ins as checked values.
//
// Three rules hold. A file is read strictly. Unknown, contradictory or impossible settings are errors, and all errors are
// found at once, each with file, line and key. The result of [Load] needs no further check. A [Config] without an error
// can be run as it is. And Load looks at nothing but the files themselves, so a configuration can be checked on any
// machine. [Config.Check] looks for the other things that must exist. The file metalplug.toml next to this one shows
// every key with its default.
package config

import (
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// DefaultFile is the configuration file that is read when no other is named. It need not exist.
const DefaultFile = "/etc/metalplug/metalplug.toml"

// Words that several keys share.
const (
	// Direct, as the socket of a helper, runs the helper as a child process.
	Direct = "direct"
	// Auto, as a reset method, stands for the method of the class that its driver survives, or for none if there is no
	// such method for the driver that is bound.
	Auto = "auto"
	// None is the reset method and the scrub that does nothing.
	None = "none"
)

// Values of prefer, which decides which free devices the kubelet is advised to take.
const (
	Packed = "packed" // devices that are near to each other
	Spread = "spread" // the devices with the fewest shares taken, for devices that are offered in several shares
)

// Values of inject, which decides how a container gets its devices.
const (
	InjectNodes = "nodes" // as a list of device nodes
	InjectCDI   = "cdi"   // by the names of CDI devices, for runtimes that know the Container Device Interface
)

// Values of when, which decides at which moments a device is reset and erased.
const (
	WhenStart   = "start"   // before a container starts
	WhenRelease = "release" // after the last container that held it has gone
	WhenBoth    = "both"
)

// variablePrefix begins the names of the variables that metalplug sets.
const variablePrefix = "METALPLUG_"

// Config is everything that can be configured.
type Config struct {
	Paths     Paths
	Hardware  Hardware
	Reset     Reset
	Resources []Resource // in the order in which they are tried. A device belongs to the first that matches
	Files     []string   // that it was read from, in the order of reading

	source Problem           // the place where hardware.source names a recording. Its field What is empty
	places map[string]*table // where each resource that a file names is written, by name. A moved one has not changed
}

// Paths is the table [paths], the locations of files on the node. All are absolute. The comments give the key and its
// default.
type Paths struct {
	DevicePlugins string // device_plugins, the directory of kubelet.sock, of at most 76 bytes, "/var/lib/kubelet/device-plugins"
	PodResources  string // pod_resources, the socket of the kubelet, pod-resources/kubelet.sock next to the directory device_plugins
	State         string // state, the directory of files that outlive a reboot, "/var/lib/metalplug"
	Run           string // run, the directory of the control socket, "/run/metalplug"
	CDI           string // cdi, the directory of the CDI specs, "/run/cdi"
	Sysfs         string // sysfs: "/sys"
	Dev           string // dev: "/dev"
	Proc          string // proc: "/proc"
	Cgroup        string // cgroup: "/sys/fs/cgroup"
}

// Hardware is the table [hardware] with the source of the devices.
type Hardware struct {
	// Recording is the absolute path of the recording that takes the place of this machine, or empty for the devices of
	// udev. It is written source = "recording:PATH". A PATH that is not absolute starts at the directory of the main
	// file, also in a drop-in. The default is source = "udev".
	Recording string
}

// Reset is the table [reset] with the sockets of the helpers. The comments give the key and its default.
type Reset struct {
	Socket  string // socket, of metalplug-reset, "/run/metalplug/reset.sock" or [Direct]
	Holders string // holders, of metalplug-holders, "/run/metalplug/holders.sock" or [Direct], its default if socket is that
	Units   string // units, of metalplug-unit, "/run/metalplug/unit.sock" or [Direct], its default if socket is that
}

// Resource is a table [[resource]] with devices that are offered to the kubelet under one name. The comments give the
// key, the meaning, the classes that have it, and the default.
type Resource struct {
	Name    string            // name, an extended resource of Kubernetes, required
	Class   *device.Class     // class, of its devices, required
	Match   map[string]string // match, from property to pattern, all of which must hold (see [device.Rule]), default none
	Exclude map[string]string // exclude, as match, excludes a device for which any of them holds, default none

	Shares      int               // shares, how many times each device is offered, 1 to 1000, default 1
	Prefer      string            // prefer, [Packed] or [Spread], default packed
	Inject      string            // inject, [InjectNodes] or [InjectCDI], default nodes
	CDIKind     string            // cdi_kind, vendor/class of a foreign CDI spec whose devices are named instead of our own, default empty
	Permissions string            // permissions, on the nodes, some of "rwm" for read, write and mknod, default rw
	Env         map[string]string // env, from variable to template in which {id}, {pci} and {node} are replaced, default none
	AllowInUse  bool              // allow_in_use, offers a device though this host uses it, only for nvme and node, default false
	Extras      []string          // umad and issm, the nodes for management datagrams, and those of a subnet manager, only for infiniband, default none
	Nodes       string            // nodes, [device.NVMeGeneric], [device.NVMeBoth] or empty for [device.NVMeBlock], only for nvme, default block

	// Group has the keys group, optional and group_by with the nodes that make up one device. It is only for class node,
	// and nil by default.
	Group *device.Group

	// Members has the keys members, near and rest with the devices that make up one of class bundle. It is only for that
	// class, and nil by default.
	Members *device.Members

	Takeover bool // takeover, registers though another plugin serves the name already (see [Resource.Yields]), default false

	Reset ResourceReset
	Units Units

	// Optional reports that the kubelet hears of the resource only once it has a device. It is true for the built-in
	// resources that no file names, and false for those in a file, so that a pod which asks for one without devices is
	// refused rather than started without.
	Optional bool
}

// Yields reports whether the resource is held back while another plugin serves its name. A name that is built in yields,
// because a vendor's plugin may have had it before metalplug was installed. It yields also where a file overrides keys of
// the resource. Any other name is the operator's choice. takeover makes that choice for a built-in name.
func (r Resource) Yields() bool { return builtinValues(r.Name) != nil && !r.Takeover }

// ResourceReset is the table [resource.reset], the work on a device between two containers.
type ResourceReset struct {
	// Method is a reset method of the class, [Auto] or [None]. The default is auto. It is [None] here where auto stands
	// in the file but can have no effect, because of shares, allow_in_use, or a class whose drivers survive no reset.
	Method string
	// Scrub is how the device is erased. It is none, discard, zero, format, crypto-erase or sanitize, and none by
	// default. A resource of disks must set it.
	Scrub string
	// When is [WhenStart], [WhenRelease] or [WhenBoth]. The default is start.
	When string
	// Timeout is how long it may take. The default is 20 s, or 1 h where a device is erased at its release. For
	// [WhenStart] it is at most 25 s. With [WhenBoth] it holds for the release only, and the work before a start still
	// has to end within 25 s.
	Timeout time.Duration
	// ScrubUnset reports that no file sets how the devices of class node are erased. A disk among them is not offered.
	ScrubUnset bool
}

// AtStart reports whether anything is to be done before a container starts.
func (r ResourceReset) AtStart() bool { return r.When != WhenRelease && r.acts() }

// AtRelease reports whether anything is to be done after a release.
func (r ResourceReset) AtRelease() bool { return r.When != WhenStart && r.acts() }

func (r ResourceReset) acts() bool { return r.Method != None || r.Scrub != None }

// Units is the table [resource.units], a vendor's own steps as systemd template units, "name@.service", whose instance is
// the escaped device ID. An empty field is no step.
type Units struct {
	Init    string // init, must succeed before a device is offered
	Start   string // start, runs before each start of a container, after the reset
	Release string // release, runs after each release, before the device is offered again
}

// Names returns the templates, each once, in the order of their names.
func (u Units) Names() []string {
	names := slices.DeleteFunc([]string{u.Init, u.Start, u.Release}, func(name string) bool { return name == "" })
	slices.Sort(names)
	return slices.Compact(names)
}

// Templates returns the units of all resources, each once, in the order of their names.
func (c Config) Templates() []string {
	var names []string
	for _, r := range c.Resources {
		names = append(names, r.Units.Names()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Rule returns which devices belong to the resource.
func (r Resource) Rule() device.Rule {
	scrub := r.Reset.Scrub
	switch {
	case r.Reset.ScrubUnset:
		scrub = device.ScrubUnset
	case scrub == None:
		scrub = ""
	}
	return device.Rule{
		Resource: r.Name, Class: r.Class, Match: r.Match, Exclude: r.Exclude, AllowInUse: r.AllowInUse,
		Group: r.Group, Bundle: r.Members, Nodes: r.Nodes, Extras: r.Extras, Scrub: scrub,
		ErasedAtStart:    r.Reset.AtStart() && r.Reset.Scrub != None,
		ClearedAtRelease: r.Reset.AtRelease() || r.Units.Release != "", Init: r.Units.Init,
	}
}

// NeedsSpec reports whether the container runtime finds the devices by a CDI spec of ours.
func (r Resource) NeedsSpec() bool { return r.Inject == InjectCDI && r.CDIKind == "" }

// Variable returns the name of the environment variable in which a container finds the IDs of its devices. For
// nvidia.com/gpu it is METALPLUG_NVIDIA_COM_GPU.
func (r Resource) Variable() string {
	return variablePrefix + strings.Map(func(c rune) rune {
		if c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, strings.ToUpper(r.Name))
}

// Rules returns which devices belong to which resource, in the order in which they are to be tried.
func (c Config) Rules() []device.Rule {
	rules := make([]device.Rule, len(c.Resources))
	for i, r := range c.Resources {
		rules[i] = r.Rule()
	}
	return rules
}
