// SPDX-License-Identifier: Apache-2.0

// Package unitfile finds systemd's unit files. The package needs neither D-Bus nor a running systemd.
package unitfile

import (
	"fmt"
	"os"
	"path/filepath"
)

// unitPath lists the directories that contain the system manager's unit files, in order of precedence (systemd.unit(5), "System
// Unit Search Path"). If /usr is not merged, /lib also contains unit files.
var unitPath = []string{
	"/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient", "/run/systemd/generator.early",
	"/etc/systemd/system", "/etc/systemd/system.attached", "/run/systemd/system", "/run/systemd/system.attached",
	"/run/systemd/generator", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
	"/run/systemd/generator.late",
}

// Booted reports whether this machine runs systemd (sd_booted(3)).
func Booted() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// Complaints returns a sentence for each of the given template units whose unit file is missing or masked. Complaints searches the
// same directories as "systemctl list-unit-files". Complaints returns nil if this machine does not run systemd.
func Complaints(templates ...string) []string {
	if !Booted() {
		return nil
	}
	return complaints(unitPath, templates)
}

func complaints(dirs, templates []string) (texts []string) {
	for _, template := range templates {
		if problem := find(dirs, template); problem != "" {
			texts = append(texts, fmt.Sprintf("the unit %s is %s on this machine", template, problem))
		}
	}
	return texts
}

// find looks for a unit file in dirs, and uses the first file that exists. An empty file or a link to /dev/null masks the unit. The
// result is "missing", "masked", or "" if systemd can run the unit.
func find(dirs []string, name string) (problem string) {
	for _, dir := range dirs {
		info, err := os.Stat(filepath.Join(dir, name))
		switch {
		case err != nil:
		case !info.Mode().IsRegular() || info.Size() == 0:
			return "masked"
		default:
			return ""
		}
	}
	return "missing"
}
