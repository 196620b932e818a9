//go:build integration

// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"strings"
	"testing"
)

const zeroConfig = `
[[resource]]
name = "example.org/zero"
class = "node"
match = { DEVNAME = "/dev/zero" }
`

// vendorUnit is a vendor unit that records for which device it was run.
const vendorUnit = `[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo "%I" >>/run/steps'
`

// sockets lists the plugin sockets of the daemon.
const sockets = "ls /var/lib/kubelet/device-plugins | grep '^mp-'"

// TestService checks that the daemon works completely inside the sandbox of its unit.
func TestService(t *testing.T) {
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			m := boot(t, suite)
			m.write("/etc/metalplug/metalplug.toml", zeroConfig)
			m.sh("systemctl start metalplugd") // systemd waits for READY=1 (sd_notify)
			for _, step := range []struct {
				name string
				run  func(*machine)
			}{
				{"events, journal and database", events},
				{"reload", reload},
				{"CDI from the next start on", specs},
				{"a kubelet directory that is replaced", replacedDirectory},
				{"the configuration directory is replaced", replacedConfiguration},
				{"a path that the sandbox hides", hiddenDirectory},
				{"a vendor's unit", vendorStep},
				{"watchdog", watchdog},
				{"locks of two helpers", checkLocks},
				{"the socket of the journal is replaced", replacedJournal},
			} {
				t.Run(step.name, func(t *testing.T) {
					inner := *m
					inner.t = t
					step.run(&inner)
				})
			}
		})
	}
}

// want fails a test unless text contains part.
func (m *machine) want(what, text, part string) {
	m.t.Helper()
	if !strings.Contains(text, part) {
		m.t.Errorf("%s: %q is not in:\n%s", what, part, text)
	}
}

func (m *machine) pid() string { return m.sh("systemctl show -P MainPID metalplugd") }

func events(m *machine) {
	m.want("list", m.sh("metalplugctl list"), "Healthy")
	m.sh("udevadm trigger /sys/class/mem/zero; udevadm settle")
	m.await("an event", func() bool { out, _ := m.try("metalplugctl status"); return strings.Contains(out, "events        1 ") }) // the command fails without a kubelet
	// with the native protocol, because lines of standard error have no fields
	m.await("a line in the journal", func() bool {
		return strings.Contains(m.sh("journalctl -b -o cat METALPLUG_DEVICE=node-zero"), "device added")
	})
	if log := m.sh("journalctl -b -o cat -u metalplugd"); strings.Contains(log, "udevd is not running") || strings.Contains(log, "not reached") {
		m.t.Errorf("log:\n%s", log)
	}
}

func reload(m *machine) {
	m.write("/etc/metalplug/metalplug.toml", zeroConfig+"shares = 3\n")
	m.sh("systemctl reload metalplugd")
	m.write("/etc/metalplug/metalplug.toml", zeroConfig+"nonsense = 3\n")
	if out, err := m.try("systemctl reload metalplugd"); err == nil {
		m.t.Errorf("a bad configuration is reloaded: %s", out)
	}
	m.want("status", m.sh("systemctl show -P StatusText metalplugd"), "the configuration was not reloaded: /etc/metalplug/metalplug.toml:")
	m.write("/etc/metalplug/metalplug.toml", zeroConfig)
	m.sh("systemctl reload metalplugd")
}

func specs(m *machine) {
	m.write("/etc/metalplug/metalplug.toml", cdiConfig)
	if out, err := m.try("systemctl reload metalplugd"); err == nil {
		m.t.Errorf("CDI is reloaded without /run/cdi in the sandbox: %s", out)
	}
	m.want("status", m.sh("systemctl show -P StatusText metalplugd"), "the sandbox has no /run/cdi, which is mounted when metalplugd starts: systemctl restart metalplugd")
	m.sh("metalplugd --check") // a check by an operator must find no problem
	m.sh("systemctl restart metalplugd")
	m.want("spec", m.sh("cat /run/cdi/metalplug*.json"), `"path": "/dev/zero"`)
	m.write("/etc/metalplug/metalplug.toml", zeroConfig)
	m.sh("systemctl restart metalplugd") // the restart removes the leftover spec
	m.await("no spec", func() bool { _, err := m.try("ls /run/cdi/metalplug*"); return err != nil })
	m.sh("systemctl restart metalplugd")
	if out, err := m.try("ls /run/metalplug-mounts/cdi"); err == nil {
		m.t.Errorf("/run/cdi is bound though nothing uses it: %s", out)
	}
}

func replacedDirectory(m *machine) {
	for _, kubelet := range []string{"/var/lib/kubelet", "/srv/kubelet"} {
		if kubelet != "/var/lib/kubelet" { // this path is then a link to the other directory
			m.sh("systemctl stop metalplugd; umount /var/lib/kubelet; mv /var/lib/kubelet " + kubelet + "; ln -s " + kubelet + " /var/lib/kubelet; systemctl start metalplugd")
		}
		for _, how := range []string{
			"mv KUBELET/device-plugins KUBELET/old; mkdir KUBELET/device-plugins",
			"until rm -rf KUBELET/*; do :; done",                    // like kubeadm reset; the daemon may recreate a socket in between
			"rm -rf KUBELET/x; mv KUBELET/device-plugins KUBELET/x", // no process creates the directory again
			"until rm -rf KUBELET; do :; done; mkdir KUBELET",       // the parent directory is removed too
			"mkdir -p /mnt/data/device-plugins; mount --bind /mnt/data KUBELET",
		} {
			how = strings.ReplaceAll(how, "KUBELET", kubelet)
			m.await("a socket", func() bool { _, err := m.try(sockets); return err == nil })
			before := m.pid()
			m.sh(how)
			m.await("a restart after "+how, func() bool {
				_, err := m.try(sockets)
				return err == nil && m.pid() != before && m.pid() != "0"
			})
			m.want("log", m.sh("journalctl -b -o cat _PID="+before), " was replaced, but the sandbox still shows the old directory")
			m.await("readiness", func() bool { return m.sh("systemctl show -P SubState metalplugd") == "running" })
		}
	}
}

func replacedConfiguration(m *machine) {
	m.sh("cp -a /etc/metalplug /etc/other; mv /etc/metalplug /etc/old; mv /etc/other /etc/metalplug; systemctl reload metalplugd")
	m.want("status", m.sh("systemctl show -P StatusText metalplugd"), "/etc/metalplug was replaced")
	m.sh("systemctl restart metalplugd; systemctl reload metalplugd")
	if status := m.sh("systemctl show -P StatusText metalplugd"); strings.Contains(status, "replaced") {
		m.t.Errorf("after a restart: %s", status)
	}
}

func hiddenDirectory(m *machine) {
	m.sh("mkdir -p /var/lib/k0s/kubelet/pod-resources")
	m.write("/etc/metalplug/metalplug.toml", zeroConfig+"[paths]\npod_resources = \"/var/lib/k0s/kubelet/pod-resources/kubelet.sock\"\n")
	m.sh("systemctl restart metalplugd")
	const line = "the unit does not bind /var/lib/k0s/kubelet/pod-resources"
	m.want("log", m.sh("journalctl -b -o cat -u metalplugd"), line)
	m.write("/etc/systemd/system/metalplugd.service.d/paths.conf", "[Service]\nBindReadOnlyPaths=/var/lib/k0s/kubelet/pod-resources\n")
	m.sh("journalctl --rotate --vacuum-time=1s -q; systemctl daemon-reload; systemctl restart metalplugd")
	if log := m.sh("journalctl -b -o cat -u metalplugd"); strings.Count(log, line) > 1 {
		m.t.Errorf("with the drop-in of the man page:\n%s", log)
	}
	m.sh("rm -r /etc/systemd/system/metalplugd.service.d; systemctl daemon-reload")
	m.write("/etc/metalplug/metalplug.toml", zeroConfig)
	m.sh("systemctl restart metalplugd")
}

func vendorStep(m *machine) {
	m.write("/etc/systemd/system/vendor-init@.service", vendorUnit)
	m.write("/etc/metalplug/metalplug.toml", zeroConfig+"units = { init = \"vendor-init@.service\" }\n")
	m.sh("systemctl daemon-reload; systemctl reload metalplugd")
	m.await("the step", func() bool { out, _ := m.try("cat /run/steps"); return out == "node-zero\n" })
	m.await("a healthy device", func() bool { out, _ := m.try("metalplugctl status"); return strings.Contains(out, "1 of 1 healthy") }) // the command fails before that
}

func watchdog(m *machine) {
	m.write("/etc/systemd/system/metalplugd.service.d/watchdog.conf", "[Service]\nWatchdogSec=2s\n")
	m.sh("systemctl daemon-reload; systemctl restart metalplugd")
	before := m.pid()
	m.sh("kill -STOP " + before)
	m.await("a restart by the watchdog", func() bool { pid := m.pid(); return pid != before && pid != "0" })
	m.sh("rm -r /etc/systemd/system/metalplugd.service.d; systemctl daemon-reload; systemctl restart metalplugd")
}

// checkLocks checks that two instances of metalplug-reset exclude each other. Since systemd 254, a lock in sysfs would not do
// that.
func checkLocks(m *machine) {
	m.write("/etc/systemd/system/metalplug-reset@.service.d/lock.conf", `[Service]
ExecStart=
ExecStart=/bin/sh -c 'exec 9>$RUNTIME_DIRECTORY/8:0; flock -n 9 || exit 7; : >$RUNTIME_DIRECTORY/%i; test %i != first || sleep 1000'
StandardInput=null
`)
	m.sh("systemctl daemon-reload; systemctl start metalplug-reset@first")
	m.await("the first lock", func() bool { _, err := m.try("ls /run/metalplug-locks/first"); return err == nil })
	m.sh("systemctl start metalplug-reset@second || :")
	m.await("the second", func() bool {
		log, _ := m.try("journalctl -b -o cat _PID=1 -u metalplug-reset@second")
		return strings.Contains(log, "status=7")
	})
	m.sh("systemctl stop metalplug-reset@first; test ! -e /run/metalplug-locks/second; test -f /run/metalplug-locks/8:0; stat -c %a /run/metalplug-locks | grep -x 700")
	m.sh("rm -r /etc/systemd/system/metalplug-reset@.service.d; systemctl daemon-reload")
}

// replacedJournal replaces journald. The sandbox then still shows the old socket. The lines then arrive through standard
// error, because systemd keeps that stream.
func replacedJournal(m *machine) {
	m.sh("systemctl restart metalplugd; ls -i /run/systemd/journal/socket >/run/before; journalctl --rotate --vacuum-time=1s -q")
	m.sh("systemctl restart systemd-journald.socket; ls -i /run/systemd/journal/socket >/run/after; ! cmp /run/before /run/after")
	m.write("/etc/metalplug/metalplug.toml", zeroConfig+"shares = 2\n")
	m.sh("systemctl reload metalplugd")
	m.await("a line in the journal", func() bool {
		log, _ := m.try("journalctl -b -o cat -u metalplugd")
		return strings.Contains(log, "configuration reloaded")
	})
}
