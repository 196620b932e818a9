// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// pathKey is a key whose value is a path. The map exampleValues contains its default.
type pathKey struct {
	key string
	to  *string
}

// pathKeys returns the keys of [paths] and [reset].
func (c *Config) pathKeys() []pathKey {
	return []pathKey{
		{"paths.device_plugins", &c.Paths.DevicePlugins},
		{"paths.pod_resources", &c.Paths.PodResources},
		{"paths.state", &c.Paths.State},
		{"paths.run", &c.Paths.Run},
		{"paths.cdi", &c.Paths.CDI},
		{"paths.sysfs", &c.Paths.Sysfs},
		{"paths.dev", &c.Paths.Dev},
		{"paths.proc", &c.Paths.Proc},
		{"paths.cgroup", &c.Paths.Cgroup},
		{"reset.socket", &c.Reset.Socket},
		{"reset.holders", &c.Reset.Holders},
		{"reset.units", &c.Reset.Units},
	}
}

// Source returns hardware.source as it is written in a file, which is "udev" or "recording:PATH".
func (h Hardware) Source() string {
	if h.Recording == "" {
		return "udev"
	}
	return "recording:" + h.Recording
}

// Pending returns one sentence for each change from c to next that a reload cannot apply. These are changes to keys in [paths],
// [hardware] and [reset], which take effect after a restart. A reload applies every [[resource]].
func (c Config) Pending(next Config) (all []string) {
	then := next.fixed()
	for i, now := range c.fixed() {
		if now != then[i] {
			all = append(all, fmt.Sprintf("%s is %s until metalplugd is restarted, then %s", now[0], now[1], then[i][1]))
		}
	}
	return all
}

// fixed returns the keys that take effect only when the daemon starts, each with its value.
func (c Config) fixed() (all [][2]string) {
	for _, path := range c.pathKeys() {
		all = append(all, [2]string{path.key, *path.to})
	}
	return append(all, [2]string{"hardware.source", c.Hardware.Source()})
}

// Reloaded returns the configuration that a daemon with the configuration c uses after a reload. The result is the
// configuration next without the changes that [Config.Pending] lists.
func (c Config) Reloaded(next Config) Config {
	next.Paths, next.Hardware, next.Reset = c.Paths, c.Hardware, c.Reset
	return next
}

// takePaths reads [paths].
func takePaths(t *table, c *Config) {
	p := &c.Paths
	for _, path := range c.pathKeys() {
		var name string
		switch key, ok := strings.CutPrefix(path.key, "paths."); {
		case !ok: // takeHelpers reads this key
		case path.to == &p.Cgroup && t.value(key) == "": // an empty value turns off the cgroup check
			p.Cgroup = ""
		case t.checked(key, &name, checkPath):
			*path.to = filepath.Clean(name)
		}
	}
	if !t.has("pod_resources") {
		p.PodResources = filepath.Join(filepath.Dir(p.DevicePlugins), "pod-resources", kubeletSocket)
	}
	for _, own := range []pathKey{{"state", &p.State}, {"run", &p.Run}} {
		if *own.to == p.DevicePlugins {
			t.reportf(own.key, "is the directory of device plugins, which the kubelet empties; write another one")
		}
	}
	if t.has("state") && strings.HasPrefix(strings.TrimPrefix(p.State, "/var")+"/", "/run/") {
		t.reportf("state", "%s is empty after a reboot, and then all disks are unproven; write a directory on a disk, such as %s", quote(p.State), exampleValues["paths.state"])
	}
	for _, socket := range []struct{ key, path, file string }{
		{"device_plugins", p.DevicePlugins, endpoint}, {"pod_resources", p.PodResources, ""}, {"run", p.Run, "/control.sock"},
	} {
		if t.has(socket.key) {
			t.check(socket.key, checkSocket(socket.path, socket.file))
		}
	}
	checkKinds(t, p)
}

// checkKinds reports a key whose path is a directory instead of a socket, or vice versa. checkKinds examines only the path's
// text, because the helpers also read the configuration and may have no access to the kubelet's directories.
func checkKinds(t *table, p *Paths) {
	if t.has("pod_resources") && filepath.Base(p.PodResources) == "pod-resources" {
		t.reportf("pod_resources", "%s is a directory, not a socket; write %s", quote(p.PodResources), quote(filepath.Join(p.PodResources, kubeletSocket)))
	}
	if t.has("device_plugins") && filepath.Base(p.DevicePlugins) == kubeletSocket {
		t.reportf("device_plugins", "%s is a file, not a directory; write %s", quote(p.DevicePlugins), quote(filepath.Dir(p.DevicePlugins)))
	}
}

// The kubelet has two sockets with the file name kubeletSocket, one for the PodResources API and one for registrations.
const kubeletSocket = "kubelet.sock"

// takeHardware reads [hardware].
func takeHardware(t *table, c *Config, dir string) {
	var source string
	h := &c.Hardware
	if t.text("source", &source) {
		recording, ok := strings.CutPrefix(source, "recording:")
		switch {
		case source == "udev":
		case !ok || recording == "" || strings.ContainsRune(recording, 0):
			t.reportf("source", `%s is neither "udev" nor "recording:PATH"`, quote(source))
		case filepath.IsAbs(recording):
			h.Recording = filepath.Clean(recording)
		default:
			h.Recording = filepath.Join(dir, recording)
		}
		if h.Recording != "" {
			c.source = t.place("source").problem("")
		}
	}
}

// takeHelpers reads [reset].
func takeHelpers(t *table, r *Reset) {
	if t.helperSocket("socket", &r.Socket); r.Socket == Direct {
		r.Holders, r.Units = Direct, Direct
	}
	t.helperSocket("holders", &r.Holders)
	t.helperSocket("units", &r.Units)
}

// helperSocket reads the path of a helper's socket.
func (t *table) helperSocket(key string, to *string) {
	var name string
	switch ok := t.text(key, &name); {
	case !ok:
	case name == Direct:
		*to = name
	case strings.HasSuffix(name, "/"):
		t.reportf(key, "%s is a directory, not a socket; write the path of the socket or %q", quote(name), Direct)
	case checkPath(name) != nil:
		t.reportf(key, "%v or %q", checkPath(name), Direct)
	default:
		*to = filepath.Clean(name)
		t.check(key, checkSocket(*to, ""))
	}
}
