//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"strings"
	"testing"
)

// heldBackStart makes each start of the installed service wait before the daemon runs, and makes the daemon log each event.
// Even with "+", the command sees only the unit's /run, because systemd 257 applies the sandbox to such commands too.
const heldBackStart = `[Service]
ExecStartPre=+/bin/sh -c 'until test -e /run/metalplug/go-on; do sleep 0.2; done; rm /run/metalplug/go-on'
ExecStart=
ExecStart=/usr/sbin/metalplugd --log-level debug
`

// testDropIn changes the installed service for a step.
const testDropIn = "/etc/systemd/system/metalplugd.service.d/test.conf"

// changeService changes the installed service from its next start on. With "" it restores the service.
func (in *installation) changeService(text string) {
	if text == "" {
		in.m.Run("rm", "-f", testDropIn)
	} else {
		in.m.Run("mkdir", "-p", "/etc/systemd/system/metalplugd.service.d")
		in.m.Write(testDropIn, text)
	}
	in.m.Run("systemctl", "daemon-reload")
}

// eventsWait checks that systemd's socket queues udevd's events while no daemon runs. The next daemon must get the events,
// regardless of how the previous daemon ended.
func eventsWait(in *installation, t *testing.T) {
	in.changeService(heldBackStart)
	defer in.changeService("") // restore the service even after a failure, so that later steps do not wait
	socket := func() string {
		return in.m.Run("systemctl", "show", "--value", "--property", "InvocationID", "metalplugd-uevent.socket")
	}
	first := socket()
	for _, end := range []string{"systemctl restart --no-block metalplugd", "systemctl kill --signal KILL metalplugd"} {
		pid := in.pid()
		_, cursor := in.journal("")
		in.m.Sh(end)
		in.m.Eventually("a start that waits", patience, func() bool { return in.show("SubState") == "start-pre" })
		in.m.Run("udevadm", "trigger", "--settle", "--action", "change", "/sys/class/mem/full")
		in.m.Run("touch", "/run/metalplug/go-on")
		in.m.Eventually("the next metalplugd", 2*patience, func() bool {
			next := in.pid()
			return next != pid && next != "0" && in.show("SubState") == "running"
		})
		log, _ := in.journal(cursor)
		if !strings.Contains(log, "uevent action=change syspath=/sys/devices/virtual/mem/full") {
			t.Errorf("%s: the event is lost:\n%s", end, log)
		}
	}
	if last := socket(); last != first || first == "" {
		t.Errorf("the socket was %q and is %q", first, last)
	}
	in.changeService("")
	from := in.kubelet.Mark()
	in.m.Run("systemctl", "restart", "metalplugd")
	if _, err := in.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)), patience); err != nil {
		t.Error(err)
	}
}

// testScrape checks that systemd listens for metrics after an administrator has enabled the socket, and until it is disabled.
func testScrape(in *installation, t *testing.T) {
	again := func() {
		from := in.kubelet.Mark()
		in.m.Run("systemctl", "restart", "metalplugd")
		if _, err := in.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)), patience); err != nil {
			t.Error(err)
		}
	}
	in.m.Run("setsebool", "metalplugd_metrics_tcp", "on")
	in.m.Run("systemctl", "enable", "metalplugd-metrics.socket")
	again()
	text := in.m.Run("bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/9841; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3`)
	if want := fmt.Sprintf(`metalplug_devices{health="Healthy",resource="%s"} %d`, nvme, len(drives)); !strings.Contains(text, want) {
		t.Errorf("%s is not in\n%s", want, text)
	}
	in.m.Run("systemctl", "disable", "metalplugd-metrics.socket")
	again()
	if in.m.Try("systemctl", "is-active", "--quiet", "metalplugd-metrics.socket").Code == 0 {
		t.Error("somebody listens still")
	}
	in.m.Run("setsebool", "metalplugd_metrics_tcp", "off")
}

// units returns our active units, without the slices of systemd.
func (in *installation) units() string {
	return in.m.Try("systemctl", "list-units", "--no-legend", "--plain", "--state", "active,activating,failed", "metalplug*").Stdout
}

// startedByEvent makes the target for devices start the service. The service must not run until there is a device, and no
// other event of the machine may start it.
func startedByEvent(in *installation, t *testing.T) {
	in.m.Run("systemctl", "disable", "--now", "metalplugd")
	in.m.Run("systemctl", "add-wants", "metalplug-device.target", "metalplugd.service")
	in.m.Run("systemctl", "stop", "metalplug-device.target") // this machine has reached the target because of its boot drive
	in.m.Run("udevadm", "trigger", "--settle", "--action", "change", "/sys/class/mem/full")
	if units := in.units(); units != "" {
		t.Errorf("without a device there is\n%s", units)
	}
	from := in.kubelet.Mark()
	in.m.Plug(plugged[0])
	if _, err := in.kubelet.AwaitAllocatable(from, nvme, int64(len(drives))+1, patience); err != nil {
		t.Error(err)
	}
	in.active(t)
	in.m.Unplug(plugged[0])
	in.await(t, nvme, int64(len(drives)))
}

// stateReadOnly tests a full disk, and a file system that is read-only after an error. The daemon must run and offer its
// devices. Only containers with a drive must not start, because the daemon cannot save that the drive has to be erased.
func stateReadOnly(in *installation, t *testing.T) {
	const dir = "/var/lib/metalplug"
	for _, c := range []struct {
		name, broken, mended string
		restart              bool // the daemon must be restarted after the repair
		says                 string
	}{
		{"full", "head -c 1M /dev/zero >" + dir + "/filler || true", "rm " + dir + "/filler", false, "no space left on device"},
		{"read-only", "mount -o remount,ro " + dir, "mount -o remount,rw " + dir, true, "read-only file system"},
	} {
		in.m.Sh(`systemctl stop metalplugd
			mkdir /run/state; cp -a ` + dir + `/. /run/state/
			mount -t tmpfs -o size=256k,mode=700,rootcontext=system_u:object_r:metalplugd_var_lib_t:s0 state ` + dir + `
			cp -a /run/state/. ` + dir + `/; rm -r /run/state; ` + c.broken)
		from := in.kubelet.Mark()
		in.m.Run("systemctl", "start", "metalplugd")
		if _, err := in.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)), patience); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		in.active(t)
		pod := one("waits")
		in.kubelet.AdmitPod(pod)
		if _, _, err := in.kubelet.TryPod(pod); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: a container starts: %v", c.name, err)
		}
		in.m.Sh(c.mended)
		if from := in.kubelet.Mark(); c.restart {
			in.m.Run("systemctl", "restart", "metalplugd")
			if _, err := in.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)), patience); err != nil {
				t.Errorf("%s no more: %v", c.name, err)
			}
		}
		if _, _, err := in.kubelet.TryPod(pod); err != nil {
			t.Errorf("%s no more: %v", c.name, err)
		}
		in.endAndErase(t, pod)
		in.m.Sh("systemctl stop metalplugd; umount " + dir + "; systemctl start metalplugd")
		in.await(t, nvme, int64(len(drives)))
	}
}
