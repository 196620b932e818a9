// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/udev"
)

// tale is a story in a file, with its lines and the alternatives for each name that begins with "$".
type tale struct {
	name  string
	lines []numbered
	names []string
	each  [][]string
}

type numbered struct {
	number int
	text   string
}

// TestStories plays the stories in testdata/story, each in a synctest bubble. Time passes only in the command "pass".
//
// "story NAME" begins a story. "each X: A | B | -" repeats the story with A, B and nothing in place of $X. Every other line
// is a command, or several commands joined by "&&", or by "then" inside the argument of another command. After each line,
// the test waits until the node has nothing to do. "#" begins a comment. Commands before "begin", such as plug, care and
// init, prepare the node.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/story/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			for _, story := range tales(t, file) {
				story.repeat(t, file, nil)
			}
		})
	}
}

func tales(t *testing.T, file string) (all []*tale) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "":
		case verb == "story":
			all = append(all, &tale{name: rest})
		case verb == "each":
			story := all[len(all)-1]
			name, values, _ := strings.Cut(rest, ": ")
			story.names, story.each = append(story.names, "$"+name), append(story.each, strings.Split(values, " | "))
		default:
			story := all[len(all)-1]
			story.lines = append(story.lines, numbered{number, line})
		}
	}
	return all
}

// repeat plays a story with each combination of its alternatives.
func (s *tale) repeat(t *testing.T, file string, chosen []string) {
	if left := s.each[len(chosen)/2:]; len(left) > 0 {
		for _, value := range left[0] {
			s.repeat(t, file, append(chosen[:len(chosen):len(chosen)], s.names[len(chosen)/2], strings.Trim(value, "- ")))
		}
		return
	}
	name := s.name
	for i := 1; i < len(chosen); i += 2 {
		name += ", " + cmp.Or(chosen[i], "-")
	}
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			for _, line := range s.lines {
				text := strings.NewReplacer(chosen...).Replace(line.text)
				if err := n.do(text); err != nil {
					t.Fatalf("%s:%d: %s: %v", file, line.number, text, err)
				}
				synctest.Wait()
			}
		})
	})
}

// do carries out the commands of a line.
func (n *node) do(line string) error {
	for command := range strings.SplitSeq(line, "&&") {
		verb, rest, _ := strings.Cut(strings.TrimSpace(command), " ")
		if verb == "" {
			continue
		}
		if verbs := n.verbs(); verbs[verb] != nil {
			name, text, _ := strings.Cut(strings.TrimSpace(rest), " ")
			if err := verbs[verb](name, strings.TrimSpace(text)); err != nil {
				return fmt.Errorf("%s: %w", strings.TrimSpace(command), err)
			}
			continue
		}
		return fmt.Errorf("unknown command %s", verb)
	}
	return nil
}

// verb carries out a command. Its arguments are the first argument of the command and the rest of the line.
type verb = func(name, text string) error

func (n *node) verbs() map[string]verb {
	all := n.happenings()
	for word, check := range n.checks() {
		all[word] = check
	}
	return all
}

// happenings has the commands that change something.
func (n *node) happenings() map[string]verb {
	ctx := context.Background()
	locked := func(f verb) verb {
		return func(name, text string) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			return f(name, text)
		}
	}
	return map[string]verb{
		"plug":      n.plug(n.apply), // plug NAME [seq=N] [ns=N] [wwid=W] [serial=S] [fs=TYPE] [holder=NAME] [iostats=0]
		"plug-deaf": n.plug(func() { n.machine.Silently(n.text()) }),
		"unplug":    func(name, _ string) error { delete(n.devices, name); n.apply(); return nil },
		"mount":     n.mount, // mount [NAME] on /srv and unmount all others
		"controller": func(name, state string) error {
			n.machine.SetAttr("/sys"+pathOf(name)+"/nvme/"+name, "state", state)
			return nil
		},
		"fault": func(name, _ string) error { // a PCIe error
			failed := udev.NewProperties(map[string]string{"ERROR_EVENT": "FAILED_RECOVERY"})
			n.machine.Send(udev.Event{Action: "change", Device: udev.Device{SysPath: "/sys" + pathOf(name), Subsystem: "pci", Properties: failed}})
			return nil
		},
		"wrote": func(name, sectors string) error { // wrote NAME SECTORS sets, without an event, the number of sectors written since the disk was plugged in
			n.wrote(name, sectors)
			return nil
		},
		"care":   func(a, b string) error { return errors.Join(n.setCare(a+" "+b), n.reload()) },
		"early":  func(a, b string) error { return n.setCare(a + " " + b) }, // changes the configuration of the turnover, but not yet that of the inventory
		"init":   func(unit, _ string) error { n.init = unit; return n.reload() },
		"begin":  func(string, string) error { n.begin(); synctest.Wait(); clock.Pass(time.Second); return nil },
		"stop":   func(string, string) error { n.end(); return nil },
		"crash":  func(string, string) error { return n.crash() },
		"cut":    func(string, string) error { return n.cut() }, // power failure
		"forget": func(string, string) error { n.end(); return os.RemoveAll(n.state) },
		"spoil":  func(text, _ string) error { return os.WriteFile(n.state+"/state.json", []byte(text), 0o600) },
		"reboot": func(boot, line string) error { // reboot BOOT [COMMAND]; the command runs before metalplugd starts
			n.end()
			n.boot = boot
			clear(n.stats)
			n.apply()
			defer n.begin()
			return n.do(line)
		},
		"resources": func(a, b string) error { // resources NAME...; the first one takes the disks
			n.mu.Lock()
			n.resources = strings.Fields(a + " " + b)
			n.mu.Unlock()
			return n.reload()
		},
		"bundles": func(rest, _ string) error { // each bundle consists of a widget and a disk
			n.mu.Lock()
			n.bundle = &device.Members{Resources: []string{widgetResource, diskResource}, Counts: []int{1, 1}, Near: "any", Hold: rest != "offer"}
			n.mu.Unlock()
			return n.reload()
		},
		"pass": func(duration, _ string) error {
			d, err := time.ParseDuration(duration)
			clock.Pass(d)
			return err
		},
		"inspect": func(name, _ string) error { n.inventory.Inspect(idOf(name)); return nil },

		"allocate": func(pod, names string) error { return n.allocate(pod, strings.Fields(names)...) },
		"start":    func(a, b string) error { return n.start(ctx, strings.Fields(a+" "+b)...) },
		"start-cancelled": func(name, _ string) error { // the kubelet has disconnected
			ended, cancel := context.WithCancel(ctx)
			cancel()
			return n.start(ended, name)
		},
		"free": func(a, b string) error {
			var errs []error
			for name := range strings.FieldsSeq(a + " " + b) {
				errs = append(errs, n.endPods(name))
			}
			return errors.Join(errs...)
		},
		"listed": func(name, _ string) error { return n.passAnswer(name, kubelet.Held) },
		"used": func(pod, name string) error { // a pod starts with a disk and writes to the disk
			if err := errors.Join(n.allocate(pod, name), n.start(ctx, name)); err != nil {
				return err
			}
			synctest.Wait()
			_, err := n.since(), n.verbs()["write"](name, pod+"'s ext4")
			return err
		},
		"adopt": func(name, scrub string) error {
			_, err := n.turnover.Adopt(ctx, idOf(name), api.Change{Scrub: scrub})
			return err
		},
		"by-hand": func(name, scrub string) error { return n.turnover.ByHand(ctx, idOf(name), api.Change{Scrub: scrub}) },
		"cordon": func(name, reason string) error {
			return n.inventory.Cordon(ctx, idOf(name), api.Cordon{Reason: reason})
		},
		"uncordon": func(name, _ string) error { _, err := n.inventory.Uncordon(ctx, idOf(name)); return err },

		"write": func(name, content string) error { // the disk may be unplugged
			n.mu.Lock()
			n.content[name] = content
			n.sectors += 8
			sectors := strconv.Itoa(n.sectors)
			n.mu.Unlock()
			n.wrote(name, sectors)
			return nil
		},
		"keep": locked(func(name, content string) error { n.content[name] = content; return nil }), // keep NAME CONTENT: the drive still has this content after an erasure
		"hide": locked(func(name, at string) (err error) { // hide NAME BYTE: offset of data that only a full read finds, or 0 for none
			n.hidden[name], err = strconv.ParseInt(at, 10, 64)
			return err
		}),
		"grow":   locked(func(string, string) error { n.size *= 2; return nil }),
		"answer": locked(func(name, how string) error { n.answers[name] = how; return nil }), // answer of the disk to probes
		"open":   locked(func(name, pods string) error { n.open[name] = strings.Fields(pods); return nil }),
		"unread": locked(func(pod, _ string) error { // the processes of this pod cannot be read
			if n.unread = nil; pod != "" {
				n.unread = []device.Holder{{PodUID: pod, Unread: "process 7: the kernel does not answer about it"}}
			}
			return nil
		}),
		"owner":     locked(func(name, pod string) error { n.owners[idOf(name)] = []string{pod}; return nil }),
		"no-owners": locked(func(string, string) error { clear(n.owners); return nil }),
		"runs": locked(func(pod, duration string) error { // runs POD DURATION
			d, err := time.ParseDuration(duration)
			n.running[pod] = time.Now().Add(d)
			return err
		}),
		"runs-unknown": locked(func(a, b string) error { // runs-unknown [no-cgroups|TEXT]
			n.runErr = map[bool]error{true: cgroup.ErrNoKubepods, false: errors.New(a + " " + b)}[a == "no-cgroups"]
			if a == "" {
				n.runErr = nil
			}
			return nil
		}),
		"break": locked(func(what, text string) error {
			n.fail[what] = errors.New(cmp.Or(text, "media error"))
			switch text {
			case "unfit": // the helper refuses the work and does nothing
				n.fail[what] = fmt.Errorf("%w: not now", turnover.ErrUnfit)
			case "gone":
				n.fail[what] = device.ErrGone
			}
			return nil
		}),
		"mend":   locked(func(what, _ string) error { delete(n.fail, what); return nil }),
		"during": locked(func(what, line string) error { n.during[what] = n.hook(what, line, false); return nil }),
		"once":   locked(func(what, line string) error { n.during[what] = n.hook(what, line, true); return nil }),
		"full":   func(string, string) error { return os.MkdirAll(n.state+"/state.json.new/full", 0o755) }, // simulates that the disk with the state directory is full
		"room":   func(string, string) error { return os.RemoveAll(n.state + "/state.json.new") },
		"at": func(word, text string) error { // at WORD $X: COMMAND runs the command if $X begins with the word
			value, line, _ := strings.Cut(text, ": ")
			if first, _, _ := strings.Cut(value, " "); first != word {
				return nil
			}
			return n.do(line)
		},
		"go": func(a, b string) error { // go COMMAND runs the command concurrently with the following ones, until join
			n.behind.Go(func() { n.errs <- n.do(strings.ReplaceAll(a+" "+b, " then ", " && ")) })
			return nil
		},
		"join": func(string, string) error {
			n.behind.Wait()
			var errs []error
			for range len(n.errs) {
				errs = append(errs, <-n.errs)
			}
			return errors.Join(errs...)
		},
	}
}

func (n *node) apply() { n.machine.Apply(n.text()) }

func (n *node) plug(apply func()) verb {
	return func(name, text string) error {
		is := make(map[string]string)
		for word := range strings.FieldsSeq(text) {
			key, value, _ := strings.Cut(word, "=")
			is[key] = value
		}
		if is["seq"] != "" && is["seq"] != "none" { // the disk appears again
			delete(n.stats, name)
		}
		recording, err := recordingOf(name, is)
		n.devices[name] = recording
		apply()
		return err
	}
}

func (n *node) mount(name, _ string) error {
	var controller, namespace int
	if n.mounts = ""; name != "" {
		fmt.Sscanf(name, "nvme%dn%d", &controller, &namespace)
		n.mounts = fmt.Sprintf(`36 25 259:%d / /srv rw - xfs /dev/%s rw\n`, 16*controller+namespace, name)
	}
	n.apply()
	return nil
}

// reload applies the current configuration, if the daemon runs.
func (n *node) reload() error {
	if n.stop != nil {
		<-n.inventory.SetRules(n.rules(), nil)
	}
	return nil
}

// hook returns the function that a helper calls during its work. For "hang" the function blocks until the time limit. For
// "unfit" it refuses the work. Otherwise it runs a line of commands. It is nil for an empty line.
func (n *node) hook(what, line string, once bool) func(context.Context) error {
	if line == "" {
		return nil
	}
	line = strings.ReplaceAll(line, " then ", " && ")
	return func(ctx context.Context) error {
		if once {
			n.mu.Lock()
			delete(n.during, what)
			n.mu.Unlock()
		}
		if line == "hang" {
			<-ctx.Done()
			return ctx.Err()
		}
		if err := n.do(line); err != nil {
			n.t.Errorf("during %s: %v", what, err)
		}
		return nil
	}
}

// since returns the work of the helpers since the last call of since.
func (n *node) since() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	done := strings.Join(n.done, ", ")
	n.done = nil
	return done
}
