// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"path/filepath"
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

func TestProblems(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		// not TOML at all
		{"no value", "a =\n", `m.toml:1: a: expected value but found '\n' instead; write key = "text", key = 1 or key = true, and a key such as "ATTR{size}" in quotes`},
		{"string not closed", "[paths]\nrun = \"/run", `m.toml:2: paths.run: unexpected EOF; expected '"'; write key = "text", key = 1 or key = true, and a key such as "ATTR{size}" in quotes`},
		{"one line only", `a = "\`, `m.toml:1: a: invalid escape in string '\�'; write \\ for one \, or the text in single quotes`},
		{"typographic quotes", "[paths]\nrun = “/run”\n", `m.toml:2: paths.run: expected value but found '“' instead; write plain quotes, as in key = "text"`},
		{"comment of another language", "builtin = true // all\n", `m.toml:1: expected a top-level item to end with a newline, comment, or EOF, but got '/' instead; begin a comment with #`},
		{"key with braces", valid + "match = { ATTR{size} = \"1\" }\n", `m.toml:4: resource.match: expected '.' or '=', but got '{' instead; write a key with braces in quotes, as in "ATTR{size}"`},
		{"comma at the end", "builtin = true,\n", `m.toml:1: expected a top-level item to end with a newline, comment, or EOF, but got ',' instead; remove the comma`},
		{"twice", "[paths]\nrun = \"/a\"\nrun = \"/b\"\n", `m.toml:3: paths.run: Key 'paths.run' has already been defined; write it once`},
		{"half of a bracket", "[[resource]\nname = \"a\"\n", `m.toml:2: expected end of table array name delimiter ']', but got '\n' instead; write [[resource]], or [NAME] for a table that a file has once`},
		{"open table", "paths = { run = \"/run\"", `m.toml:1: paths.run: expected a comma or an inline table terminator '}', but got end of file instead; write commas between the keys, and close the table: { KEY = "text", OTHER = "text" }`},
		{"table twice", "[reset]\n[paths]\n[reset]\n", `m.toml:3: Key 'reset' has already been defined; write it once`},
		{"newline in string, CRLF", "[paths]\r\nrun = \"/a\r\n\"\r\n", `m.toml:2: paths.run: strings cannot contain newlines; close the quotes in the same line`},
		{"zero byte", "\n[paths]\nrun = \"/a\x00\"\n", `m.toml:3: paths.run: TOML files cannot contain control characters: '0x00'; save the file as plain UTF-8 text`},
		{
			"UTF-16", "a\x00 \x00=\x00",
			`m.toml:1: files cannot contain NULL bytes; probably using UTF-16; TOML files must be UTF-8; save the file as plain UTF-8 text`,
		},
		{"no UTF-8", "a = \"\xff\"\n", `m.toml:1: a: invalid UTF-8 byte: 0xff; save the file as plain UTF-8 text`},
		{"control characters in a key", "\"a\\n\\u009bb\".c = 1\n\"a\\n\\u009bb\".c = 2\n", `m.toml:2: "a\n�b".c: Key '"a\n�b".c' has already been defined; write it once`},
		{"integer too large", "a = 99999999999999999999\n", `m.toml:1: a: 99999999999999999999 is out of range for int64; write key = "text", key = 1 or key = true, and a key such as "ATTR{size}" in quotes`},

		// Unknown keys.
		{"unknown table", "[colours]\n", `m.toml:1: colours: unknown key; man metalplug.toml lists the keys`},
		{"unknown key", "\n[paths]\ncolour = 1\n", `m.toml:3: paths.colour: unknown key; man metalplug.toml lists the keys`},
		{"flag of the daemon", "log_level = \"debug\"\n", `m.toml:1: log_level: unknown key; did you mean metalplugd --log-level?`},
		{"key of other plugins", valid + "replicas = 2\n", `m.toml:4: resource.replicas: unknown key; did you mean shares?`},
		{"misspelt", "[paths]\nsysf = \"/sys\"\n", `m.toml:2: paths.sysf: unknown key; did you mean sysfs?`},
		{"other case", "[paths]\nCDI = \"/run/cdi\"\n", `m.toml:2: paths.CDI: unknown key; did you mean cdi?`},
		{"misspelt table", "[[resources]]\nname = \"a\"\n", `m.toml:1: resources: unknown key; did you mean resource?`},
		{"other table", valid + "scrub = \"zero\"\n", `m.toml:4: resource.scrub: unknown key; did you mean resource.reset.scrub?`},
		{"units for all", valid + "[units]\n", `m.toml:4: units: unknown key; did you mean resource.units?`},
		{"abbreviated", valid + "perms = \"rw\"\n", `m.toml:4: resource.perms: unknown key; did you mean permissions?`},
		{"key of no table", valid + "builtin = false\n", `m.toml:4: resource.builtin: unknown key; write builtin above the first table`},
		{"misspelt built-in", "[[resource]]\nname = \"nvidia.com/gpus\"\n", `m.toml:1: resource.class: is missing: gpu, fpga, infiniband, nvme, node or bundle; for a built-in resource write "nvidia.com/gpu"`},
		{"misspelt, deep", valid + "reset.timout = \"1s\"\n", `m.toml:4: resource.reset.timout: unknown key; did you mean timeout?`},
		{"quoted", "\"a b\" = 1\n", `m.toml:1: "a b": unknown key; man metalplug.toml lists the keys`},
		{"empty key", "\"\" = 1\n", `m.toml:1: "": unknown key; man metalplug.toml lists the keys`},

		// Types.
		{"state in the kubelet's directory", "[paths]\nstate = \"/var/lib/kubelet/device-plugins\"\n", `m.toml:2: paths.state: is the directory of device plugins, which the kubelet empties: write another one`},
		{"table as value", "paths = 1\n", `m.toml:1: paths: is an integer, not a table: write [paths]`},
		{"value as table", "[paths.run]\n", `m.toml:1: paths.run: is a table, not a string in quotes`},
		{"resource as table", "[resource]\nname = \"example.com/x\"\n", `m.toml:1: resource: is a table, not an array of tables: write [[resource]]`},
		{"resource as array", "resource = [1]\n", `m.toml:1: resource: is an array, not an array of tables: write [[resource]]`},
		{"array of tables as table", "[[hardware]]\n", `m.toml:1: hardware: is an array of tables, not a table: write [hardware]`},
		{"name", "[[resource]]\nname = 1.5\nclass = \"gpu\"\n", `m.toml:2: resource.name: is a float, not a string in quotes`},
		{"class", "[[resource]]\nname = \"example.com/x\"\nclass = [\"nvme\"]\n", `m.toml:3: resource.class: is an array, not a string in quotes`},
		{"shares", valid + "shares = \"2\"\n", `m.toml:4: resource.shares: is a string in quotes, not an integer`},
		{"umad", valid + "umad = 1\n", `m.toml:4: resource.umad: is an integer, not true or false`},
		{"issm", valid + "issm = \"all\"\n", `m.toml:4: resource.issm: is a string in quotes, not true or false`},
		{"allow_in_use", valid + "allow_in_use = \"yes\"\n", `m.toml:4: resource.allow_in_use: is a string in quotes, not true or false`},
		{"match value", valid + "match = { ID_NSID = 1 }\n", `m.toml:4: resource.match.ID_NSID: is an integer, not a string in quotes`},
		{"match", valid + "match = \"*\"\n", `m.toml:4: resource.match: is a string in quotes, not a table: write match = { ID_MODEL = "Samsung*" }`},
		{"YAML", "resources:\n- name: a\n", `m.toml:1: expected '.' or '=', but got ':' instead; this is not TOML, but perhaps YAML or JSON: begin a resource with [[resource]], and write name = "example.org/a"`},
		{"NVIDIA's variable", valid + "env = { NVIDIA_VISIBLE_DEVICES = \"all\" }\n", `m.toml:4: resource.env.NVIDIA_VISIBLE_DEVICES: is set by metalplug: another value would give a container the GPUs of others`},
		{"built-in without its keys", "builtin = false\n[[resource]]\nname = \"metalplug.io/nvme\"\nreset.scrub = \"zero\"\n", `m.toml:2: resource.class: is missing: with builtin = false, write all keys of metalplug.io/nvme: class = "nvme"`},
		{"match list", valid + "match = { ID_MODEL = [\"A\", \"B\"] }\n", `m.toml:4: resource.match.ID_MODEL: is an array, not a string in quotes; a pattern has | between alternatives, as in "A*|B"`},
		{"reset of a disk", "[[resource]]\nname = \"example.com/x\"\nclass = \"nvme\"\nreset = \"zero\"\n", `m.toml:4: resource.reset: is a string in quotes, not a table: write [resource.reset]`},
		{"reset", valid + "reset = \"none\"\n", `m.toml:4: resource.reset: is a string in quotes, not a table: write [resource.reset]`},
		{"timeout", valid + "reset.timeout = 20\n", `m.toml:4: resource.reset.timeout: is an integer, not a duration in quotes such as "20s", "5m" or "1h30m"`},
		{"prefer", valid + "prefer = true\n", `m.toml:4: resource.prefer: is a boolean, not a string in quotes`},
		{"cdi_kind", valid + "cdi_kind = 2020-01-01\n", `m.toml:4: resource.cdi_kind: is a date or time, not a string in quotes`},

		// [paths], [hardware], [reset].
		{"relative", "[paths]\nrun = \"run/metalplug\"\n", `m.toml:2: paths.run: "run/metalplug" is not an absolute path`},
		{"empty", "[paths]\nproc = \"\"\n", `m.toml:2: paths.proc: "" is not an absolute path`},
		{"zero in path", "[paths]\nrun = \"/\\u0000\"\n", `m.toml:2: paths.run: "/\x00" has a zero byte`},
		{
			"device_plugins of 77 bytes", "[paths]\ndevice_plugins = \"/" + strings.Repeat("d", 76) + "\"\n",
			`m.toml:2: paths.device_plugins: "/` + strings.Repeat("d", 76) + `/mp" has 108 bytes; the path of a socket can have at most 107`,
		},
		{"device_plugins of 76 bytes", "[paths]\ndevice_plugins = \"/" + strings.Repeat("d", 75) + "\"\n", ""},
		{
			"run of 95 bytes", "[paths]\nrun = \"/" + strings.Repeat("d", 94) + "\"\n",
			`m.toml:2: paths.run: "/` + strings.Repeat("d", 79) + `" has 108 bytes; the path of a socket can have at most 107`,
		},
		{
			"pod_resources of 108 bytes", "[paths]\npod_resources = \"/" + strings.Repeat("d", 107) + "\"\n",
			`m.toml:2: paths.pod_resources: "/` + strings.Repeat("d", 79) + `" has 108 bytes; the path of a socket can have at most 107`,
		},
		{"state and run are one", "[paths]\nstate = \"/k\"\nrun = \"/k\"\n", ""},
		{"source", "[hardware]\nsource = \"sysfs\"\n", `m.toml:2: hardware.source: "sysfs" is neither "udev" nor "recording:PATH"`},
		{"no recording", "[hardware]\nsource = \"recording:\"\n", `m.toml:2: hardware.source: "recording:" is neither "udev" nor "recording:PATH"`},
		{"a file as source", "[hardware]\nsource = \"/tmp/r\"\n", `m.toml:2: hardware.source: "/tmp/r" is neither "udev" nor "recording:PATH"; did you mean "recording:/tmp/r"?`},
		{"home", "[paths]\nrun = \"~/run\"\n", `m.toml:2: paths.run: "~/run" is not an absolute path; write it in full, without ~ or variables`},
		{"URL", "[paths]\nrun = \"unix:///run\"\n", `m.toml:2: paths.run: "unix:///run" is not an absolute path; write it without unix://`},
		{"state that a reboot empties", "[paths]\nstate = \"/run/x\"\n", `m.toml:2: paths.state: "/run/x" is empty after a reboot, and then all disks are unproven; write a directory below /var`},
		{"directory of a helper", "[reset]\nsocket = \"/run/x/\"\n", `m.toml:2: reset.socket: "/run/x/" is a directory, not a socket; write the path of the socket or "direct"`},
		{"two signs", "a == 1\n", `m.toml:1: a: expected value but found '=' instead; write = once`},
		{"attribute of a parent", valid + "match = { \"ATTRS{x}\" = \"x\" }\n", `m.toml:4: resource.match."ATTRS{x}": is neither a udev property like "PCI_ID" nor "ATTR{name}"; instead of an attribute of a parent, write a property that "udevadm info NODE" shows`},
		{"socket", "[reset]\nsocket = \"reset.sock\"\n", `m.toml:2: reset.socket: "reset.sock" is not an absolute path or "direct"`},
		{"holders", "[reset]\nholders = \"Direct\"\n", `m.toml:2: reset.holders: "Direct" is not an absolute path or "direct"`},
		{
			"socket of 108 bytes", "reset.socket = \"/" + strings.Repeat("d", 107) + "\"\n",
			`m.toml:1: reset.socket: "/` + strings.Repeat("d", 79) + `" has 108 bytes; the path of a socket can have at most 107`,
		},

		// [[resource]].
		{
			"nothing", "\n[[resource]]\n", "m.toml:2: resource.name: is missing: the name by which pods request the devices\n" +
				"m.toml:2: resource.class: is missing: gpu, fpga, infiniband, nvme, node or bundle",
		},
		{
			"twice in a file", valid + "\n" + valid,
			`m.toml:6: resource.name: "example.com/x" is defined twice, first on line 2: make one of the two`,
		},
		{
			"one variable for two", "[[resource]]\nname = \"a.com/x-y\"\nclass = \"gpu\"\n[[resource]]\nname = \"a.com/x.y\"\nclass = \"gpu\"\n",
			`m.toml:5: resource.name: "a.com/x.y" and "a.com/x-y" have the same environment variable METALPLUG_A_COM_X_Y in a container: rename one`,
		},
		{
			"twice in a file, the first broken", "[[resource]]\nname = \"x\"\nclass = \"gpu\"\n[[resource]]\nname = \"x\"\nclass = \"gpu\"\n",
			"m.toml:2: resource.name: \"x\" is not a resource name like \"example.com/name\": at most 244 lower-case letters, digits, \"-\" and \".\", a slash, and at most 63 letters, digits, \"-\", \"_\" and \".\"\n" +
				"m.toml:5: resource.name: \"x\" is defined twice, first on line 2: make one of the two",
		},
		{
			"no class", "[[resource]]\nname = \"example.com/x\"\nclass = \"npu\"\n",
			`m.toml:3: resource.class: "npu" is not a class: gpu, fpga, infiniband, nvme, node or bundle; did you mean "node"?`,
		},
		{"everything", "[[resource]]\nname = \"example.com/x\"\nclass = \"node\"\n", `m.toml:1: resource.match: is empty: class node would take every device node of this machine; write match = { DEVNAME = "/dev/kvm" } for one node`},
		{
			"everything, written out", "[[resource]]\nname = \"example.com/x\"\nclass = \"node\"\nmatch = {}\nexclude = { DEVNAME = \"/dev/a\" }\n",
			`m.toml:4: resource.match: is empty: class node would take every device node of this machine; write match = { DEVNAME = "/dev/kvm" } for one node`,
		},
		{"match of a node", "[[resource]]\nname = \"example.com/x\"\nclass = \"node\"\nmatch = 1\n", `m.toml:4: resource.match: is an integer, not a table: write match = { ID_MODEL = "Samsung*" }`},
		{"key of match", valid + "match = { \"ENV{ID_MODEL}\" = \"x\" }\n", `m.toml:4: resource.match."ENV{ID_MODEL}": is neither a udev property like "PCI_ID" nor "ATTR{name}"; write ID_MODEL`},
		{"key of match, open", valid + "match = { \"ATTR{size\" = \"x\" }\n", `m.toml:4: resource.match."ATTR{size": is neither a udev property like "PCI_ID" nor "ATTR{name}"; write "ATTR{size}"`},
		{"attribute without name", valid + "match = { \"ATTR{}\" = \"x\" }\n", `m.toml:4: resource.match."ATTR{}": "" is not an attribute below the device in sysfs`},
		{"attribute elsewhere", valid + "exclude = { \"ATTR{../../x}\" = \"x\" }\n", `m.toml:4: resource.exclude."ATTR{../../x}": "../../x" is not an attribute below the device in sysfs`},
		{"pattern", valid + "[resource.match]\nID_MODEL = \"a|[b\"\n", `m.toml:5: resource.match.ID_MODEL: "a|[b" is not a pattern: an unfinished "[" or a "\" at the end`},
		{"pattern of exclude", valid + "exclude.ID_MODEL = 'a\\'\n", `m.toml:4: resource.exclude.ID_MODEL: "a\\" is not a pattern: an unfinished "[" or a "\" at the end`},
		{
			"unknown placeholder", valid + "env = { X = \"{pci} {serial}\" }\n",
			`m.toml:4: resource.env.X: "{serial}" is not a placeholder: {id}, {pci} or {node}`,
		},
		{"name of a variable", valid + "[resource.env]\n1X = \"\"\n", `m.toml:5: resource.env.1X: is not the name of a variable: letters, digits and "_", and no digit first`},
		{"variable of metalplug", valid + "env.METALPLUG_X = \"\"\n", `m.toml:4: resource.env.METALPLUG_X: is reserved for metalplug: use a name without METALPLUG_`},
		{"value of a variable", valid + "env = { X = 1 }\n", `m.toml:4: resource.env.X: is an integer, not a string in quotes`},
		{"zero byte in a variable", valid + "env = { X = \"\\u0000\" }\n", `m.toml:4: resource.env.X: "\x00" has a zero byte`},
		{"no shares", valid + "shares = 0\n", `m.toml:4: resource.shares: 0 is not between 1 and 1000`},
		{"too many shares", valid + "shares = 1001\n", `m.toml:4: resource.shares: 1001 is not between 1 and 1000`},
		{"prefer", valid + "prefer = \"near\"\n", `m.toml:4: resource.prefer: "near" is not a preference: packed or spread; did you mean "packed"?`},
		{"inject", valid + "inject = \"env\"\n", `m.toml:4: resource.inject: "env" is not a way of injection: nodes or cdi`},
		{"cdi_kind alone", valid + "cdi_kind = \"nvidia.com/gpu\"\n", `m.toml:4: resource.cdi_kind: needs inject = "cdi"`},
		{"cdi_kind", valid + "inject = \"cdi\"\ncdi_kind = \"gpu\"\n", `m.toml:5: resource.cdi_kind: "gpu" is not vendor/class as in "nvidia.com/gpu"`},
		{"no permissions", valid + "permissions = \"\"\n", `m.toml:4: resource.permissions: is empty: a container could not use the device`},
		{"other permissions", valid + "permissions = \"rwx\"\n", `m.toml:4: resource.permissions: "rwx" is not a choice of "r", "w" and "m", each at most once, as in "rw"`},
		{"permissions twice", valid + "permissions = \"rwr\"\n", `m.toml:4: resource.permissions: "rwr" is not a choice of "r", "w" and "m", each at most once, as in "rw"`},
		{
			"allow_in_use of a GPU", "[[resource]]\nname = \"example.com/x\"\nclass = \"gpu\"\nallow_in_use = true\n",
			`m.toml:4: resource.allow_in_use: is only for class nvme or node, not for gpu`,
		},

		{"takeover", valid + "takeover = \"yes\"\n", `m.toml:4: resource.takeover: is a string in quotes, not true or false`},
		{"serve by the device plugin API", valid + "serve = \"plugin\"\n", ""},
		{"serve by DRA", valid + "serve = \"dra\"\n", ""},
		{"shares by DRA", valid + "serve = \"dra\"\nshares = 2\n", `m.toml:5: resource.shares: claims do not support shares = 2; write shares = 1 or serve = "plugin"`},
		{"takeover by DRA", valid + "serve = \"dra\"\ntakeover = true\n", `m.toml:5: resource.takeover: applies only to device plugins; write takeover = false or serve = "plugin"`},
		{
			"bundle by DRA", valid + "[[resource]]\nname = \"example.com/b\"\nclass = \"bundle\"\nserve = \"dra\"\nmembers = [\"example.com/x*2\"]\n",
			`m.toml:7: resource.serve: "dra" has no bundles: serve the members by "dra", and let a claim ask for devices that are near each other`,
		},
		{
			"bundle of what DRA serves", valid + "serve = \"dra\"\n[[resource]]\nname = \"example.com/b\"\nclass = \"bundle\"\nmembers = [\"example.com/x*2\"]\n",
			`m.toml:8: resource.members: "example.com/x" has serve = "dra": a bundle is for device plugins`,
		},
		{"long erasure by DRA", disk + "serve = \"dra\"\nreset.scrub = \"zero\"\nreset.timeout = \"2h\"\n", ""},
		{"serve", valid + "serve = \"csi\"\n", `m.toml:4: resource.serve: "csi" is not a kubelet API: plugin or dra`},
		{"builtin", "builtin = 1\n", `m.toml:1: builtin: is an integer, not true or false`},
		{
			"a built-in name without the built-in resources", "builtin = false\n[[resource]]\nname = \"amd.com/gpu\"\n",
			`m.toml:2: resource.class: is missing: with builtin = false, write all keys of amd.com/gpu: class = "gpu"`,
		},
		{
			"the variable of a built-in resource", "[[resource]]\nname = \"amd-com/gpu\"\nclass = \"gpu\"\n",
			`m.toml:2: resource.name: "amd-com/gpu" and "amd.com/gpu" have the same environment variable METALPLUG_AMD_COM_GPU in a container: rename one`,
		},

		// [resource.reset].
		{
			"class of others", "[[resource]]\nname = \"a.b/c\"\nclass = \"SSD\"\n",
			`m.toml:3: resource.class: "SSD" is not a class: gpu, fpga, infiniband, nvme, node or bundle; did you mean "nvme", or for other disks "node" with match = { DEVTYPE = "disk" }?`,
		},
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
			`m.toml:4: resource.reset.method: "pci:hard" is not a method of class nvme: auto, none, nvme-controller, pci or vfio`,
		},
		{
			"method of another class", "[[resource]]\nname = \"example.com/x\"\nclass = \"infiniband\"\nreset.method = \"vfio\"\n",
			`m.toml:4: resource.reset.method: "vfio" is not a method of class infiniband: auto, none or pci`,
		},
		{
			"method without a class", "[[resource]]\nname = \"example.com/x\"\nclass = \"x\"\nreset.method = \"x\"\n",
			`m.toml:3: resource.class: "x" is not a class: gpu, fpga, infiniband, nvme, node or bundle`,
		},
		{
			"scrub of a class without", "[[resource]]\nname = \"example.com/x\"\nclass = \"gpu\"\nreset.scrub = \"zero\"\n",
			`m.toml:4: resource.reset.scrub: "zero" is not a scrub of class gpu: none`,
		},
		{
			"scrub of a class with others", "[[resource]]\nname = \"example.com/x\"\nclass = \"node\"\nmatch.A = \"1\"\nreset.scrub = \"format\"\n",
			`m.toml:5: resource.reset.scrub: "format" is not a scrub of class node: none, discard or zero`,
		},
		{"scrub", disk + "reset.scrub = \"shred\"\n", `m.toml:4: resource.reset.scrub: "shred" is not a scrub of class nvme: none, discard, zero, format, crypto-erase or sanitize; did you mean "zero"?`},
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
		{"when", disk + "reset.when = \"stop\"\nreset.scrub = \"none\"\n", `m.toml:4: resource.reset.when: "stop" is not a moment: start, release or both; did you mean "release"?`},
		{"timeout", valid + "reset.timeout = \"20\"\n", `m.toml:4: resource.reset.timeout: "20" is not a duration above 0s: write a number and its unit, as in "20s", "5m" or "1h30m"`},
		{"no timeout", valid + "reset.timeout = \"0s\"\n", `m.toml:4: resource.reset.timeout: "0s" is not a duration above 0s: write a number and its unit, as in "20s", "5m" or "1h30m"`},
		{"negative timeout", valid + "reset.timeout = \"-1s\"\n", `m.toml:4: resource.reset.timeout: "-1s" is not a duration above 0s: write a number and its unit, as in "20s", "5m" or "1h30m"`},
		{
			"long timeout", valid + "reset.timeout = \"25.1s\"\n",
			`m.toml:4: resource.reset.timeout: 25.1s is more than 25s: the kubelet waits 30s for everything that precedes a start; only when = "release" allows more`,
		},
		{
			"scrub of shares", disk + "shares = 2\n[resource.reset]\nscrub = \"zero\"\n",
			`m.toml:6: resource.reset.scrub: zero would erase the data of other containers, shares = 2; write shares = 1 or scrub = "none"`,
		},
		{
			"method of shares", valid + "shares = 2\n[resource.reset]\nmethod = \"pci\"\n",
			`m.toml:6: resource.reset.method: pci would interrupt the other containers of the device, shares = 2; write shares = 1 or method = "none"`,
		},
		{
			"umad of a GPU", "[[resource]]\nname = \"example.com/x\"\nclass = \"gpu\"\numad = true\n",
			`m.toml:4: resource.umad: is only for class infiniband, not for gpu`,
		},
		{
			"issm without umad", "[[resource]]\nname = \"example.com/x\"\nclass = \"infiniband\"\nissm = true\n",
			`m.toml:4: resource.issm: needs umad = true, which a subnet manager uses to send packets`,
		},
		{
			"issm for several", "[[resource]]\nname = \"example.com/x\"\nclass = \"infiniband\"\nshares = 2\numad = true\nissm = true\n",
			`m.toml:6: resource.issm: can be open in only one container, shares = 2; write shares = 1`,
		},
		{
			"scrub in use", disk + "allow_in_use = true\nreset.scrub = \"zero\"\n",
			`m.toml:4: resource.allow_in_use: would let zero erase disks that this host uses; write false, or scrub = "none"`,
		},
		{
			"release without anything", disk + "reset.method = \"none\"\nreset.when = \"release\"\nreset.scrub = \"none\"\n",
			`m.toml:5: resource.reset.when: release has no effect without a scrub or a method`,
		},
		{
			"release of a class that survives nothing", "[[resource]]\nname = \"example.com/x\"\nclass = \"infiniband\"\nreset.when = \"both\"\n",
			`m.toml:4: resource.reset.when: both has no effect without a scrub or a method`,
		},
		{
			"release of shares", disk + "shares = 2\nreset.when = \"release\"\nreset.scrub = \"none\"\n",
			`m.toml:5: resource.reset.when: release has no effect without a scrub or a method`,
		},

		// Bundles.
		{"members of a GPU", valid + "members = [\"amd.com/gpu*2\"]\n", `m.toml:4: resource.members: is only for class bundle, not for gpu`},
		{
			"no members", "[[resource]]\nname = \"example.com/b\"\nclass = \"bundle\"\n",
			`m.toml:1: resource.members: is missing: the resources that make up a bundle: ["nvidia.com/gpu", "metalplug.io/infiniband", "example.org/scratch*2"]`,
		},
		{"one member", bundled + "members = [\"nvidia.com/gpu\"]\n", `m.toml:4: resource.members: the number of devices is 1, not 2 to 64`},
		{"no member", bundled + "members = []\n", `m.toml:4: resource.members: is empty: name the resources that make up a bundle`},
		{
			"a member that is off", bundled + "members = [\"metalplug.io/nvme*2\"]\n",
			`m.toml:4: resource.members: "metalplug.io/nvme" is off: add a [[resource]] of that name with a scrub`,
		},
		{
			"a number that is none", bundled + "members = [\"nvidia.com/gpu*two\"]\n",
			`m.toml:4: resource.members: "nvidia.com/gpu*two" is not a resource with a number from 1 to 64, as in "example.org/scratch*2"`,
		},
		{
			"a member twice", bundled + "members = [\"nvidia.com/gpu\", \"nvidia.com/gpu\"]\n",
			`m.toml:4: resource.members: has "nvidia.com/gpu" twice: write its number of devices once, as in "nvidia.com/gpu*2"`,
		},
		{
			"in two bundles", bundled + "members = [\"nvidia.com/gpu*2\"]\n[[resource]]\nname = \"example.com/c\"\nclass = \"bundle\"\nmembers = [\"example.com/b\", \"nvidia.com/gpu\"]\n",
			`m.toml:4: resource.members: "nvidia.com/gpu" is also in the bundle "example.com/c": a device can be in only one bundle
m.toml:8: resource.members: "example.com/b" is a bundle too: name its members
m.toml:8: resource.members: "nvidia.com/gpu" is also in the bundle "example.com/b": a device can be in only one bundle`,
		},
		{
			"a key of the members", bundled + "members = [\"nvidia.com/gpu*2\"]\nshares = 2\n",
			`m.toml:5: resource.shares: is not for the class bundle, which has members, near, rest or takeover: set the other keys in the resources of the members`,
		},

		// [resource.units].
		{"no template", valid + "units.init = \"qrng.service\"\n", `m.toml:4: resource.units.init: "qrng.service" is not a template unit like "name@.service"`},
		{"an instance", valid + "units.start = \"qrng@1.service\"\n", `m.toml:4: resource.units.start: "qrng@1.service" is not a template unit like "name@.service"`},
		{"no service", valid + "units.release = \"qrng@.socket\"\n", `m.toml:4: resource.units.release: "qrng@.socket" is not a template unit like "name@.service"`},
		{"a path", valid + "units.init = \"../qrng@.service\"\n", `m.toml:4: resource.units.init: "../qrng@.service" is not a template unit like "name@.service"`},
		{"no name", valid + "units.init = \"@.service\"\n", `m.toml:4: resource.units.init: "@.service" is not a template unit like "name@.service"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := problems(t, test.text); got != test.want {
				t.Errorf("\n%s\nwant\n%s", got, test.want)
			}
		})
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
	want := `m.toml:2: paths.dev: "dev" is not an absolute path
m.toml:3: colour: unknown key; man metalplug.toml lists the keys
m.toml:6: resource.name: "example" is not a resource name like "example.com/name": at most 244 lower-case letters, digits, "-" and ".", a slash, and at most 63 letters, digits, "-", "_" and "."
m.toml:9: resource.match.PCI_ID: "[" is not a pattern: an unfinished "[" or a "\" at the end
m.toml:10: resource.match."PCI ID": is neither a udev property like "PCI_ID" nor "ATTR{name}"
m.toml:15: resource.reset.scrub: "x" is not a scrub of class nvme: none, discard, zero, format, crypto-erase or sanitize
m.toml:20: reset.socket: "" is not an absolute path or "direct"
m.toml:22: paths.x: unknown key; man metalplug.toml lists the keys`
	if got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}

// A long text from a file is shortened in an error.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("ä", 2048)
	got := problems(t, "[[resource]]\nname = \""+long+"\"\nclass = \"gpu\"\nmatch.\""+long+"\" = \"[\"\n\""+long+"\" = 1\n")
	want := `m.toml:2: resource.name: "` + long[:160] + `" is not a resource name like "example.com/name": at most 244 lower-case letters, digits, "-" and ".", a slash, and at most 63 letters, digits, "-", "_" and "."
m.toml:4: resource.match."` + long[:288] + `: is neither a udev property like "PCI_ID" nor "ATTR{name}"
m.toml:4: resource.match."` + long[:288] + `: "[" is not a pattern: an unfinished "[" or a "\" at the end
m.toml:5: resource."` + long[:300] + `: unknown key; man metalplug.toml lists the keys`
	if got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}
