// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"
	"strings"
)

// takePaths takes [paths].
func takePaths(t *table, p *Paths) {
	for _, path := range []struct {
		key string
		to  *string
	}{
		{"device_plugins", &p.DevicePlugins},
		{"pod_resources", &p.PodResources},
		{"state", &p.State},
		{"run", &p.Run},
		{"cdi", &p.CDI},
		{"sysfs", &p.Sysfs},
		{"dev", &p.Dev},
		{"proc", &p.Proc},
		{"cgroup", &p.Cgroup},
	} {
		t.pathname(path.key, path.to)
	}
	if t.has("device_plugins") {
		t.check("device_plugins", checkSocketIn(p.DevicePlugins, endpoint))
	}
	if t.has("pod_resources") {
		t.check("pod_resources", checkSocket(p.PodResources))
	}
	if t.has("run") {
		t.check("run", checkSocketIn(p.Run, "control.sock"))
	}
	t.end()
}

// pathname takes an absolute path.
func (t *table) pathname(key string, to *string) bool {
	var name string
	if !t.text(key, &name) {
		return false
	}
	if err := checkPath(name); err != nil {
		t.check(key, err)
		return false
	}
	*to = filepath.Clean(name)
	return true
}

// takeHardware takes [hardware].
func takeHardware(t *table, c *Config, dir string) {
	var source string
	h := &c.Hardware
	if t.text("source", &source) {
		recording, ok := strings.CutPrefix(source, "recording:")
		switch {
		case source == "udev":
			h.Recording = ""
		case !ok || recording == "" || strings.ContainsRune(recording, 0):
			t.reportf("source", `%s is neither "udev" nor "recording:PATH"`, quoted(source))
		case filepath.IsAbs(recording):
			h.Recording = filepath.Clean(recording)
		default:
			h.Recording = filepath.Join(dir, recording)
		}
		c.source = Problem{}
		if h.Recording != "" {
			c.source = t.file.problem(t.at("source"), "")
		}
	}
	t.end()
}

// takeHelpers takes [reset].
func takeHelpers(t *table, r *Reset) {
	t.helperSocket("socket", &r.Socket)
	t.helperSocket("holders", &r.Holders)
	t.end()
}

// helper takes where a helper is reached.
func (t *table) helperSocket(key string, to *string) {
	if t.values[key] == Direct {
		t.text(key, to)
	} else if t.pathname(key, to) {
		t.check(key, checkSocket(*to))
	}
}
