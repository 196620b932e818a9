// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// features are the mediation features of different kernels. This machine's parser compiles each profile for them. The first
// file is for Ubuntu's kernels, which mediate sockets, and the second for Debian's stable kernels.
var features = []string{"/etc/apparmor.d/abi/3.0", "/etc/apparmor.d/abi/kernel-5.4-vanilla"}

// TestProfilesCompile runs AppArmor's parser without loading (-Q) or caching (-K) anything.
func TestProfilesCompile(t *testing.T) {
	parser := program(t, "apparmor_parser", "apparmor")
	for _, name := range names(t, "packaging/apparmor/*") {
		file, err := filepath.Abs("../../packaging/apparmor/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, kernel := range features {
			out, err := exec.Command(parser, "-Q", "-K", "--warn=all", "--features-file="+kernel, file).CombinedOutput()
			if err != nil {
				t.Errorf("%s for %s: %v\n%s", name, kernel, err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "/"+name) && !strings.Contains(line, "not enforced") { // on that kernel
					t.Errorf("%s for %s: %s", name, kernel, line)
				}
			}
		}
	}
}

// TestProfilesMatchTheUnits checks that a profile applies to the program of a unit, by path or by name in the unit, and
// that it grants no capability that the unit does not grant. metalplug-holders has none. See
// packaging/apparmor/metalplugd.
func TestProfilesMatchTheUnits(t *testing.T) {
	profiles := names(t, "packaging/apparmor/*")
	driver := "metalplug-dra" // has the network, and a package of its own
	head := regexp.MustCompile(`(?m)^profile (\S+) (?:(/\S+) )?flags=\(attach_disconnected(, mediate_deleted)?\) \{$`)
	for _, name := range profiles {
		profile := text(t, "packaging/apparmor/"+name)
		found := head.FindAllStringSubmatch(profile, -1)
		if len(found) != 1 || found[0][1] != name {
			t.Errorf("%s: profiles %q, want the one of the program %s", name, found, name)
			continue
		}
		if (found[0][3] != "") != (name != "metalplug-unit" && name != driver) {
			t.Errorf("%s: mediate_deleted is for the programs that ask for files that others remove or replace", name)
		}
		unit, postrm := name+"@.service", "packaging/debian/metalplug.postrm"
		switch name {
		case "metalplugd":
			unit = "metalplugd.service"
		case driver:
			unit, postrm = "metalplug-dra.service", "packaging/debian/metalplug-dra.postrm"
		}
		if matches, _ := filepath.Glob("../../systemd/" + unit); len(matches) == 0 {
			t.Errorf("%s: there is no unit %s", name, unit)
			continue
		}
		u := readUnit(t, unit)
		start, named := u["ExecStart"], u["AppArmorProfile"]
		if path := found[0][2]; path != "" && !slices.Equal(start, []string{path}) || path == "" && !slices.Equal(named, []string{"-" + name}) {
			t.Errorf("%s attaches to %q, %s starts %q below the profile %q", name, path, unit, start, named)
		}
		bounding := strings.Fields(strings.Join(u["CapabilityBoundingSet"], " "))
		for _, c := range regexp.MustCompile(`(?m)^ *capability (.*),$`).FindAllStringSubmatch(profile, -1) {
			for _, capability := range strings.Fields(c[1]) {
				if !slices.Contains(bounding, "CAP_"+strings.ToUpper(capability)) {
					t.Errorf("%s gives %s, %s gives %q", name, capability, unit, bounding)
				}
			}
		}
		for what, forbidden := range map[string]string{
			"a terminal":      `(?m)^[^#\n]*(abstractions/consoles|/dev/(tty|pts|ptmx|console|vcs))`,
			"another program": `(?m)^[^#\n]* [a-z]*[xX][a-z]*,$`, "every capability": `(?m)^ *capability,$`,
			"a network": `(?m)^ *network (inet|inet6|packet|,)`, "a mount": `(?m)^ *(mount|remount|umount|pivot_root)`,
			"another profile": `(?m)^ *change_profile`,
		} {
			if line := regexp.MustCompile(forbidden).FindString(profile); line != "" && (name != driver || what != "a network") {
				t.Errorf("%s allows %s: %s", name, what, line)
			}
		}
		if !strings.Contains(profile, "include if exists <local/"+name+">") {
			t.Errorf("%s takes no local additions", name)
		}
		if !regexp.MustCompile(`(?m)^(profiles='[^'\n]*\b` + name + `\b[^'\n]*'|\t+printf ` + name + ` .*)$`).MatchString(text(t, postrm)) {
			t.Errorf("%s does not know the profile %s", postrm, name)
		}
	}
}

// TestUnitMayRemoveSpecs checks that the profile of metalplug-unit allows it to remove each kind of CDI spec that it looks for.
func TestUnitMayRemoveSpecs(t *testing.T) {
	profile := text(t, "packaging/apparmor/metalplug-unit")
	found := regexp.MustCompile(`"(metalplug[^"]*\.json)"`).FindAllStringSubmatch(text(t, "daemon/unit/mounts.go"), -1)
	for _, pattern := range found {
		if !strings.Contains(profile, "@{run}/cdi/"+pattern[1]+" w,") {
			t.Errorf("the profile does not allow metalplug-unit to remove %s", pattern[1])
		}
	}
	if len(found) == 0 {
		t.Error("metalplug-unit looks for no specs")
	}
}
