// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon"
	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	kubelet "github.com/metalplug/metalplug/integration/kubelettest"
)

// patience is the maximum time that a story waits for an expected state. It is longer than the 30 s after which the
// kubelet's answer that no pod holds a device is accepted.
const patience = 45 * time.Second

// TestScript runs the stories in testdata/script. A story has recorded hardware, the daemon, and a small device
// manager. Each line is a command, and "#" begins a comment. The commands are the methods listed in verbs.
func TestScript(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			newStory(t).play(file)
		})
	}
}

// story is a machine with a daemon and a kubelet.
type story struct {
	t         *testing.T
	dir       string
	devices   map[string]string // recordings by device name
	kubelet   *kubelet.Kubelet
	container kubelet.Container // result of the last allocate
	resource  string            // resource of the device
	stop      func()            // stops the daemon, or nil while it does not run
	hangup    chan os.Signal
	helpers   *helpers // nil if there are none
	pods      bool     // whether the kubelet serves PodResources
}

func newStory(t *testing.T) *story {
	dir, err := os.MkdirTemp("", "mp") // a short name, because the path of a unix socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	s := &story{t: t, dir: dir, devices: make(map[string]string)}
	t.Cleanup(func() {
		s.daemonStop()
		s.kubeletStop()
		os.RemoveAll(dir)
	})
	s.save()
	return s
}

func (s *story) play(file string) {
	f, err := os.Open(file)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	for lines, n := bufio.NewScanner(f), 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := s.do(words); err != nil {
			s.t.Fatalf("%s:%d: %s: %v", file, n, strings.Join(words, " "), err)
		}
	}
}

// do executes one command.
func (s *story) do(words []string) error {
	verbs := map[string]func([]string) error{
		"plug":                 s.plug,               // plug widget|gadget NAME SERIAL [NUMA] or plug disk NUMBER EUI [CONTENT] or plug later-disk NUMBER EUI MINOR
		"unplug":               s.unplug,             // unplug NAME...
		"at-once":              s.atOnce,             // at-once COUNT plugs that many widgets
		"resource":             s.addResource,        // resource LINE of the configuration, in [[resource]] widgets
		"daemon":               s.daemonVerb,         // daemon start|stop|restart|reload
		"kubelet":              s.kubeletVerb,        // kubelet start|stop|restart
		"expect":               s.expect,             // expect RESOURCE CAPACITY ALLOCATABLE
		"lists-at-most":        s.listsAtMost,        // lists-at-most RESOURCE N
		"allocate":             s.allocate,           // allocate RESOURCE N [ID...] checks that these are chosen
		"allocate-fails-until": s.allocateFailsUntil, // allocate-fails-until RESOURCE N TEXT... waits until it fails with that text
		"allocate-fails":       s.allocateFails,      // allocate-fails RESOURCE N TEXT...
		"prestart":             s.prestart,
		"prestart-fails":       s.prestartFails, // prestart-fails TEXT...
		"release":              s.release,
		"with-pods":            s.withPods,
		"lose-state":           s.loseState,
		"full":                 s.full,            // simulates that the disk with the state directory is full
		"why":                  s.why,             // why ID TEXT... expects the text in one of the reasons
		"why-opens-nothing":    s.whyOpensNothing, // why-opens-nothing ID TEXT... expects the same of a disk that a pod holds
		"held":                 s.waitHeld,        // held NAME waits until the daemon knows which pod holds it
		"remove-sockets":       s.removeSockets,
		"replace-dir":          s.replaceDir,
		"remove-dir":           s.removeDir,
		"make-dir":             s.makeDir,
		"break-recording":      s.breakRecording,
		"break-config":         s.breakConfig,
		"env":                  s.env,            // env NAME=VALUE of the last container
		"nodes":                s.nodes,          // nodes PATH... of the last container, which gets no CDI device
		"cdi":                  s.cdiNames,       // cdi NAME... of the last container, which gets no node
		"spec":                 s.spec,           // spec RESOURCE [ID...] checks that its CDI spec describes these
		"spec-dir":             s.specDir,        // spec-dir remove|block|unblock
		"plain-resource":       s.plainResource,  // removes all resource lines
		"helpers":              s.useHelpers,     // provides helpers from the next start of the daemon on
		"hide":                 s.hide,           // hide NAME puts data on the disk that only a full read finds
		"reads":                s.checkReads,     // reads NAME N checks how often the disk was read
		"state":                s.state,          // state NAME STATE [REASON...] waits until that is the state of its lease
		"evidence":             s.evidence,       // evidence NAME KIND
		"adopt":                s.adopt,          // adopt NAME, as the operator does
		"adopt-fails":          s.adoptFails,     // adopt-fails NAME TEXT...
		"cordon":               s.cordon,         // cordon NAME REASON, as the operator does
		"uncordon":             s.uncordon,       // uncordon NAME
		"unhealthy":            s.unhealthy,      // unhealthy N CORDONED checks the numbers that status shows
		"write":                s.write,          // write NAME [CONTENT] writes to the disk without an event of udev
		"no-checkpoint":        s.noCheckpoint,   // the kubelet writes a checkpoint when it receives a list
		"open":                 s.open,           // open NAME [POD|host] lets that process have the node open
		"unread":               s.setUnreadable,  // unread [POD] makes the processes of that pod unreadable
		"touched":              s.checkRequest,   // touched reset|erase NAME METHOD checks that it was the next request
		"untouched":            s.checkNoRequest, // checks that there was no further request
		"allocate-at-last":     s.allocateAtLast,
		"prepare":              s.prepare,      // prepare CLAIM NAME... prepares devices for a claim
		"prepare-fails":        s.prepareFails, // prepare-fails CLAIM NAME[,NAME] TEXT...
		"prepare-waits":        s.prepareWaits, // prepare-waits CLAIM NAME... prepares devices once slow-work has ended
		"prepare-ends":         s.prepareEnds,  // prepare-ends CLAIM NAME [TEXT...] hangs up, or releases the claim, while slow-work lasts
		"slow-work":            s.slowWork,     // slow-work delays resets and erasures until prepare-waits
		"admin":                s.admin,        // admin CLAIM NAME PERMISSIONS
		"unprepare":            s.unprepare,    // unprepare CLAIM, twice
		"claim-nodes":          s.claimNodes,   // claim-nodes CLAIM [PATH...] waits until its CDI spec has these nodes
		"claimed":              s.waitClaimed,  // claimed NAME CLAIM waits until the claim holds the device
	}
	verb := verbs[words[0]]
	if verb == nil {
		return errors.New("no such command")
	}
	return verb(words[1:])
}

func (s *story) path(name string) string { return filepath.Join(s.dir, name) }

const widgetRecording = `P: /devices/virtual/%[5]s/%[1]s
N: %[1]s
E: DEVNAME=/dev/%[1]s
E: SUBSYSTEM=%[5]s
E: ID_SERIAL=%[2]s
E: ID_SERIAL_SHORT=%[2]s
E: MAJOR=%[6]d
E: MINOR=%[4]s
A: numa_node=%[3]s
`

const diskRecording = `P: /devices/pci0000:00/0000:00:01.0/nvme/nvme%[1]s
E: SUBSYSTEM=nvme
A: state=live
A: transport=pcie

P: /devices/pci0000:00/0000:00:01.0/nvme/nvme%[1]s/nvme%[1]sn1
N: nvme%[1]sn1
E: SUBSYSTEM=block
E: DEVTYPE=disk
E: DEVNAME=/dev/nvme%[1]sn1
E: MAJOR=259
E: MINOR=%[1]s
%[3]sA: wwid=eui.%[2]s
A: diskseq=%[1]s
A: size=1024
`

// majors are the device numbers of class node devices.
var majors = map[string]int{"widget": 240, "gadget": 241}

func (s *story) plug(words []string) error {
	kind, name := words[0], words[1]
	switch kind {
	case "disk":
		content := ""
		if len(words) > 3 {
			content = "E: ID_FS_USAGE=filesystem\nE: ID_FS_TYPE=" + words[3] + "\n"
		}
		s.devices["disk"+name] = fmt.Sprintf(diskRecording, name, words[2], content)
		return s.save()
	case "later-disk": // in the place and with the name of a disk, but with another device number
		s.devices["disk"+name] = strings.NewReplacer("MINOR="+name, "MINOR="+words[3], "diskseq="+name, "diskseq="+words[3]).
			Replace(fmt.Sprintf(diskRecording, name, words[2], ""))
		return s.save()
	case "widget", "gadget":
	default:
		return fmt.Errorf("no recording of a %s", kind)
	}
	numa := "-1"
	if len(words) > 3 {
		numa = words[3]
	}
	s.devices[name] = fmt.Sprintf(widgetRecording, name, words[2], numa, cmp.Or(strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz"), "0"), kind, majors[kind])
	return s.save()
}

func (s *story) unplug(names []string) error {
	for _, name := range names {
		delete(s.devices, name)
	}
	return s.save()
}

func (s *story) atOnce(words []string) error {
	var n int
	fmt.Sscan(words[0], &n)
	for i := range n {
		name := fmt.Sprintf("widget%d", i)
		s.devices[name] = fmt.Sprintf(widgetRecording, name, fmt.Sprintf("S%04d", i), "-1", strconv.Itoa(i), "widget", majors["widget"])
	}
	return s.save()
}

// save replaces the recording atomically, which is a hotplug.
func (s *story) save() error {
	var text strings.Builder
	text.WriteString("# what is plugged in\nF: /proc/self/mountinfo=\nF: /proc/sys/kernel/random/boot_id=one\\n\n\n")
	for _, d := range s.devices {
		text.WriteString(d + "\n")
	}
	if err := os.WriteFile(s.path("new"), []byte(text.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(s.path("new"), s.path("recording"))
}

func (s *story) breakRecording([]string) error {
	return os.WriteFile(s.path("recording"), []byte("P: nonsense\n"), 0o600)
}

func (s *story) addResource(words []string) error {
	f, err := os.OpenFile(s.path("resource"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, strings.Join(words, " "))
	return err
}

// load writes the configuration and loads it like the daemon.
func (s *story) load() (config.Config, error) {
	extra, _ := os.ReadFile(s.path("resource")) // the file is optional
	text := fmt.Sprintf(`[paths]
device_plugins = %q
pod_resources = %q
state = %q
run = %q
cdi = %q
cgroup = ""
[hardware]
source = "recording:recording"
[[resource]]
name = "example.org/widget"
class = "node"
match = { SUBSYSTEM = "widget" }
%s`, s.path("plugins"), s.path("pr.sock"), s.path("state"), s.path("run"), s.path("cdi"), extra)
	if err := os.WriteFile(s.path("metalplug.toml"), []byte(text), 0o600); err != nil {
		return config.Config{}, err
	}
	return config.Load(s.path("metalplug.toml"))
}

func (s *story) breakConfig([]string) error { return s.addResource([]string{"nonsense", "=", "1"}) }

func (s *story) daemonVerb(words []string) error {
	switch words[0] {
	case "start":
		return s.daemonStart()
	case "stop":
		return s.daemonStop()
	case "restart":
		return errors.Join(s.daemonStop(), s.daemonStart())
	case "reload":
		return s.daemonReload()
	}
	return errors.New("no such command")
}

// daemonReload reloads the configuration, and waits until the daemon's status shows that the reload has ended.
func (s *story) daemonReload() error {
	var before, after api.Status
	if err := eventually(func() error { return s.client().Get(s.t.Context(), "/v1/status", &before) }); err != nil {
		return err // the control socket did not appear
	}
	s.hangup <- nil
	return eventually(func() error {
		err := s.client().Get(s.t.Context(), "/v1/status", &after)
		last, now := before.Configuration.Reloaded, after.Configuration.Reloaded
		if err == nil && (now == nil || last != nil && now.Equal(*last)) {
			err = errors.New("the reload has not ended")
		}
		return err
	})
}

func (s *story) daemonStart() error {
	c, err := s.load()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s.hangup = make(chan os.Signal)
	var touch *device.Touch
	if s.helpers != nil {
		touch = s.helpers.touch()
	}
	go func() {
		done <- daemon.Run(ctx, daemon.Options{
			Touch:  touch,
			Config: c, Load: s.load, Reload: s.hangup,
			Log: slog.New(slog.NewTextHandler(logWriter{s.t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
	}()
	s.stop = func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("daemon: %v", err)
		}
	}
	return nil
}

func (s *story) daemonStop() error {
	if s.stop == nil {
		return nil
	}
	s.stop()
	s.stop = nil
	return s.waitDisconnected()
}

// waitDisconnected waits until the kubelet has noticed that the daemon is gone.
func (s *story) waitDisconnected() error {
	limit := time.After(patience)
	for s.kubelet != nil {
		changed := s.kubelet.Changed()
		if !slices.ContainsFunc(s.kubelet.Resources(), func(r kubelet.Resource) bool { return r.Connected }) {
			break
		}
		select {
		case <-changed:
		case <-limit:
			return errors.New("the kubelet is still connected to the daemon")
		}
	}
	return nil
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

func (s *story) kubeletVerb(words []string) error {
	switch words[0] {
	case "start":
		return s.kubeletStart()
	case "stop":
		s.kubeletStop()
		return nil
	case "restart":
		s.kubeletStop()
		return s.kubeletStart()
	}
	return errors.New("no such command")
}

func (s *story) kubeletStart() error {
	if err := os.MkdirAll(s.path("plugins"), 0o755); err != nil {
		return err
	}
	k, err := kubelet.Start(s.path("plugins"))
	if s.kubelet = k; err == nil {
		k.KeepCheckpoint()
		if s.pods {
			err = k.ServePods(s.path("pr.sock"))
		}
	}
	return err
}

// withPods makes the kubelet report the devices of pods from its next start on.
func (s *story) withPods([]string) error {
	s.pods = true
	return nil
}

// loseState removes the state of the daemon.
func (s *story) loseState([]string) error { return os.Remove(s.path("state/state.json")) }

func (s *story) full([]string) error {
	return eventually(func() error { return os.MkdirAll(s.path("state/state.json.new/full"), 0o755) }) // it may be being written
}

func (s *story) kubeletStop() {
	if s.kubelet != nil {
		s.kubelet.Stop()
		s.kubelet = nil
	}
}

// expect waits until the kubelet has these counts for the resource.
func (s *story) expect(words []string) error {
	want := strings.Join(words[1:], " ")
	limit := time.After(patience)
	for {
		changed := s.kubelet.Changed()
		r := s.kubelet.Resource(words[0])
		got := fmt.Sprintf("%d %d", r.Capacity, r.Allocatable)
		if got == want {
			return nil
		}
		select {
		case <-changed:
		case <-limit:
			return fmt.Errorf("it is %s, devices %v", got, r.Devices)
		}
	}
}

func (s *story) listsAtMost(words []string) error {
	var most int
	fmt.Sscan(words[1], &most)
	if n := s.kubelet.Resource(words[0]).Lists; n > most {
		return fmt.Errorf("the kubelet received %d lists", n)
	}
	return nil
}

func (s *story) allocate(words []string) error {
	var n int
	fmt.Sscan(words[1], &n)
	c, err := s.kubelet.Allocate(s.t.Context(), words[0], n)
	if err != nil {
		return err
	}
	s.container, s.resource = c, words[0]
	if want := words[2:]; len(want) > 0 && !slices.Equal(c.Devices, want) {
		return fmt.Errorf("the container gets %v", c.Devices)
	}
	return nil
}

func (s *story) allocateFails(words []string) error {
	var n int
	fmt.Sscan(words[1], &n)
	_, err := s.kubelet.Allocate(s.t.Context(), words[0], n)
	return checkError(err, words[2:])
}

func (s *story) prestart([]string) error {
	return s.kubelet.PreStart(s.t.Context(), s.resource, s.container)
}

func (s *story) prestartFails(words []string) error { return checkError(s.prestart(nil), words) }

// allocateFailsUntil repeats the request, as new pods would, until it fails with that reason.
func (s *story) allocateFailsUntil(words []string) error {
	var n int
	fmt.Sscan(words[1], &n)
	limit := time.Now().Add(patience)
	for {
		c, err := s.kubelet.Allocate(s.t.Context(), words[0], n)
		if err == nil { // the daemon has not noticed the change yet
			s.kubelet.Release(words[0], c)
		}
		if err = checkError(err, words[2:]); err == nil || time.Now().After(limit) {
			return err
		}
	}
}

// checkError checks that an error contains a text.
func checkError(err error, text []string) error {
	if err == nil {
		return errors.New("it did not fail")
	}
	if !strings.Contains(err.Error(), strings.Join(text, " ")) {
		return fmt.Errorf("it failed with: %w", err)
	}
	return nil
}

func (s *story) release([]string) error {
	s.kubelet.Release(s.resource, s.container)
	return nil
}

func (s *story) env(words []string) error {
	name, want, _ := strings.Cut(words[0], "=")
	if got := s.container.Response.GetEnvs()[name]; got != want {
		return fmt.Errorf("%s is %q", name, got)
	}
	return nil
}

// removeSockets removes the daemon's sockets, as the kubelet does when it starts.
func (s *story) removeSockets([]string) error {
	sockets, err := filepath.Glob(s.path("plugins/mp-*"))
	for _, socket := range sockets {
		err = errors.Join(err, os.Remove(socket))
	}
	return err
}

func (s *story) replaceDir([]string) error {
	return errors.Join(s.removeDir(nil), s.makeDir(nil))
}

// removeDir removes the kubelet's directory, in which the daemon may be recreating its socket at that moment.
func (s *story) removeDir([]string) error {
	for {
		err := os.RemoveAll(s.path("plugins"))
		if !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
}

func (s *story) makeDir([]string) error { return os.Mkdir(s.path("plugins"), 0o755) }
