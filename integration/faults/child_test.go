// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/metalplug/metalplug/daemon"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/systemd"
)

// childEnv contains the directory of the node for which this process acts as the daemon.
const childEnv = "METALPLUG_FAULTS_DIR"

// handOver is a request to the helpers of a daemon that runs as a process, and their answer.
type handOver struct {
	Op     string
	Target device.Target
	Nodes  []string
	Held   bool
	From   int64
	Work   device.Work

	Reading  device.Report
	Surveyed device.Report
	Prepared device.Report
	Holders  []device.Holder
	Error    string
}

// beDaemon runs a daemon whose helpers are in the test process.
func beDaemon(dir string) error {
	c, err := config.Load(filepath.Join(dir, "metalplug.toml"))
	if err != nil {
		return err
	}
	ask := func(h handOver) (handOver, error) {
		conn, err := net.Dial("unix", filepath.Join(dir, "hands"))
		if err != nil {
			return h, err
		}
		defer conn.Close()
		var answer handOver // a new value, because the daemon owns the slices of h
		err = errors.Join(json.NewEncoder(conn).Encode(h), json.NewDecoder(conn).Decode(&answer))
		if err == nil && answer.Error != "" {
			err = errors.New(answer.Error)
		}
		return answer, err
	}
	if err := reachJournal(); err != nil {
		return err
	}
	log := systemd.OpenLog(os.Stderr, slog.LevelDebug)
	defer log.Close()
	return daemon.Run(context.Background(), daemon.Options{
		Config: c, Log: log.Logger,
		Touch: &device.Touch{
			Probe: func(_ context.Context, t device.Target, held bool) (device.Report, error) {
				h, err := ask(handOver{Op: "probe", Target: t, Held: held})
				return h.Reading, err
			},
			Survey: func(_ context.Context, t device.Target, from int64) (device.Report, error) {
				h, err := ask(handOver{Op: "survey", Target: t, From: from})
				return h.Surveyed, err
			},
			Prepare: func(_ context.Context, t device.Target, w device.Work) (device.Report, error) {
				h, err := ask(handOver{Op: "prepare", Target: t, Work: w})
				return h.Prepared, err
			},
			Holders: func(_ context.Context, nodes []string) ([]device.Holder, error) {
				h, err := ask(handOver{Op: "holders", Nodes: nodes})
				return h.Holders, err
			},
		},
	})
}

// step is a request to the helpers at which the daemon is killed. The test kills it at the next request of this kind for the
// disk. Requests that inspect the content for a pod do not count.
type step struct {
	op    string
	after bool // kill the daemon after the request was carried out, before the answer; otherwise when the request arrives
}

// String describes the step.
func (s step) String() string {
	if s.after {
		return s.op + ", carried out"
	}
	return s.op
}

// killableDaemon is a daemon that runs as a separate process, and is killed at a certain request to its helpers.
type killableDaemon struct {
	*whole
	config string // format whose argument is the directory
	cmd    *exec.Cmd
	log    func(*exec.Cmd) // sets the log of the next process, or nil for the journal of the test

	stepMu sync.Mutex
	next   *step // the step at which the daemon will be killed, or nil
	disk   *disk // the disk of the request
	deaths int
}

func newKillableDaemon(t *testing.T, config string) *killableDaemon {
	t.Helper()
	m := &killableDaemon{whole: newWhole(t), config: config}
	for n := range 8 {
		m.disks = append(m.disks, &disk{serial: fmt.Sprintf("%032x", 10+n), slot: 2 + n, sequence: 2 + n})
	}
	m.must(os.WriteFile(filepath.Join(m.dir, "recording"), []byte(m.text()), 0o600))
	m.must(os.WriteFile(filepath.Join(m.dir, "metalplug.toml"), fmt.Appendf(nil, m.config, m.dir), 0o600))
	l, err := net.Listen("unix", filepath.Join(m.dir, "hands"))
	m.must(err)
	var serving sync.WaitGroup
	serving.Go(func() { m.serve(l, &serving) })
	t.Cleanup(func() {
		m.kill()
		l.Close()
		serving.Wait()
		if strings.Contains(m.journal.String(), "WARNING: DATA RACE") { // a race in any process; the exit status does not show it
			t.Errorf("a race in the daemon:\n%s", m.journal.String())
		}
	})
	m.boot()
	return m
}

// serve answers requests until l is closed.
func (m *killableDaemon) serve(l net.Listener, serving *sync.WaitGroup) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		serving.Go(func() {
			defer conn.Close()
			var h handOver
			if json.NewDecoder(conn).Decode(&h) != nil {
				return // the daemon has ended
			}
			last := m.killStep(h)
			if last != nil && !last.after {
				m.die()
				return
			}
			h = m.carryOut(h)
			if last != nil {
				m.die()
				return
			}
			_ = json.NewEncoder(conn).Encode(h) // the daemon may have ended
		})
	}
}

// killStep returns the step at which the daemon must be killed if the request matches this step, otherwise nil.
func (m *killableDaemon) killStep(h handOver) *step {
	m.stepMu.Lock()
	defer m.stepMu.Unlock()
	if m.next == nil || h.Op != m.next.op || h.Op == "probe" && h.Held {
		return nil
	}
	name := path.Base(m.disk.sysPath())
	if path.Base(h.Target.SysPath) != name && !slices.Contains(h.Nodes, "/dev/"+name) {
		return nil
	}
	last := m.next
	m.next = nil
	return last
}

// arm sets the step for a disk at which the daemon will be killed.
func (m *killableDaemon) arm(s step, d *disk) {
	m.stepMu.Lock()
	defer m.stepMu.Unlock()
	m.next, m.disk = &s, d
}

// die kills the daemon.
func (m *killableDaemon) die() {
	m.stepMu.Lock()
	defer m.stepMu.Unlock()
	m.deaths++
	_ = m.cmd.Process.Kill() // the process may have ended already
}

// countKills returns how often the daemon was killed at a step.
func (m *killableDaemon) countKills() int {
	m.stepMu.Lock()
	defer m.stepMu.Unlock()
	return m.deaths
}

// carryOut executes a request.
func (m *killableDaemon) carryOut(h handOver) handOver {
	var err error
	switch touch := m.touch(); h.Op {
	case "probe":
		h.Reading, err = touch.Probe(context.Background(), h.Target, h.Held)
	case "survey":
		h.Surveyed, err = touch.Survey(context.Background(), h.Target, h.From)
	case "prepare":
		h.Prepared, err = touch.Prepare(context.Background(), h.Target, h.Work)
	case "holders":
		h.Holders, err = touch.Holders(context.Background(), h.Nodes)
	}
	if err != nil {
		h.Error = err.Error()
	}
	return h
}

// boot starts the daemon and waits until its devices are offered.
func (m *killableDaemon) boot() {
	m.t.Helper()
	self, err := os.Executable()
	m.must(err)
	m.stepMu.Lock()
	m.cmd = exec.Command(self)
	m.cmd.Env = append(os.Environ(), childEnv+"="+m.dir, "TMPDIR="+m.dir)
	m.cmd.Stderr = &m.journal
	if m.log != nil {
		m.log(m.cmd)
	}
	err = m.cmd.Start()
	m.stepMu.Unlock()
	m.must(err)
	m.waitShown(widgetResource, "node-W0-widget", "Healthy")
}

// kill kills the daemon, unless it has already ended.
func (m *killableDaemon) kill() {
	_ = m.cmd.Process.Kill() // the process may have ended already
	_ = m.cmd.Wait()         // the exit status is known
}

// changeHardware removes and adds a disk and a widget, and waits until the device list shows the changes.
func (m *killableDaemon) changeHardware() {
	m.t.Helper()
	last := m.disks[len(m.disks)-1]
	slot := last.slot
	m.unplug(last)
	delete(m.widgets, "widget0")
	m.record()
	m.waitGone(diskResource, last.id())
	m.waitGone(widgetResource, "node-W0-widget")
	m.plug(last, slot)
	m.widgets["widget0"] = "W0"
	m.record()
	m.waitShown(diskResource, last.id(), "Healthy")
	m.waitShown(widgetResource, "node-W0-widget", "Healthy")
}

// record publishes the hardware.
func (m *killableDaemon) record() {
	m.t.Helper()
	file := filepath.Join(m.dir, "recording")
	m.must(errors.Join(os.WriteFile(file+".new", []byte(m.text()), 0o600), os.Rename(file+".new", file)))
}

// waitGone waits until the kubelet does not see the device as healthy, so that it gives the device to no pod.
func (m *killableDaemon) waitGone(resource, id string) {
	m.t.Helper()
	m.must(eventually(func() error {
		if health := m.kubelet.view(resource)[id]; health == "Healthy" {
			return fmt.Errorf("%s is %q", id, health)
		}
		return nil
	}))
}
