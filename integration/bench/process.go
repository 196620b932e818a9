// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	kubelet "github.com/metalplug/metalplug/integration/kubelettest"
)

// site is what the daemon's program needs to run: a configuration over a recording, and directories.
type site struct {
	dir     string
	plugins string // the kubelet's directory
	config  string
}

// newSite makes a site with so many devices, the same number in each of so many resources: at most ten.
func (b *bench) newSite(devices, resources int) (*site, error) {
	dir, err := b.subdir("p")
	if err != nil {
		return nil, err
	}
	s := &site{dir: dir, plugins: filepath.Join(dir, "k"), config: filepath.Join(dir, "metalplug.toml")}
	text := fmt.Sprintf(`[paths]
device_plugins = %q
pod_resources = %q
state = %q
run = %q
cdi = %q
[hardware]
source = "recording:%s"
`, s.plugins, s.path("pods.sock"), s.path("state"), s.path("run"), s.path("cdi"), s.path("recording"))
	for n := range resources {
		name, which := resource, ""
		if resources > 1 {
			name, which = fmt.Sprint(resource, n), fmt.Sprintf(`, ID_SERIAL_SHORT = "*%d"`, n)
		}
		text += fmt.Sprintf("[[resource]]\nname = %q\nclass = \"node\"\nmatch = { SUBSYSTEM = \"widget\", \"ATTR{state}\" = \"live\"%s }\n", name, which)
	}
	return s, errors.Join(
		os.Mkdir(s.plugins, 0o755),
		os.WriteFile(s.config, []byte(text), 0o600),
		os.WriteFile(s.path("recording"), recordingOf(devices), 0o600),
	)
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// process is a program that runs.
type process struct {
	*exec.Cmd
	stderr *os.File
	notify *net.UnixConn // the service manager's end; nil: there is none
}

// spawn starts a program with some more environment.
func (b *bench) spawn(name string, env []string, args ...string) (*process, error) {
	p := &process{Cmd: exec.Command(name, args...)}
	var err error
	if p.stderr, err = os.CreateTemp("", "stderr"); err != nil { // a file: no pipe that wakes us up
		return nil, err
	}
	p.Env, p.Stderr = append(os.Environ(), env...), p.stderr
	if err := p.Start(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.children = append(b.children, p)
	return p, nil
}

// said is the end of what it has written to standard error.
func (p *process) said() string {
	text, err := os.ReadFile(p.stderr.Name())
	if err != nil {
		return err.Error()
	}
	return lastLines(string(text))
}

// stop asks it to stop and waits.
func (p *process) stop() error {
	defer p.stderr.Close()
	if p.notify != nil {
		defer p.notify.Close()
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := p.Wait(); err != nil {
		return fmt.Errorf("stop %s: %w: %s", filepath.Base(p.Path), err, p.said())
	}
	return nil
}

// launch starts the daemon at a site and returns how long it took until it was ready.
func (b *bench) launch(s *site) (*process, time.Duration, error) {
	name := s.path("notify")
	os.Remove(name)
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return nil, 0, err
	}
	ready := make(chan time.Time, 1)
	go serviceManager(socket, ready)
	begun := time.Now()
	p, err := b.spawn(b.daemon, []string{"NOTIFY_SOCKET=" + name}, "--config", s.config)
	if err != nil {
		socket.Close()
		return nil, 0, err
	}
	p.notify = socket
	select {
	case at := <-ready:
		return p, at.Sub(begun), nil
	case <-time.After(patience):
		return nil, 0, errors.Join(errors.New("wait for READY=1: it does not come"), p.stop())
	}
}

// serviceManager reads what the daemon tells until the socket is closed.
func serviceManager(socket *net.UnixConn, ready chan<- time.Time) {
	buffer := make([]byte, 4096)
	for {
		n, err := socket.Read(buffer)
		if err != nil {
			return
		}
		if strings.Contains(string(buffer[:n]), "READY=1") {
			ready <- time.Now()
		}
	}
}

// start measures the daemon's start until READY. Floor: the start and end of a program that does nothing. With 10,000
// devices most of it is to read their recording, which a real machine has none of: no budget is set for that.
func (b *bench) start() ([]result, error) {
	ours, theirs, err := b.starts(few, b.times(50))
	if err != nil {
		return nil, err
	}
	most, _, err := b.starts(many, b.times(5))
	if err != nil {
		return nil, err
	}
	return []result{
		within("start to READY with 8 devices, p50", "ms", ours.percentile(50), 50).above(theirs.percentile(50)).over(ours),
		result{Name: "start to READY with 10,000 devices, p50", Value: most.percentile(50), Unit: "ms", Budget: "none", OK: true}.over(most),
	}, nil
}

// starts measures so many starts, and as often the floor.
func (b *bench) starts(devices, times int) (ours, theirs samples, err error) {
	s, err := b.newSite(devices, 1)
	if err != nil {
		return nil, nil, err
	}
	empty, err := buildEmpty(s.dir)
	if err != nil {
		return nil, nil, err
	}
	for range times {
		p, took, err := b.launch(s)
		if err != nil {
			return nil, nil, err
		}
		ours = append(ours, took)
		if err := p.stop(); err != nil {
			return nil, nil, err
		}
		begun := time.Now()
		if err := exec.Command(empty).Run(); err != nil {
			return nil, nil, fmt.Errorf("run the empty program: %w", err)
		}
		theirs = append(theirs, time.Since(begun))
	}
	return ours, theirs, nil
}

// buildEmpty builds a program that does nothing.
func buildEmpty(dir string) (string, error) {
	source, program := filepath.Join(dir, "empty.go"), filepath.Join(dir, "empty")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return "", err
	}
	if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the empty program: %w: %s", err, lastLines(string(out)))
	}
	return program, nil
}

// calm is how long a daemon rests before it counts as idle, and watched how long it is then watched, each time. It gives back memory 4
// s after its start, and of what Go's scavenger does for that beside it that rests 99 times as long as it took (1 % of the
// CPU time, runtime/mgcscavenge.go): once more after 1 to 6 s.
const (
	calm     = 15 * time.Second
	watched  = 10 * time.Second
	watches  = 3
	launches = 5
)

// idle measures what the daemon takes while nothing happens, connected to a kubelet.
func (b *bench) idle() ([]result, error) {
	var results []result
	for _, machine := range []struct {
		name               string
		devices, resources int
		rss                float64
	}{{"8", few, 1, 20}, {"10,000", many, 1, 64}, {"10 x 1,000", many, 10, 64}} {
		rss, wakeups, err := b.idleWith(machine.devices, machine.resources)
		if err != nil {
			return nil, err
		}
		results = append(results,
			within("idle with "+machine.name+" devices: RSS, p50", "MiB", percentile(rss, 50), machine.rss).beside(percentile(rss, 99)).of(len(rss)),
			within("idle with "+machine.name+" devices: wake-ups in 10 s, at most", "wake-ups", float64(wakeups), 0).of(b.times(watches)))
	}
	return results, nil
}

// idleWith measures several daemons that are idle beside each other: the memory of each, and the wake-ups of one.
func (b *bench) idleWith(devices, resources int) (rss []float64, wakeups int, err error) {
	var all []*process
	for range b.times(launches) {
		p, end, failed := b.offering(devices, resources)
		if failed != nil {
			return nil, 0, failed
		}
		defer func() { err = errors.Join(err, end()) }()
		all = append(all, p)
	}
	time.Sleep(calm)
	if wakeups, err = b.mostWakeups(all[0].Process.Pid); err != nil {
		return nil, 0, err
	}
	for _, p := range all {
		kib, err := statusField(fmt.Sprintf("/proc/%d/status", p.Process.Pid), "VmRSS:")
		if err != nil {
			return nil, 0, err
		}
		rss = append(rss, float64(kib)/1024)
	}
	return rss, wakeups, nil
}

// offering starts a daemon whose devices a kubelet has, and what ends both.
func (b *bench) offering(devices, resources int) (p *process, end func() error, err error) {
	s, err := b.newSite(devices, resources)
	if err != nil {
		return nil, nil, err
	}
	k, err := kubelet.Start(s.plugins)
	if err != nil {
		return nil, nil, err
	}
	p, _, err = b.launch(s)
	if err != nil {
		k.Stop()
		return nil, nil, err
	}
	end = func() error {
		defer os.RemoveAll(s.dir)
		defer k.Stop()
		return p.stop()
	}
	if err := allocatable(k, devices); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return p, end, nil
}

// mostWakeups watches a process and returns how often it has woken up in the worst of the times.
func (b *bench) mostWakeups(pid int) (most int, err error) {
	for range b.times(watches) {
		before, err := switches(pid)
		if err != nil {
			return 0, err
		}
		time.Sleep(watched)
		after, err := switches(pid)
		if err != nil {
			return 0, err
		}
		most = max(most, after-before)
	}
	return most, nil
}

// switches counts how often the threads of a process have gone to sleep, which is how often they have woken up.
func switches(pid int) (sum int, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		return 0, fmt.Errorf("find the threads of process %d: %w", pid, errors.Join(err, os.ErrNotExist))
	}
	for _, thread := range threads {
		n, err := statusField(thread, "voluntary_ctxt_switches:")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// statusField returns a number in a status file of procfs.
func statusField(file, field string) (n int, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			_, err := fmt.Sscan(rest, &n)
			return n, err
		}
	}
	return 0, fmt.Errorf("read %s: there is no %s", file, field)
}
