// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestSandbox: doctor names the unit that is masked, and the kernel setting without which the sandbox cannot be made.
func TestSandbox(t *testing.T) {
	for _, c := range []struct {
		name     string
		files    map[string]string // by path: the text, or after "->" where a link leads
		remedies []string
	}{
		{"a sound node", map[string]string{"/proc/sys/user/max_user_namespaces": "63511\n"}, nil},
		{"a file of the operator in the place of a unit", map[string]string{"/etc/systemd/system/metalplugd.service": "[Unit]\n"}, nil},
		{"an enabled unit of another name", map[string]string{"/etc/systemd/system/kubelet.service": "->/dev/null"}, nil},
		{
			"no user namespaces",
			map[string]string{"/proc/sys/user/max_user_namespaces": "0\n"},
			[]string{"sysctl -w user.max_user_namespaces=1024, and the same in /etc/sysctl.d"},
		},
		{
			"masked units",
			map[string]string{
				"/etc/systemd/system/metalplugd.service": "->/dev/null", "/run/systemd/system/metalplug-unit@.service": "->/dev/null",
			},
			[]string{"systemctl unmask metalplugd.service", "systemctl unmask --runtime metalplug-unit@.service"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &doctor{root: t.TempDir()}
			for path, text := range c.files {
				name := filepath.Join(d.root, path)
				err := os.MkdirAll(filepath.Dir(name), 0o755)
				if target, link := text, text[:2] == "->"; err == nil && link {
					err = os.Symlink(target[2:], name)
				} else if err == nil {
					err = os.WriteFile(name, []byte(text), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			var remedies []string
			for _, f := range d.checkSandbox() {
				if f.Level != levelFail {
					t.Errorf("%+v is not a failure", f)
				}
				remedies = append(remedies, f.Remedy)
			}
			if !slices.Equal(remedies, c.remedies) {
				t.Errorf("remedies %q, want %q", remedies, c.remedies)
			}
		})
	}
}
