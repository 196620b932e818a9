// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/config"
)

// Beginnings of resources. The last line is the third. A disk must still set scrub.
const (
	valid   = "[[resource]]\nname = \"example.com/x\"\nclass = \"gpu\"\n"
	bundled = "[[resource]]\nname = \"example.com/b\"\nclass = \"bundle\"\n"
	disk    = "[[resource]]\nname = \"example.com/x\"\nclass = \"nvme\"\n"
)

// resourceKeys are the keys of a resource, as an error lists them.
const resourceKeys = "allow_in_use, cdi_kind, class, env, exclude, group, group_by, inject, issm, match, members, name, near, nodes, " +
	"optional, permissions, prefer, reset, rest, serve, shares, takeover, umad, units"

// problems loads a configuration and returns its problems, without the directory.
func problems(t *testing.T, text string) string {
	t.Helper()
	dir := tree(t, map[string]string{"m.toml": text})
	_, err := config.Load(filepath.Join(dir, "m.toml"))
	var found config.Problems
	if err != nil && !errors.As(err, &found) {
		t.Fatalf("%v is no list of problems", err)
	}
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), dir+"/", "")
}

// tomlRemedy is the remedy for a file that is not TOML.
const tomlRemedy = `; in TOML, write key = "text", key = 1 or key = true below [NAME] or [[resource]], and a key such as "ATTR{size}" in quotes`

func TestProblems(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		// not TOML at all
		{"no value", "a =\n", `m.toml:1: a: expected value but found '\n' instead` + tomlRemedy},
		{"one line only", `a = "\`, `m.toml:1: a: invalid escape in string '\ '` + tomlRemedy},
		{"key with braces", valid + "match = { ATTR{size} = \"1\" }\n", `m.toml:4: resource.match: expected '.' or '=', but got '{' instead` + tomlRemedy},
		{"half of a bracket", "[[resource]\nname = \"a\"\n", `m.toml:1: expected end of table array name delimiter ']', but got '\n' instead` + tomlRemedy},
		{"open table", "paths = { run = \"/run\"", `m.toml:1: paths.run: expected a comma or an inline table terminator '}', but got end of file instead` + tomlRemedy},
		{"newline in string, CRLF", "[paths]\r\nrun = \"/a\r\n\"\r\n", `m.toml:2: paths.run: strings cannot contain newlines` + tomlRemedy},
		{"zero byte", "\n[paths]\nrun = \"/a\x00\"\n", `m.toml:3: paths.run: TOML files cannot contain control characters: '0x00'` + tomlRemedy},
		{
			"UTF-16", "a\x00 \x00=\x00",
			`m.toml:1: files cannot contain NULL bytes; probably using UTF-16; TOML files must be UTF-8` + tomlRemedy,
		},
		{"control characters in a key", "\"a\\n\\u009bb\".c = 1\n\"a\\n\\u009bb\".c = 2\n", `m.toml:2: "a\n b".c: Key '"a\n b".c' has already been defined` + tomlRemedy},

		// Unknown keys.
		{"unknown table", "[colours]\n", `m.toml:1: colours: unknown key; valid keys are builtin, hardware, paths, reset, resource`},
		{"unknown key", "\n[paths]\ncolour = 1\n", `m.toml:3: paths.colour: unknown key; valid keys are cdi, cgroup, dev, device_plugins, pod_resources, proc, run, state, sysfs`},
		{"flag of the daemon", "log_level = \"debug\"\n", `m.toml:1: log_level: unknown key; use metalplugd --log-level`},
		{"key of other plugins", valid + "replicas = 2\n", `m.toml:4: resource.replicas: unknown key; did you mean shares?`},
		{"switch of other programs", valid + "enabled = false\n", `m.toml:4: resource.enabled: unknown key; to turn off a resource, remove its table; for a built-in one, write builtin = false and a [[resource]] for each of the others`},
		{"order of other programs", valid + "priority = 1\n", `m.toml:4: resource.priority: unknown key; the first [[resource]] that matches takes a device, so write this one before the others`},
		{"checks of other programs", valid + "health = true\n", `m.toml:4: resource.health: unknown key; remove it, since metalplug always checks the health of a device`},
		{"files of other programs", "include = [\"a\"]\n", `m.toml:1: include: unknown key; write other files as conf.d/NAME.toml next to this file`},
		{"misspelt", "[paths]\nsysf = \"/sys\"\n", `m.toml:2: paths.sysf: unknown key; did you mean sysfs?`},
		{"other case", "[paths]\nCDI = \"/run/cdi\"\n", `m.toml:2: paths.CDI: unknown key; did you mean cdi?`},
		{"misspelt table", "[[resources]]\nname = \"a\"\n", `m.toml:1: resources: unknown key; did you mean resource?`},
		{"other table", valid + "scrub = \"zero\"\n", `m.toml:4: resource.scrub: unknown key; did you mean resource.reset.scrub?`},
		{"units for all", valid + "[units]\n", `m.toml:4: units: unknown key; did you mean resource.units?`},
		{"abbreviated", valid + "perms = \"rw\"\n", `m.toml:4: resource.perms: unknown key; did you mean permissions?`},
		{"key of no table", valid + "builtin = false\n", `m.toml:4: resource.builtin: unknown key; write builtin above the first table`},
		{"misspelt built-in", "[[resource]]\nname = \"nvidia.com/gpus\"\n", `m.toml:1: resource.class: is missing: a resource that overrides no other needs class gpu, fpga, infiniband, nvme, node or bundle; for a built-in resource write "nvidia.com/gpu"`},
		{"misspelt, deep", valid + "reset.timout = \"1s\"\n", `m.toml:4: resource.reset.timout: unknown key; did you mean timeout?`},
		{"quoted", "\"a b\" = 1\n", `m.toml:1: "a b": unknown key; valid keys are builtin, hardware, paths, reset, resource`},
		{"empty key", "\"\" = 1\n", `m.toml:1: "": unknown key; valid keys are builtin, hardware, paths, reset, resource`},

		// Types.
		{"state in the kubelet's directory", "[paths]\nstate = \"/var/lib/kubelet/device-plugins\"\n", `m.toml:2: paths.state: is the directory of device plugins, which the kubelet empties; write another one`},
		{"sockets in the kubelet's directory", "[paths]\nrun = \"/x/\"\ndevice_plugins = \"/x\"\n", `m.toml:2: paths.run: is the directory of device plugins, which the kubelet empties; write another one`},
		{"table as value", "paths = 1\n", `m.toml:1: paths: is an integer, not a table; write [paths]`},
		{"value as table", "[paths.run]\n", `m.toml:1: paths.run: is a table, not a string in quotes; write run = "/run/metalplug"`},
		{"resource as table", "[resource]\nname = \"example.com/x\"\n", `m.toml:1: resource: is a table, not an array of tables; write [[resource]]`},
		{"resource as array", "resource = [1]\n", `m.toml:1: resource: is an array, not an array of tables; write [[resource]]`},
		{"array of tables as table", "[[hardware]]\n", `m.toml:1: hardware: is an array of tables, not a table; write [hardware]`},
		{"name", "[[resource]]\nname = 1.5\nclass = \"gpu\"\n", `m.toml:2: resource.name: is a float, not a string in quotes; write name = "example.com/gpu"`},
		{"match value", valid + "match = { ID_NSID = 1 }\n", `m.toml:4: resource.match.ID_NSID: is an integer, not a string in quotes; write ID_NSID = "A*" or "A*|B"`},
		{"match", valid + "match = \"*\"\n", `m.toml:4: resource.match: is a string in quotes, not a table; write match = { ID_MODEL = "Samsung*" }`},
		{"NVIDIA's variable", valid + "env = { NVIDIA_VISIBLE_DEVICES = \"all\" }\n", `m.toml:4: resource.env.NVIDIA_VISIBLE_DEVICES: is set by metalplug, since another value would give a container the GPUs of other pods; remove it`},
		{"built-in without its keys", "builtin = false\n[[resource]]\nname = \"metalplug.io/nvme\"\nreset.scrub = \"zero\"\n", `m.toml:2: resource.class: is missing: builtin is false; write class = "nvme" and the other keys of metalplug.io/nvme`},
		{"reset", valid + "reset = \"none\"\n", `m.toml:4: resource.reset: is a string in quotes, not a table; write [resource.reset]`},
		{"timeout", valid + "reset.timeout = 20\n", `m.toml:4: resource.reset.timeout: is an integer, not a duration in quotes; write timeout = "20s", "5m" or "1h30m"`},

		// [paths], [hardware], [reset].
		{"relative", "[paths]\nrun = \"run/metalplug\"\n", `m.toml:2: paths.run: "run/metalplug" is not an absolute path; write run = "/run/metalplug"`},
		{
			"device_plugins of 77 bytes", "[paths]\ndevice_plugins = \"/" + strings.Repeat("d", 76) + "\"\n",
			`m.toml:2: paths.device_plugins: "/` + strings.Repeat("d", 76) + `/mp" is 108 bytes long, but the path of a socket is limited to 107; write device_plugins = "/var/lib/kubelet/device-plugins"`,
		},
		{"device_plugins of 76 bytes", "[paths]\ndevice_plugins = \"/" + strings.Repeat("d", 75) + "\"\n", ""},
		{
			"run of 95 bytes", "[paths]\nrun = \"/" + strings.Repeat("d", 94) + "\"\n",
			`m.toml:2: paths.run: "/` + strings.Repeat("d", 79) + `" is 108 bytes long, but the path of a socket is limited to 107; write run = "/run/metalplug"`,
		},
		{
			"pod_resources of 108 bytes", "[paths]\npod_resources = \"/" + strings.Repeat("d", 107) + "\"\n",
			`m.toml:2: paths.pod_resources: "/` + strings.Repeat("d", 79) + `" is 108 bytes long, but the path of a socket is limited to 107; write pod_resources = "/var/lib/kubelet/pod-resources/kubelet.sock"`,
		},
		{"state and run are one", "[paths]\nstate = \"/k\"\nrun = \"/k\"\n", ""},
		{"source", "[hardware]\nsource = \"sysfs\"\n", `m.toml:2: hardware.source: "sysfs" is neither "udev" nor "recording:PATH"; write source = "udev"`},
		{"no recording", "[hardware]\nsource = \"recording:\"\n", `m.toml:2: hardware.source: "recording:" is neither "udev" nor "recording:PATH"; write source = "udev"`},
		{"state that a reboot empties", "[paths]\nstate = \"/run/x\"\n", `m.toml:2: paths.state: "/run/x" is empty after a reboot, and then all disks are unproven; write a directory on a disk, such as "/var/lib/metalplug"`},
		{"state by the old name of /run", "[paths]\nstate = \"/var/run/x\"\n", `m.toml:2: paths.state: "/var/run/x" is empty after a reboot, and then all disks are unproven; write a directory on a disk, such as "/var/lib/metalplug"`},
		{"directory of a helper", "[reset]\nsocket = \"/run/x/\"\n", `m.toml:2: reset.socket: "/run/x/" is a directory, not a socket; write the path of the socket or "direct"`},
		{"two signs", "a == 1\n", `m.toml:1: a: expected value but found '=' instead` + tomlRemedy},
		{"socket", "[reset]\nsocket = \"reset.sock\"\n", `m.toml:2: reset.socket: "reset.sock" is not an absolute path or "direct"; write socket = "/run/metalplug/reset.sock"`},
		{"holders", "[reset]\nholders = \"Direct\"\n", `m.toml:2: reset.holders: "Direct" is not an absolute path or "direct"; write holders = "/run/metalplug/holders.sock"`},
		{
			"socket of 108 bytes", "reset.socket = \"/" + strings.Repeat("d", 107) + "\"\n",
			`m.toml:1: reset.socket: "/` + strings.Repeat("d", 79) + `" is 108 bytes long, but the path of a socket is limited to 107; write socket = "/run/metalplug/reset.sock"`,
		},

		// [[resource]].
		{
			"nothing", "\n[[resource]]\n", "m.toml:2: resource.name: is missing: the name by which pods request the devices; write name = \"example.com/gpu\"\n" +
				"m.toml:2: resource.class: is missing: a resource that overrides no other needs class gpu, fpga, infiniband, nvme, node or bundle; write class = \"gpu\"",
		},
		{
			"twice in a file", valid + "\n" + valid,
			`m.toml:6: resource.name: "example.com/x" is defined twice, first on line 2; merge the two`,
		},
		{
			"one variable for two", "[[resource]]\nname = \"a.com/x-y\"\nclass = \"gpu\"\n[[resource]]\nname = \"a.com/x.y\"\nclass = \"gpu\"\n",
			`m.toml:5: resource.name: "a.com/x.y" and "a.com/x-y" have the same environment variable METALPLUG_A_COM_X_Y in a container; rename one`,
		},
		{
			"twice in a file, the first broken", "[[resource]]\nname = \"x\"\nclass = \"gpu\"\n[[resource]]\nname = \"x\"\nclass = \"gpu\"\n",
			"m.toml:2: resource.name: \"x\" is not a resource name like \"example.com/name\": at most 244 lower-case letters, digits, \"-\" and \".\", a slash, and at most 63 letters, digits, \"-\", \"_\" and \".\"; write name = \"example.com/gpu\"\n" +
				"m.toml:5: resource.name: \"x\" is defined twice, first on line 2; merge the two",
		},
		{
			"no class", "[[resource]]\nname = \"example.com/x\"\nclass = \"npu\"\n",
			`m.toml:3: resource.class: "npu" is not a class: gpu, fpga, infiniband, nvme, node or bundle; did you mean "gpu"?`,
		},
		{"everything", "[[resource]]\nname = \"example.com/x\"\nclass = \"node\"\n", `m.toml:1: resource.match: is empty: class node would take every device node on this machine; write match = { DEVNAME = "/dev/kvm" } for one node`},
		{
			"everything, written out", "[[resource]]\nname = \"example.com/x\"\nclass = \"node\"\nmatch = {}\nexclude = { DEVNAME = \"/dev/a\" }\n",
			`m.toml:4: resource.match: is empty: class node would take every device node on this machine; write match = { DEVNAME = "/dev/kvm" } for one node`,
		},
		{"match of a node", "[[resource]]\nname = \"example.com/x\"\nclass = \"node\"\nmatch = 1\n", `m.toml:4: resource.match: is an integer, not a table; write match = { ID_MODEL = "Samsung*" }`},
		{"key of match", valid + "match = { \"ENV{ID_MODEL}\" = \"x\" }\n", `m.toml:4: resource.match."ENV{ID_MODEL}": is neither a udev property like "PCI_ID" nor "ATTR{name}"; write ID_MODEL or "ATTR{size}"`},
		{"attribute without name", valid + "match = { \"ATTR{}\" = \"x\" }\n", `m.toml:4: resource.match."ATTR{}": "" is not an attribute below the device in sysfs; write "ATTR{size}"`},
		{"attribute elsewhere", valid + "exclude = { \"ATTR{../../x}\" = \"x\" }\n", `m.toml:4: resource.exclude."ATTR{../../x}": "../../x" is not an attribute below the device in sysfs; write "ATTR{size}"`},
		{"pattern", valid + "[resource.match]\nID_MODEL = \"a|[b\"\n", `m.toml:5: resource.match.ID_MODEL: "a|[b" is not a valid pattern: it has an unclosed "[" or ends in "\"; write ID_MODEL = "A*" or "A*|B"`},
		{"pattern of exclude", valid + "exclude.ID_MODEL = 'a\\'\n", `m.toml:4: resource.exclude.ID_MODEL: "a\\" is not a valid pattern: it has an unclosed "[" or ends in "\"; write ID_MODEL = "A*" or "A*|B"`},
		{
			"unknown placeholder", valid + "env = { X = \"{pci} {serial}\" }\n",
			`m.toml:4: resource.env.X: "{serial}" is not a placeholder; write {id}, {pci} or {node}`,
		},
		{"name of a variable", valid + "[resource.env]\n1X = \"\"\n", `m.toml:5: resource.env.1X: is not a valid variable name; write letters, digits and "_", and do not begin with a digit`},
		{"variable of metalplug", valid + "env.METALPLUG_X = \"\"\n", `m.toml:4: resource.env.METALPLUG_X: is reserved for metalplug; use a name without METALPLUG_`},
		{"value of a variable", valid + "env = { X = 1 }\n", `m.toml:4: resource.env.X: is an integer, not a string in quotes; write X = "text"`},
		{"zero byte in a variable", valid + "env = { X = \"\\u0000\" }\n", `m.toml:4: resource.env.X: "\x00" contains a zero byte; write X = "text"`},
		{"no shares", valid + "shares = 0\n", `m.toml:4: resource.shares: 0 is not between 1 and 1000; write shares = 1`},
		{"too many shares", valid + "shares = 1001\n", `m.toml:4: resource.shares: 1001 is not between 1 and 1000; write shares = 1`},
		{"prefer", valid + "prefer = \"near\"\n", `m.toml:4: resource.prefer: "near" is not a preference: packed or spread; write one of them`},
		{"inject", valid + "inject = \"env\"\n", `m.toml:4: resource.inject: "env" is not a method of injection: nodes or cdi; write one of them`},
		{"cdi_kind alone", valid + "cdi_kind = \"nvidia.com/gpu\"\n", `m.toml:4: resource.cdi_kind: needs another key; write inject = "cdi" too`},
		{"cdi_kind", valid + "inject = \"cdi\"\ncdi_kind = \"gpu\"\n", `m.toml:5: resource.cdi_kind: "gpu" is not vendor/class; write cdi_kind = "nvidia.com/gpu"`},
		{"no permissions", valid + "permissions = \"\"\n", `m.toml:4: resource.permissions: is empty, so containers cannot use the device; write permissions = "rw"`},
		{"other permissions", valid + "permissions = \"rwx\"\n", `m.toml:4: resource.permissions: "rwx" is not a combination of "r", "w" and "m", each at most once; write permissions = "rw"`},
		{
			"allow_in_use of a GPU", "[[resource]]\nname = \"example.com/x\"\nclass = \"gpu\"\nallow_in_use = true\n",
			`m.toml:4: resource.allow_in_use: is only for class nvme or node, not for gpu; remove it`,
		},

		{"takeover", valid + "takeover = \"yes\"\n", `m.toml:4: resource.takeover: is a string in quotes, not true or false; write takeover = false`},
		{"serve by the device plugin API", valid + "serve = \"plugin\"\n", ""},
		{"serve by DRA", valid + "serve = \"dra\"\n", ""},
		{"shares by DRA", valid + "serve = \"dra\"\nshares = 2\n", ""},
		{"shares of nodes by DRA", strings.Replace(valid, "gpu", "node", 1) + "match = { DEVNAME = \"/dev/kvm\" }\nserve = \"dra\"\nshares = 2\n", ""},
		{
			"shares of disks by DRA", strings.Replace(valid, "gpu", "nvme", 1) + "serve = \"dra\"\nshares = 2\nreset.scrub = \"none\"\n",
			`m.toml:5: resource.shares: claims cannot share disks, but shares = 2; write shares = 1 or serve = "plugin", or remove scrub if there is no disk`,
		},
		{"takeover by DRA", valid + "serve = \"dra\"\ntakeover = true\n", `m.toml:5: resource.takeover: applies only to device plugins; write takeover = false or serve = "plugin"`},
		{
			"bundle by DRA", valid + "[[resource]]\nname = \"example.com/b\"\nclass = \"bundle\"\nserve = \"dra\"\nmembers = [\"example.com/x*2\"]\n",
			`m.toml:7: resource.serve: "dra" does not support bundles; serve the members through "dra", and let a claim ask for devices that are near each other`,
		},
		{
			"bundle of what DRA serves", valid + "serve = \"dra\"\n[[resource]]\nname = \"example.com/b\"\nclass = \"bundle\"\nmembers = [\"example.com/x*2\"]\n",
			`m.toml:8: resource.members: "example.com/x" has serve = "dra"; write serve = "plugin" for the members of a bundle`,
		},
		{"long erasure by DRA", disk + "serve = \"dra\"\nreset.scrub = \"zero\"\nreset.timeout = \"2h\"\n", ""},
		{"serve", valid + "serve = \"csi\"\n", `m.toml:4: resource.serve: "csi" is not a kubelet API: plugin or dra; write one of them`},
		{"builtin", "builtin = 1\n", `m.toml:1: builtin: is an integer, not true or false; write builtin = true`},
		{
			"a built-in name without the built-in resources", "builtin = false\n[[resource]]\nname = \"amd.com/gpu\"\n",
			`m.toml:2: resource.class: is missing: builtin is false; write class = "gpu" and the other keys of amd.com/gpu`,
		},
		{
			"the variable of a built-in resource", "[[resource]]\nname = \"amd-com/gpu\"\nclass = \"gpu\"\n",
			`m.toml:2: resource.name: "amd-com/gpu" and "amd.com/gpu" have the same environment variable METALPLUG_AMD_COM_GPU in a container; rename one`,
		},

		// [resource.reset].
		{"misspelt prefer", valid + "prefer = \"pakced\"\n", `m.toml:4: resource.prefer: "pakced" is not a preference: packed or spread; did you mean "packed"?`},
		{
			"a directory for a socket", "[paths]\npod_resources = \"/var/lib/kubelet/pod-resources/\"\n",
			`m.toml:2: paths.pod_resources: "/var/lib/kubelet/pod-resources" is a directory, not a socket; write "/var/lib/kubelet/pod-resources/kubelet.sock"`,
		},
		{
			"a socket for a directory", "[paths]\ndevice_plugins = \"/var/lib/kubelet/device-plugins/kubelet.sock\"\n",
			`m.toml:2: paths.device_plugins: "/var/lib/kubelet/device-plugins/kubelet.sock" is a file, not a directory; write "/var/lib/kubelet/device-plugins"`,
		},
		{"method", disk + "reset.method = \"flr\"\nreset.scrub = \"none\"\n", `m.toml:4: resource.reset.method: "flr" is not a method of class nvme: auto, none, nvme-controller, pci or vfio; did you mean "pci:flr"?`},
		{
			"way that no kernel knows", disk + "reset.method = \"pci:hard\"\nreset.scrub = \"none\"\n",
			`m.toml:4: resource.reset.method: "pci:hard" is not a method of class nvme: auto, none, nvme-controller, pci or vfio; write one of them`,
		},
		{
			"method of another class", "[[resource]]\nname = \"example.com/x\"\nclass = \"infiniband\"\nreset.method = \"vfio\"\n",
			`m.toml:4: resource.reset.method: "vfio" is not a method of class infiniband: auto, none or pci; write one of them`,
		},
		{
			"method without a class", "[[resource]]\nname = \"example.com/x\"\nclass = \"x\"\nreset.method = \"x\"\n",
			`m.toml:3: resource.class: "x" is not a class: gpu, fpga, infiniband, nvme, node or bundle; write one of them`,
		},
		{
			"scrub of a class without", "[[resource]]\nname = \"example.com/x\"\nclass = \"gpu\"\nreset.scrub = \"zero\"\n",
			`m.toml:4: resource.reset.scrub: "zero" is not a scrub of class gpu: none; write one of them`,
		},
		{
			"scrub of a class with others", "[[resource]]\nname = \"example.com/x\"\nclass = \"node\"\nmatch.A = \"1\"\nreset.scrub = \"format\"\n",
			`m.toml:5: resource.reset.scrub: "format" is not a scrub of class node: none, discard or zero; write one of them`,
		},
		{"scrub", disk + "reset.scrub = \"shred\"\n", `m.toml:4: resource.reset.scrub: "shred" is not a scrub of class nvme: none, discard, zero, format, crypto-erase or sanitize; write one of them`},
		{
			"no scrub", disk, `m.toml:1: resource.reset.scrub: is missing: choose what happens to a pod's data before the next pod gets the disk: ` +
				`add [resource.reset] with scrub = "discard", "zero", "format", "crypto-erase", "sanitize" or "none"; with "none" the disk is offered again only if the pod left it blank`,
		},
		{
			"no scrub beside other keys", disk + "[resource.reset]\nmethod = \"none\"\n",
			`m.toml:4: resource.reset.scrub: is missing: choose what happens to a pod's data before the next pod gets the disk: ` +
				`add [resource.reset] with scrub = "discard", "zero", "format", "crypto-erase", "sanitize" or "none"; with "none" the disk is offered again only if the pod left it blank`,
		},
		{
			"no scrub of the built-in disks", "[[resource]]\nname = \"metalplug.io/nvme\"\n",
			`m.toml:1: resource.reset.scrub: is missing: choose what happens to a pod's data before the next pod gets the disk: ` +
				`add [resource.reset] with scrub = "discard", "zero", "format", "crypto-erase", "sanitize" or "none"; with "none" the disk is offered again only if the pod left it blank`,
		},
		{
			"no scrub of block devices", node + "match.SUBSYSTEM = \"block\"\n",
			`m.toml:1: resource.reset.scrub: is missing: choose what happens to a pod's data before the next pod gets the disk: ` +
				`add [resource.reset] with scrub = "discard", "zero" or "none"; with "none" the disk is offered again only if the pod left it blank`,
		},
		{"when", disk + "reset.when = \"stop\"\nreset.scrub = \"none\"\n", `m.toml:4: resource.reset.when: "stop" is not a moment: start, release or both; write one of them`},
		{"timeout", valid + "reset.timeout = \"20\"\n", `m.toml:4: resource.reset.timeout: "20" is not a duration above 0s and at most 8760h; write timeout = "20s", "5m" or "1h30m"`},
		{"too large a timeout", valid + "reset.when = \"release\"\nreset.timeout = \"99999999h\"\n", `m.toml:5: resource.reset.timeout: "99999999h" is not a duration above 0s and at most 8760h; write timeout = "20s", "5m" or "1h30m"`},
		{"no timeout", valid + "reset.timeout = \"0s\"\n", `m.toml:4: resource.reset.timeout: "0s" is not a duration above 0s and at most 8760h; write timeout = "20s", "5m" or "1h30m"`},
		{
			"long timeout", valid + "reset.timeout = \"25.1s\"\n",
			`m.toml:4: resource.reset.timeout: 25.1s is more than 25s: the kubelet waits 30s for everything that precedes a start; only when = "release" allows more`,
		},
		{
			"scrub of shares", disk + "shares = 2\n[resource.reset]\nscrub = \"zero\"\n",
			`m.toml:6: resource.reset.scrub: zero would erase the data of other containers, because shares = 2; write shares = 1 or scrub = "none"`,
		},
		{
			"method of shares", valid + "shares = 2\n[resource.reset]\nmethod = \"pci\"\n",
			`m.toml:6: resource.reset.method: pci would interrupt the other containers of the device, because shares = 2; write shares = 1 or method = "none"`,
		},
		{
			"umad of a GPU", "[[resource]]\nname = \"example.com/x\"\nclass = \"gpu\"\numad = true\n",
			`m.toml:4: resource.umad: is only for class infiniband, not for gpu; remove it`,
		},
		{
			"issm without umad", "[[resource]]\nname = \"example.com/x\"\nclass = \"infiniband\"\nissm = true\n",
			`m.toml:4: resource.issm: requires umad, which a subnet manager uses to send packets; write umad = true too`,
		},
		{
			"issm for several", "[[resource]]\nname = \"example.com/x\"\nclass = \"infiniband\"\nshares = 2\numad = true\nissm = true\n",
			`m.toml:6: resource.issm: can be open in only one container, but shares = 2; write shares = 1`,
		},
		{
			"scrub in use", disk + "allow_in_use = true\nreset.scrub = \"zero\"\n",
			`m.toml:4: resource.allow_in_use: would let zero erase disks that this host uses; write false, or scrub = "none"`,
		},
		{
			"release without anything", disk + "reset.method = \"none\"\nreset.when = \"release\"\nreset.scrub = \"none\"\n",
			`m.toml:5: resource.reset.when: release has no effect without a scrub or a method; write when = "start"`,
		},
		{
			"release of a class that survives nothing", "[[resource]]\nname = \"example.com/x\"\nclass = \"infiniband\"\nreset.when = \"both\"\n",
			`m.toml:4: resource.reset.when: both has no effect without a scrub or a method; write when = "start"`,
		},
		{
			"release of shares", disk + "shares = 2\nreset.when = \"release\"\nreset.scrub = \"none\"\n",
			`m.toml:5: resource.reset.when: release has no effect without a scrub or a method; write when = "start"`,
		},

		// Bundles.
		{"members of a GPU", valid + "members = [\"amd.com/gpu*2\"]\n", `m.toml:4: resource.members: is only for class bundle, not for gpu; remove it`},
		{
			"no members", "[[resource]]\nname = \"example.com/b\"\nclass = \"bundle\"\n",
			`m.toml:1: resource.members: is missing: the resources that make up a bundle; write members = ["nvidia.com/gpu", "example.com/scratch*2"]`,
		},
		{"one member", bundled + "members = [\"nvidia.com/gpu\"]\n", `m.toml:4: resource.members: the total number of devices is 1, but must be 2 to 64; write members = ["nvidia.com/gpu", "example.com/scratch*2"]`},
		{"no member", bundled + "members = []\n", `m.toml:4: resource.members: is empty; write members = ["nvidia.com/gpu", "example.com/scratch*2"]`},
		{
			"a number that is none", bundled + "members = [\"nvidia.com/gpu*two\"]\n",
			`m.toml:4: resource.members: "nvidia.com/gpu*two" is not a resource with a number from 1 to 64; write members = ["nvidia.com/gpu", "example.com/scratch*2"]`,
		},
		{
			"a member twice", bundled + "members = [\"nvidia.com/gpu\", \"nvidia.com/gpu\"]\n",
			`m.toml:4: resource.members: has "nvidia.com/gpu" twice; write its number of devices once, as in "nvidia.com/gpu*2"`,
		},
		{
			"in two bundles", bundled + "members = [\"nvidia.com/gpu*2\"]\n[[resource]]\nname = \"example.com/c\"\nclass = \"bundle\"\nmembers = [\"example.com/b\", \"nvidia.com/gpu\"]\n",
			`m.toml:4: resource.members: "nvidia.com/gpu" is also in the bundle "example.com/c"; remove it from one of them
m.toml:8: resource.members: "example.com/b" is a bundle; name its members
m.toml:8: resource.members: "nvidia.com/gpu" is also in the bundle "example.com/b"; remove it from one of them`,
		},
		{
			"a key of the members", bundled + "members = [\"nvidia.com/gpu*2\"]\nshares = 2\n[resource.reset]\n",
			`m.toml:5: resource.shares: does not apply to class bundle, which has members, near, rest or takeover; set the other keys in the resources of the members
m.toml:6: resource.reset: does not apply to class bundle, which has members, near, rest or takeover; set the other keys in the resources of the members`,
		},

		// [resource.units].
		{"no template", valid + "units.init = \"qrng.service\"\n", `m.toml:4: resource.units.init: "qrng.service" is not a template unit like "name@.service"; write init = "name@.service"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := problems(t, test.text)
			if got != test.want {
				t.Errorf("\n%s\nwant\n%s", got, test.want)
			}
			for line := range strings.Lines(got) {
				if !strings.Contains(line, "; ") {
					t.Errorf("there is no remedy in %q", line)
				}
			}
		})
	}
}

// wrongTypes are values of all types of TOML, by the name of the type in an error.
var wrongTypes = map[string]string{
	"a string in quotes": `"text"`, "an integer": "7", "a float": "1.5", "a boolean": "true", "a date or time": "2026-11-25", "an array": "[1]",
	"a table": "{ a = 1 }",
}

// TestTypes writes a value of each other type for each key of the reference. The error must name the file, the line, the key,
// the two types and an example that is valid.
func TestTypes(t *testing.T) {
	header, seen := "", map[string]bool{}
	for line := range strings.Lines(reference) {
		line, active := strings.CutPrefix(strings.TrimSpace(line), "#")
		key, value, isKey := strings.Cut(line, " = ")
		switch {
		case !active || strings.HasPrefix(line, " "):
		case strings.HasPrefix(line, "["):
			header = line
		case isKey && !seen[header+key] && !strings.Contains(key, " "):
			seen[header+key] = true
			testTypes(t, header, key, value)
		}
	}
	for _, table := range []string{"match", "exclude", "env"} {
		testTypes(t, "[resource."+table+"]", "ID_X", `"text"`)
	}
	for _, table := range []string{"[paths]", "[hardware]", "[reset]", "[resource.reset]", "[resource.units]"} {
		parent, key, below := strings.Cut(strings.Trim(table, "[]"), ".")
		if !below {
			parent, key = "", parent
		}
		testTypes(t, map[bool]string{true: "[[resource]]"}[parent != ""], key, "{}")
	}
	if len(seen) < 43 {
		t.Errorf("only %d keys", len(seen))
	}
}

// testTypes tests a key below a header with values that have another type than the given one.
func testTypes(t *testing.T, header, key, valid string) {
	t.Helper()
	for name, wrong := range wrongTypes {
		if wrong[0] == valid[0] || valid == "false" && wrong == "true" || valid == "1" && wrong == "7" {
			continue
		}
		begin := ""
		switch {
		case header == "[[resource]]" && (key == "name" || key == "class"):
			begin = "[[resource]]\n"
		case header == "[[resource]]" && (key == "near" || key == "rest" || key == "members"):
			begin = bundled
		case strings.HasPrefix(header, "[resource."):
			begin = disk + header + "\n"
		case header == "[[resource]]":
			begin = disk
		case header != "":
			begin = header + "\n"
		}
		path := strings.TrimPrefix(strings.Trim(header, "[]")+"."+key, ".")
		want := fmt.Sprintf("m.toml:%d: %s: is %s, not ", strings.Count(begin, "\n")+1, path, name)
		got := problems(t, begin+key+" = "+wrong+"\n")
		found := slices.DeleteFunc(strings.Split(got, "\n"), func(line string) bool { return !strings.HasPrefix(line, want) })
		if len(found) != 1 {
			t.Errorf("%s = %s: %q, want %q", path, wrong, got, want)
			continue
		}
		_, remedy, _ := strings.Cut(found[0], "; write ")
		if remedy == "["+path+"]" {
			continue
		}
		remedy, _, _ = strings.Cut(remedy, `, "5m"`)
		remedy, _, _ = strings.Cut(remedy, ` or "`)
		again := problems(t, begin+remedy+"\n")
		if !strings.HasPrefix(remedy, key+" = ") || strings.Contains(again, " "+path+": is a") {
			t.Errorf("%s = %s: %q, whose example gives %q", path, wrong, found[0], again)
		}
	}
}

// All problems are found at once and sorted by line, even if a table is in several places.
func TestAllProblems(t *testing.T) {
	got := problems(t, `
paths.dev = "dev"
colour = "red"

[[resource]]
name = "example"
class = "gpu"
match = { # two
  PCI_ID = "[",
  "PCI ID" = "x",
}

[[resource]]
name = "example.com/b"
reset.scrub = "x"
class = """
nvme"""

[reset]
socket = ""

[paths.x]
`)
	want := `m.toml:2: paths.dev: "dev" is not an absolute path; write dev = "/dev"
m.toml:3: colour: unknown key; valid keys are builtin, hardware, paths, reset, resource
m.toml:6: resource.name: "example" is not a resource name like "example.com/name": at most 244 lower-case letters, digits, "-" and ".", a slash, and at most 63 letters, digits, "-", "_" and "."; write name = "example.com/gpu"
m.toml:8: resource.match."PCI ID": is neither a udev property like "PCI_ID" nor "ATTR{name}"; write ID_MODEL or "ATTR{size}"
m.toml:8: resource.match.PCI_ID: "[" is not a valid pattern: it has an unclosed "[" or ends in "\"; write PCI_ID = "A*" or "A*|B"
m.toml:15: resource.reset.scrub: "x" is not a scrub of class nvme: none, discard, zero, format, crypto-erase or sanitize; write one of them
m.toml:20: reset.socket: "" is not an absolute path or "direct"; write socket = "/run/metalplug/reset.sock"
m.toml:22: paths.x: unknown key; valid keys are cdi, cgroup, dev, device_plugins, pod_resources, proc, run, state, sysfs`
	if got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}

// A long text from a file is shortened in an error.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("ä", 2048)
	got := problems(t, "[[resource]]\nname = \""+long+"\"\nclass = \"gpu\"\nmatch.\""+long+"\" = \"[\"\n\""+long+"\" = 1\n")
	want := `m.toml:2: resource.name: "` + long[:160] + `" is not a resource name like "example.com/name": at most 244 lower-case letters, digits, "-" and ".", a slash, and at most 63 letters, digits, "-", "_" and "."; write name = "example.com/gpu"
m.toml:4: resource.match."` + long[:288] + `: is neither a udev property like "PCI_ID" nor "ATTR{name}"; write ID_MODEL or "ATTR{size}"
m.toml:4: resource.match."` + long[:288] + `: "[" is not a valid pattern: it has an unclosed "[" or ends in "\"; write "` + long[:318] + ` = "A*" or "A*|B"
m.toml:5: resource."` + long[:300] + `: unknown key; valid keys are ` + resourceKeys
	if got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}
