// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/daemon/turnover"
)

// helpers simulates the programs that open device nodes, the kubelet's checkpoint, the cgroups and the vendor units. It
// refuses the same work as the real programs, and records all other work.
type helpers struct {
	root    func() string // returns the root directory of the machine
	selects func() string // returns the resource that the configuration selects for a disk

	mu      sync.Mutex
	content map[string]string // contents of disks; keys are names
	hidden  map[string]int64  // offsets of data that only a full read finds, by disk name
	size    int64             // size of each disk
	answers map[string]string // answers of disks to a probe; keys are names
	open    map[string][]string
	unread  []device.Holder
	owners  map[string][]string // UIDs of pods by ID, as in the kubelet's checkpoint
	running map[string]time.Time
	runErr  error
	fail    map[string]error
	during  map[string]func(context.Context) error

	care    config.Resource // configuration of all resources
	slices  int             // number of slices that were read from all disks
	sectors int             // number of sectors that were written to all disks
	done    []string        // work since the last step "did"
	read    []string        // reads since the last step "read"
}

// diskSize is the size of each disk in bytes.
const diskSize = 1024 * 512

func newHelpers() *helpers {
	return &helpers{
		content: make(map[string]string), hidden: make(map[string]int64), size: diskSize, answers: make(map[string]string),
		open: make(map[string][]string), owners: make(map[string][]string), running: make(map[string]time.Time),
		fail: make(map[string]error), during: make(map[string]func(context.Context) error),
	}
}

func (h *helpers) touch() device.Touch {
	return device.Touch{Probe: h.probe, Prepare: h.prepare, Survey: h.survey, Holders: h.holders}
}

// recordCall records a call, and runs the commands that the story defines for this call.
func (h *helpers) recordCall(ctx context.Context, what, note string) error {
	h.mu.Lock()
	if note != "" {
		h.done = append(h.done, note)
	}
	err, during := h.fail[what], h.during[what]
	h.mu.Unlock()
	if during != nil {
		if failed := cmp.Or(during(ctx), ctx.Err()); failed != nil { // a client does not wait for an answer after the end of ctx
			return failed
		}
	}
	return err
}

func (h *helpers) contentOf(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.content[name]
}

func fingerprint(content string) string {
	if content == "" {
		return "5eed:" + strings.Repeat("0", 32)
	}
	sum := fnv.New64a()
	sum.Write([]byte(content))
	return fmt.Sprintf("5eed:%x", sum.Sum64())
}

func (h *helpers) probe(ctx context.Context, t device.Target, held bool) (r device.Report, err error) {
	if err := h.recordCall(ctx, "probe", ""); err != nil {
		return r, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	name := path.Base(t.SysPath)
	switch h.answers[name] {
	case "silent":
		return r, fmt.Errorf("%w: no result after 16s", device.ErrUnanswered)
	case "error":
		return r, errors.New("I/O error")
	case "in-use":
		return r, fmt.Errorf("%w: another process has it", device.ErrInUse)
	case "read-only":
		r.Smart = device.Smart{Known: true, Warning: 8}
	}
	if held {
		return r, nil
	}
	r.Content, r.Fingerprint, r.Size = h.content[name], fingerprint(h.content[name]), h.size
	switch {
	case h.answers[name] == "anonymous":
		r.Fingerprint = ""
	case h.answers[name] == "sparse" && t.Fingerprint == "": // a new seed finds the data
		r.Content, r.Fingerprint = "sparse data", fingerprint("sparse data")
	}
	if r.Claimed = h.answers[name] == "claimed"; r.Claimed && t.Offered {
		return r, fmt.Errorf("%w: cannot be opened exclusively", device.ErrInUse)
	}
	return r, nil
}

// survey reads a quarter of a disk. Stories can refer to the Nth call as survey-N.
func (h *helpers) survey(ctx context.Context, t device.Target, from int64) (s device.Report, err error) {
	name := path.Base(t.SysPath)
	h.mu.Lock()
	h.slices++
	slice := fmt.Sprintf("survey-%d", h.slices)
	h.mu.Unlock()
	if err := errors.Join(h.recordCall(ctx, "survey", ""), h.recordCall(ctx, slice, "")); err != nil {
		return s, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.read = append(h.read, fmt.Sprintf("%s %d", name, from))
	s = device.Report{Read: min(from+h.size/4, h.size), Size: h.size}
	if at := h.hidden[name]; at > 0 && at >= from && at < s.Read {
		s.Read, s.Content = at, fmt.Sprintf("unknown data at byte %d", at)
	}
	if s.Read == s.Size { // the last checks
		err = h.fail["survey-end"]
	}
	return s, err
}

// checkPermitted returns an error if the real helper would refuse the work.
func (h *helpers) checkPermitted(t device.Target, w device.Work) error {
	for name, value := range t.Identity {
		now, err := os.ReadFile(filepath.Join(h.root(), t.SysPath, name))
		if err != nil {
			return device.ErrGone
		}
		if strings.TrimSpace(string(now)) != value {
			return fmt.Errorf("%w: another device than meant", turnover.ErrUnfit)
		}
	}
	content := h.contentOf(path.Base(t.SysPath))
	foreign := fmt.Errorf("%w: %w: the disk contains %s", turnover.ErrUnfit, device.ErrForeign, content)
	tree := sysfs.At(h.root())
	known := t.Fingerprint == "" || t.Fingerprint == fingerprint(content)
	switch {
	case t.Written != nil && sysfs.Written(&tree, t.SysPath) > *t.Written:
		return foreign
	case w.Resource == "" || strings.HasPrefix(path.Base(t.SysPath), "nvme") && w.Resource != h.selects(): // see TestSelected of package reset
		return fmt.Errorf("%w: resource %q does not select the disk", turnover.ErrUnfit, w.Resource)
	case w.ByHand && w.Scrub != "" && (h.care.AllowInUse || h.care.Shares > 1):
		return fmt.Errorf("%w: the resource offers disks that other processes may use", turnover.ErrUnfit)
	case w.Blank && (content != "" || h.answers[path.Base(t.SysPath)] == "sparse"):
		return foreign
	case len(t.Identity) == 0:
		return fmt.Errorf("%w: nothing identifies the device", turnover.ErrUnfit)
	case w.Scrub != "" && !w.Tenant && !w.ByHand:
		return fmt.Errorf("%w: no pod on this node has left data", turnover.ErrUnfit)
	case content == "", w.ByHand && known, w.Tenant && known:
		return nil
	}
	return foreign
}

// prepare resets a device, then erases it or checks that it is blank. A disk with another diskseq counts as the same medium
// if the content has not changed.
func (h *helpers) prepare(ctx context.Context, t device.Target, w device.Work) (p device.Report, err error) {
	name := path.Base(t.SysPath)
	if err := h.checkPermitted(t, w); err != nil {
		return p, err
	}
	before := h.contentOf(name)
	if w.Method != "" {
		note := fmt.Sprintf("reset %s %s", name, w.Method)
		for _, other := range t.Together {
			note += " with " + path.Base(other)
		}
		if err := h.recordCall(ctx, "reset", note); err != nil {
			return p, err
		}
		t.Identity = maps.Clone(t.Identity)
		delete(t.Identity, "diskseq")
		if err := h.checkPermitted(t, w); err != nil {
			return p, err
		}
	}
	appearance := func() string {
		text, _ := os.ReadFile(filepath.Join(h.root(), t.SysPath, "diskseq")) // a VFIO group has no diskseq
		return strings.TrimSpace(string(text))
	}
	now := appearance()
	same := h.contentOf(name) == before
	if same {
		p.Appearance = now
	}
	p.Done, p.Size = "reset", h.size
	switch {
	case w.Scrub == "":
		return p, nil
	case !same:
		return device.Report{}, errors.New("another medium may be in its place")
	}
	if err := h.recordCall(ctx, "erase", fmt.Sprintf("erase %s %s", name, w.Scrub)); err != nil {
		return device.Report{}, err
	}
	if appearance() != now {
		return device.Report{}, errors.New("it has not come back")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.content[name], h.hidden[name] = "", 0
	tree := sysfs.At(h.root())
	p.Done, p.Erased, p.Size, p.Written = "erased", h.fail["verify"] == nil, h.size, sysfs.Written(&tree, t.SysPath)
	if h.fail["medium"] != nil {
		p.Appearance = ""
	}
	return p, nil
}

func (h *helpers) holders(ctx context.Context, nodes []string) (all []device.Holder, err error) {
	if err := h.recordCall(ctx, "holders", ""); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, node := range nodes {
		for _, pod := range h.open[path.Base(node)] {
			all = append(all, device.Holder{PID: 7, Command: "dd", PodUID: strings.TrimPrefix(pod, "host")})
		}
	}
	return append(all, h.unread...), nil
}

// ownersNow returns the content of the kubelet's checkpoint.
func (h *helpers) ownersNow() (map[string][]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string][]string)
	for id, pods := range h.owners {
		all[checkpoint.Parent(id)] = append(all[checkpoint.Parent(id)], pods...)
	}
	return all, h.fail["owners"]
}

// hasProcess reports whether a pod has a process.
func (h *helpers) hasProcess(pod string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.running[pod]), h.runErr
}
