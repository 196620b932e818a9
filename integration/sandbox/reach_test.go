//go:build integration

// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// suites are the Debian releases whose systemd versions are used. They have systemd 252 and 257.
var suites = []string{"bookworm", "trixie"}

// sandboxes are the tested units, with the names of their lists in the threat model.
var sandboxes = []struct{ list, unit, config string }{
	{"metalplugd.service", "metalplugd.service", ""},
	{"metalplugd.service, inject = cdi", "metalplugd.service", cdiConfig},
	{"metalplugd.service, with metalplugd-metrics.socket", "metalplugd.service", ""},
	{"metalplug-reset@.service", "metalplug-reset@probe.service", ""},
	{"metalplug-holders@.service", "metalplug-holders@probe.service", ""},
	{"metalplug-unit@.service", "metalplug-unit@probe.service", ""},
	{"metalplug-dra.service", "metalplug-dra.service", ""},
}

const metricsSocket = "metalplugd-metrics.socket"

const cdiConfig = `
[[resource]]
name = "example.org/zero"
class = "node"
match = { DEVNAME = "/dev/zero" }
inject = "cdi"
`

// instead is a drop-in with which a unit starts the probe instead of its program, in the same sandbox.
const instead = `[Unit]
Wants=metalplug-reset.socket metalplug-holders.socket metalplug-unit.socket metalplugd-claims.socket
After=metalplug-reset.socket metalplug-holders.socket metalplug-unit.socket
[Service]
Type=oneshot
Restart=no
WatchdogSec=0
RuntimeMaxSec=infinity
ExecStart=
ExecStart=/usr/libexec/metalplug/probe
StandardInput=file:/out/list
StandardOutput=truncate:/out/reached
`

// victims are parts of a node that a program with uid 0 would try to reach. They are sockets of services that trust uid 0,
// files of the kubelet, devices, and the terminal of a login. The device node victim-terminal is not in devpts. With it the
// test checks that the device rules deny terminals even if /dev/pts is visible.
const victims = `
mkdir -p /var/lib/kubelet/device-plugins /var/lib/kubelet/pod-resources /var/lib/kubelet/pki /var/lib/kubelet/pods/x /var/lib/kubelet/plugins /var/lib/kubelet/plugins_registry /etc/cron.d \
	/etc/kubernetes /var/spool/cron /opt/x /srv/x /mnt/x ~root/.ssh /home/x /boot/x /victim/x /run/cdi /run/user/0 /run/credentials/x
for file in /var/lib/kubelet/kubeadm-flags.env /var/lib/kubelet/config.yaml /var/lib/kubelet/pki/kubelet.key \
	/var/lib/kubelet/pods/x/token /etc/kubernetes/admin.conf /etc/cron.d/x ~root/.ssh/id /home/x/secret /boot/x/key \
	/opt/x/key /srv/x/key /mnt/x/key /victim/x/key /var/spool/cron/root /run/credentials/x/key /run/cdi/other.json \
	/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint; do
	echo secret >$file
done
for number in 1 2 4; do [ -e /dev/victim$number ] || mknod /dev/victim$number c 1 $number; done
[ -e /dev/victim-terminal ] || mknod /dev/victim-terminal c 136 0
[ -e /dev/victim-block ] || mknod /dev/victim-block b 7 0
systemd-run -q --unit=victim-stream /usr/libexec/metalplug/probe listen stream /run/containerd/containerd.sock /run/crio/crio.sock \
	/run/docker.sock /run/k3s/containerd/containerd.sock /run/user/0/bus /tmp/victim.sock /opt/x/victim.sock /victim/x/victim.sock /dev/shm/victim.sock \
	/var/lib/kubelet/plugins/x.sock /var/lib/kubelet/plugins_registry/x.sock /var/lib/kubelet/device-plugins/kubelet.sock \
	/var/lib/kubelet/pod-resources/kubelet.sock @victim-stream
systemd-run -q --unit=victim-dgram /usr/libexec/metalplug/probe listen dgram /run/victim-dgram @victim-dgram
systemd-run -q --unit=victim-web /usr/libexec/metalplug/probe web 192.0.2.1
systemd-run -q --unit=victim-terminal /usr/libexec/metalplug/probe terminal
systemd-run -q --unit=victim-seqpacket /usr/libexec/metalplug/probe listen seqpacket /run/victim-seqpacket @victim-seqpacket
`

// TestReach checks that a program in the sandbox of a unit can reach exactly what the threat model lists, on each
// systemd.
func TestReach(t *testing.T) {
	model := lists(t)
	met := make(map[string]bool) // the lists and lines of the threat model that matched something
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			m := boot(t, suite)
			m.sh(victims + driverFiles)
			m.await("the victims", func() bool {
				out, _ := m.try("ls /dev/pts/0 /run/victim-dgram /run/victim-seqpacket /var/lib/kubelet/pod-resources/kubelet.sock")
				return !strings.Contains(out, "cannot access")
			})
			for _, s := range sandboxes {
				t.Run(s.list, func(t *testing.T) {
					inner, more := *m, []string(nil)
					if strings.Contains(s.list, ",") {
						more = model[s.unit]
					}
					inner.t = t
					if strings.HasSuffix(s.list, metricsSocket) { // a drop-in lets this socket listen on all addresses
						inner.write("/etc/systemd/system/"+metricsSocket+".d/listen.conf", "[Socket]\nListenStream=\nListenStream=0.0.0.0:9841\n")
						inner.sh("systemctl daemon-reload; systemctl enable " + metricsSocket)
						defer inner.sh("systemctl disable --now " + metricsSocket)
					}
					for _, line := range inner.runProbe(s.unit, s.config) {
						pattern := match(slices.Concat(model[s.list], more), line)
						if pattern == "" {
							t.Errorf("%s reaches what the threat model does not list: %s", s.unit, line)
						}
						met[s.list+" "+pattern] = true
					}
				})
			}
		})
	}
	for _, s := range sandboxes {
		for _, pattern := range model[s.list] {
			if !t.Failed() && !met[s.list+" "+pattern] {
				t.Errorf("the threat model lists for %s what no systemd lets it reach: %s", s.list, pattern)
			}
		}
	}
}

// runProbe starts the probe instead of a unit's program and returns its output.
func (m *machine) runProbe(unit, config string) []string {
	m.t.Helper()
	m.write("/etc/metalplug/metalplug.toml", config)
	template := unit
	if name, _, is := strings.Cut(unit, "@"); is {
		template = name + "@.service"
	}
	m.write("/etc/systemd/system/"+template+".d/probe.conf", instead)
	m.sh("systemctl daemon-reload")
	m.sh("/usr/libexec/metalplug/probe list >/out/list; sed -n 's/.* @/abstract @/p' /proc/net/unix | sort -u >>/out/list")
	m.sh("systemctl start " + unit)
	m.sh("systemctl stop " + unit + "; rm -r /etc/systemd/system/" + template + ".d; systemctl daemon-reload")
	text, err := os.ReadFile(m.out + "/reached")
	if err != nil {
		m.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if lines[len(lines)-1] != "end" || len(lines) < 5 {
		m.t.Fatalf("the probe did not end:\n%s", text)
	}
	return lines[:len(lines)-1]
}

// lists returns the lists of the threat model, by their names. A list is a code block that begins with "reach NAME".
func lists(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]string)
	_, rest, found := strings.Cut(string(text), "```reach ")
	for found {
		var block string
		block, rest, _ = strings.Cut(rest, "```")
		name, lines, _ := strings.Cut(block, "\n")
		all[name] = strings.Split(strings.TrimSpace(lines), "\n")
		_, rest, found = strings.Cut(rest, "```reach ")
	}
	for _, s := range sandboxes {
		if len(all[s.list]) == 0 {
			t.Fatalf("docs/threat-model.md has no list for %s", s.list)
		}
	}
	return all
}

// match returns the pattern that matches a line. "/**" at the end matches everything below, and "*" one element.
func match(patterns []string, line string) string {
	i := slices.IndexFunc(patterns, func(p string) bool {
		if above, all := strings.CutSuffix(p, "/**"); all {
			parts := strings.SplitN(line, "/", strings.Count(above, "/")+2)
			if len(parts) < strings.Count(above, "/")+2 {
				return false
			}
			line := strings.Join(parts[:len(parts)-1], "/")
			ok, err := path.Match(above, line)
			return ok && err == nil
		}
		ok, err := path.Match(p, line)
		return ok && err == nil
	})
	if i < 0 {
		return ""
	}
	return patterns[i]
}
