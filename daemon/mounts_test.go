// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// host is a node as systemd sees it. sandbox is what the unit makes of that.
const (
	host = "24 1 8:1 / / rw - ext4 /dev/sda1 rw\n" +
		"25 24 0:21 / /proc rw - proc proc rw\n" +
		"30 24 8:2 /data /srv/my\\040disk rw - ext4 /dev/sda2 rw\n"
	sandbox = "54 1 8:1 / / ro - ext4 /dev/sda1 rw\n" +
		"60 54 0:40 / /var ro - tmpfs tmpfs ro\n" +
		"61 60 8:1 /var/lib/kubelet/device-plugins /var/lib/kubelet/device-plugins rw - ext4 /dev/sda1 rw\n" +
		"62 60 8:1 /var/lib/kubelet/pod-resources /var/lib/kubelet/pod-resources ro - ext4 /dev/sda1 rw\n"
)

func TestViewOf(t *testing.T) {
	for _, c := range []struct{ mountinfo, path, want string }{
		{host, "/var/lib/kubelet", "8:1 /var/lib/kubelet"},
		{host, "/", "8:1 /"},
		{host, "/procedure", "8:1 /procedure"},
		{host, "/srv/my disk/a", "8:2 /data/a"},
		{sandbox, "/var/lib/kubelet/device-plugins", "8:1 /var/lib/kubelet/device-plugins"},
		{sandbox, "/var/lib/k0s", "0:40 /lib/k0s"},
		{host + "31 24 8:3 / / rw - ext4 /dev/sda3 rw\n", "/var", "8:3 /var"},
		{"", "/var", " "},
		{"nonsense\n", "/var", " "},
	} {
		if v := viewOf(c.mountinfo, c.path); v.device+" "+v.path != c.want {
			t.Errorf("%s leads to %q, want %q", c.path, v, c.want)
		}
	}
}

func TestReplacedMounts(t *testing.T) {
	proc := t.TempDir()
	write := func(own, host string) {
		t.Helper()
		for name, text := range map[string]string{"self": own, "1": host} {
			if err := os.MkdirAll(filepath.Join(proc, name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, name, "mountinfo"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Under these names nothing is a link, and nothing exists in a test.
	plugins, pods, elsewhere := mount{"a", "/var/lib/kubelet/device-plugins"}, mount{"b", "/var/lib/kubelet/pod-resources"},
		mount{"c", "/var/lib/no-such-k0s/pod-resources"}
	write(sandbox, host)
	m, hidden := newMounts(proc, plugins, pods, elsewhere)
	if len(hidden) != 1 || hidden[0] != elsewhere {
		t.Errorf("hidden by the sandbox: %v, want %v", hidden, elsewhere)
	}
	for name, c := range map[string]struct{ own, host, want string }{
		"nothing happened": {sandbox, host, ""},
		"a directory was removed, with or without another in its place": {
			strings.Replace(sandbox, "device-plugins /var", "device-plugins//deleted /var", 1), host, "a: " + plugins.path + " was replaced",
		},
		"it was renamed": {strings.Replace(sandbox, " /var/lib/kubelet/pod-resources", " /var/lib/old/pod-resources", 1), host, "b: " + pods.path},
		"a file system was mounted above it": {
			sandbox, host + "40 24 8:9 / /var/lib/kubelet rw - ext4 /dev/sdb rw\n", "a: " + plugins.path + " was replaced",
		},
		"a file system was mounted elsewhere": {sandbox, host + "40 24 8:9 / /var/lib/kubelet/pods rw - ext4 /dev/sdb rw\n", ""},
		"the host cannot be seen":             {sandbox, "", ""},
	} {
		write(c.own, c.host)
		err := m.replaced()
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	// What was removed between the start of the sandbox and that of the daemon is not taken for another layout.
	write(strings.Replace(sandbox, "device-plugins /var", "device-plugins//deleted /var", 1), host)
	if m, _ := newMounts(proc, plugins); m.replaced() == nil {
		t.Error("a directory that was removed before the start is not noticed")
	}
}

// TestMountsOfThisMachine: outside a sandbox nothing is hidden, and a directory may be replaced.
func TestMountsOfThisMachine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m, hidden := newMounts("/proc", mount{"a", dir})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := m.replaced(); err != nil || len(hidden) > 0 {
		t.Errorf("replaced: %v, hidden: %v", err, hidden)
	}
}
