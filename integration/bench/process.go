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
	"github.com/metalplug/metalplug/udev/recording"
)

// site has everything that the daemon's program needs, such as a configuration with a recording, and directories.
type site struct {
	dir     string
	plugins string // the kubelet's directory
	config  string
}

// newSite returns a site with the given number of devices, which are divided equally among at most ten resources.
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

// process is a running program.
type process struct {
	*exec.Cmd
	stderr *os.File
	notify *net.UnixConn // the service manager's end, or nil
}

// spawn starts a program with additional environment variables.
func (b *bench) spawn(name string, env []string, args ...string) (*process, error) {
	p := &process{Cmd: exec.Command(name, args...)}
	var err error
	if p.stderr, err = os.CreateTemp("", "stderr"); err != nil { // a file instead of a pipe, because a pipe would wake up this process
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

// said returns the last lines of the program's standard error.
func (p *process) said() string {
	text, err := os.ReadFile(p.stderr.Name())
	if err != nil {
		return err.Error()
	}
	return lastLines(string(text))
}

// stop asks the program to stop and waits for its end.
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

// launch starts the daemon at a site and returns the time until it was ready.
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

// serviceManager reads the daemon's notifications until the socket is closed.
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

// start measures the time from the start of the daemon until it is ready. The floor for 8 devices is an empty program. The floor
// for 10,000 devices is to parse the recording and to write its tree, because a daemon on real hardware does neither.
func (b *bench) start() ([]result, error) {
	empty, err := buildEmpty(b.dir)
	if err != nil {
		return nil, err
	}
	ours, theirs, err := b.measureStarts(few, b.countSamples(50), func(*site) (time.Duration, error) {
		begun := time.Now()
		err := exec.Command(empty).Run()
		return time.Since(begun), err
	})
	if err != nil {
		return nil, err
	}
	most, trees, err := b.measureStarts(many, b.countSamples(5), func(s *site) (time.Duration, error) {
		begun := time.Now()
		r, err := recording.Open(s.path("recording"))
		took := time.Since(begun)
		if err == nil {
			err = r.Close()
		}
		return took, err
	})
	if err != nil {
		return nil, err
	}
	const own = "10,000 devices: start to READY, without the recording"
	return []result{
		within("start to READY with 8 devices, p50", "ms", ours.percentile(50), 50).above(theirs.percentile(50)).withPercentile(ours),
		result{Name: "start to READY with 10,000 devices, p50", Value: most.percentile(50), Unit: "ms", Budget: "none", OK: true}.
			above(trees.percentile(50)).withPercentile(most),
		within(own, "ms", most.percentile(50)-trees.percentile(50), 1000).of(len(most)),
	}, nil
}

// measureStarts measures the given number of starts of the daemon, and calls floor as often.
func (b *bench) measureStarts(devices, times int, floor func(*site) (time.Duration, error)) (ours, theirs samples, err error) {
	s, err := b.newSite(devices, 1)
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
		if took, err = floor(s); err != nil {
			return nil, nil, fmt.Errorf("measure the floor: %w", err)
		}
		theirs = append(theirs, took)
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

// calm is the time after which a daemon counts as idle, and watched is the time for which it is then observed. The daemon
// releases memory 4 s after its start. Go's scavenger continues the release in the background. It uses 1 % of the CPU time
// (runtime/mgcscavenge.go), so it runs once more after 1 to 6 s.
const (
	calm     = 15 * time.Second
	watched  = 10 * time.Second
	watches  = 3
	launches = 5
)

// idle measures the memory and wake-ups of an idle daemon that is connected to a kubelet.
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
			within("idle with "+machine.name+" devices: wake-ups in 10 s, at most", "wake-ups", float64(wakeups), 0).of(b.countSamples(watches)))
	}
	return results, nil
}

// idleWith measures several idle daemons at the same time: the memory of each, and the wake-ups of one.
func (b *bench) idleWith(devices, resources int) (rss []float64, wakeups int, err error) {
	var all []*process
	for range b.countSamples(launches) {
		p, end, failed := b.startOffering(devices, resources)
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

// startOffering starts a daemon whose devices a kubelet knows, and returns a function that ends both.
func (b *bench) startOffering(devices, resources int) (p *process, end func() error, err error) {
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
	if err := waitAllocatable(k, devices); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return p, end, nil
}

// mostWakeups returns the highest number of wake-ups of a process in any observation.
func (b *bench) mostWakeups(pid int) (most int, err error) {
	for range b.countSamples(watches) {
		before, err := contextSwitches(pid)
		if err != nil {
			return 0, err
		}
		time.Sleep(watched)
		after, err := contextSwitches(pid)
		if err != nil {
			return 0, err
		}
		most = max(most, after-before)
	}
	return most, nil
}

// contextSwitches returns how often the threads of a process have gone to sleep, which equals the number of wake-ups.
func contextSwitches(pid int) (sum int, err error) {
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

// statusField returns a number from a status file of procfs.
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
