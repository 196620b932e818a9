// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// host has the mounts of a node as systemd sees them. sandbox has those inside the unit.
const (
	host = "24 1 8:1 / / rw - ext4 /dev/sda1 rw\n" +
		"25 24 0:21 / /proc rw - proc proc rw\n" +
		"30 24 8:2 /data /srv/disk rw - ext4 /dev/sda2 rw\n"
	sandbox = "54 1 8:1 / / ro - ext4 /dev/sda1 rw\n" +
		"60 54 0:40 / /var ro - tmpfs tmpfs ro\n" +
		"61 60 8:1 /var/lib/kubelet/device-plugins /var/lib/kubelet/device-plugins rw - ext4 /dev/sda1 rw\n" +
		"62 60 8:1 /var/lib/kubelet/pod-resources /var/lib/kubelet/pod-resources ro - ext4 /dev/sda1 rw\n"
)

func TestReplacedMounts(t *testing.T) {
	proc := t.TempDir()
	write := func(own, host string) {
		t.Helper()
		for name, text := range map[string]string{"self": own, "1": host} {
			if err := errors.Join(os.MkdirAll(filepath.Join(proc, name), 0o755), os.WriteFile(filepath.Join(proc, name, "mountinfo"), []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// This path contains no link, and does not exist in a test.
	const plugins = "/var/lib/kubelet/device-plugins"
	replace := func(old, with string) func(string) string {
		return func(text string) string { return strings.Replace(text, old, with, 1) }
	}
	for layout, own := range map[string]string{
		"plain":                             sandbox,
		"/var/lib/kubelet is a link":        strings.Replace(sandbox, "8:1 "+plugins, "8:2 /data/kubelet/device-plugins", 1),
		"/var/lib/kubelet is a mount point": strings.Replace(sandbox, "8:1 "+plugins, "8:3 /device-plugins", 1),
	} {
		host, at := host, "/var/lib/kubelet"
		switch layout {
		case "/var/lib/kubelet is a link":
			at = "/srv/disk/kubelet"
		case "/var/lib/kubelet is a mount point":
			host += "31 24 8:3 / /var/lib/kubelet rw - ext4 /dev/sdc rw\n"
		}
		for name, c := range map[string]struct {
			own      func(string) string // changes the mounts of the sandbox
			host     string              // added to the mounts of the host
			replaced bool
		}{
			"nothing happened": {replace("", ""), "", false},
			"it was removed, with or without another in its place": {replace("device-plugins "+plugins, "device-plugins//deleted "+plugins), "", true},
			"it was renamed":                        {replace("device-plugins "+plugins, "old "+plugins), "", true},
			"one above it was renamed":              {replace("/device-plugins "+plugins, ".old/device-plugins "+plugins), "", true},
			"a file system was mounted above it":    {replace("", ""), "40 24 8:9 / " + at + " rw - ext4 /dev/sdb rw\n", true},
			"a file system was mounted on both":     {func(s string) string { return s + "70 61 8:9 / " + plugins + " rw - ext4 /dev/sdb rw\n" }, "40 24 8:9 / " + plugins + " rw - ext4 /dev/sdb rw\n", false},
			"a file system was mounted elsewhere":   {replace("", ""), "40 24 8:9 / " + at + "/device rw - ext4 /dev/sdb rw\n", false},
			"the sandbox does not see its own view": {func(string) string { return "" }, "", false},
		} {
			write(own, host)
			m := newMount(proc, "a", plugins)
			if m.isHidden() != (m.ownView != m.hostView) { // the path does not exist in a test
				t.Errorf("%s: hidden: %v, %+v", layout, m.isHidden(), m)
			}
			write(c.own(own), host+c.host)
			if err := m.checkReplaced(proc); (err != nil) != c.replaced || err != nil && !strings.HasPrefix(err.Error(), "a: "+plugins+" was replaced") {
				t.Errorf("%s, %s: %v", layout, name, err)
			}
		}
		// The directory was removed between the start of the sandbox and that of the daemon.
		write(replace("device-plugins "+plugins, "device-plugins//deleted "+plugins)(own), host)
		if m := newMount(proc, "a", plugins); m.isHidden() || m.checkReplaced(proc) == nil {
			t.Errorf("%s: a directory that was removed before the start is not noticed", layout)
		}
	}
}

// TestMountsOfThisMachine checks that nothing is hidden outside a sandbox, and that a directory may be replaced there.
func TestMountsOfThisMachine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := newMount("/proc", "a", dir)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := m.checkReplaced("/proc"); err != nil || m.isHidden() {
		t.Errorf("replaced: %v, hidden: %v", err, m.isHidden())
	}
}
