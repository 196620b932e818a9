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

// Unusable is a template unit that systemd cannot run.
type Unusable struct {
	Template string
	Masked   bool // true if the unit is masked, false if its unit file is missing
}

// String returns a sentence that names the unit and the problem.
func (u Unusable) String() string {
	problem := "missing"
	if u.Masked {
		problem = "masked"
	}
	return fmt.Sprintf("the unit %s is %s on this machine", u.Template, problem)
}

// Complaints returns a warning for each of the given template units that systemd cannot run. Complaints returns nil if this
// machine does not run systemd.
func Complaints(templates ...string) (texts []string) {
	if !Booted() {
		return nil
	}
	for _, u := range FindUnusable(templates...) {
		texts = append(texts, u.String())
	}
	return texts
}

// FindUnusable returns the given template units whose unit file is missing or masked. FindUnusable searches the same directories
// as "systemctl list-unit-files".
func FindUnusable(templates ...string) []Unusable { return unusable(unitPath, templates) }

func unusable(dirs, templates []string) (all []Unusable) {
	for _, template := range templates {
		if exists, masked := find(dirs, template); !exists || masked {
			all = append(all, Unusable{Template: template, Masked: masked})
		}
	}
	return all
}

// find looks for a unit file in dirs, and uses the first file that exists. An empty file or a link to /dev/null masks the unit.
func find(dirs []string, name string) (exists, masked bool) {
	for _, dir := range dirs {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true, !info.Mode().IsRegular() || info.Size() == 0
		}
	}
	return false, false
}
