// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/daemon/unit"
)

// followPause is how often a disk is asked how far it is with what goes on inside it for minutes or hours.
const followPause = 10 * time.Second

// hands are the helpers, as [device.Touch] has them.
type hands struct {
	sysfs   sysfs.Tree
	reset   reset.Client
	holders cgroup.Client

	mu     sync.Mutex
	busy   map[string]chan struct{} // by sysfs path: closed when what is done to it is over
	prints map[uint64]string        // the helper's fingerprints, by the number that the inventory knows them by
	last   map[string]uint64        // the number of what was last on a disk, by its sysfs path
	follow map[string]bool          // disks that were going on by themselves when we had to stop waiting
}

// Helpers returns what the helpers of the configuration can do.
// The configuration has been read from a file, which a helper that is a child process reads too.
func Helpers(c config.Reset, root, file string) device.Touch {
	h := &hands{
		sysfs:   sysfs.Tree{Sys: root},
		reset:   reset.Client{Peer: exchange.Peer{Program: reset.Program, Socket: c.Socket, Config: file}},
		holders: cgroup.Client{Peer: exchange.Peer{Program: cgroup.Program, Socket: c.Holders, Config: file}},
	}
	return device.Touch{Probe: h.probe, Reset: h.restore, Erase: h.erase, Holders: h.holding}
}

// runUnit returns what runs a vendor's unit: the helper, which reads the unit's name from file.
func runUnit(c config.Reset, file string) func(context.Context, turnover.Step) error {
	client := unit.Client{Peer: exchange.Peer{Program: unit.Program, Socket: c.Units, Config: file}}
	return func(ctx context.Context, step turnover.Step) error {
		return client.Run(ctx, step.Resource, step.Stage, step.Device)
	}
}

// request makes a request out of a target. Its time is that of ctx.
func request(ctx context.Context, op reset.Op, t device.Target) reset.Request {
	r := reset.Request{Op: op, SysPath: t.SysPath, Class: t.Class, TimeoutMS: time.Minute.Milliseconds()}
	for _, a := range t.Identity {
		r.Identity = append(r.Identity, reset.Attribute{Name: a.Name, Value: a.Value})
	}
	if end, ok := ctx.Deadline(); ok {
		r.TimeoutMS = max((time.Until(end) - device.AnswerTime).Milliseconds(), 1)
	}
	return r
}

// prepare makes a request to prepare a device. What no pod has left must be blank.
func (h *hands) prepare(ctx context.Context, t device.Target, leftover bool) reset.Request {
	r := request(ctx, reset.Prepare, t)
	r.Resource, r.Together, r.Tenant, r.Blank = t.Resource, t.Together, leftover, !leftover && t.Disk
	if leftover && t.Print != 0 {
		r.Fingerprint = h.fingerprintOf(t.Print)
	}
	return r
}

// printOf returns the number by which the inventory knows a fingerprint; 0 for none.
func (h *hands) printOf(sysPath, fingerprint string) uint64 {
	if fingerprint == "" {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.prints == nil {
		h.prints, h.last = make(map[uint64]string), make(map[string]uint64)
	}
	sum := fnv.New64a()
	sum.Write([]byte(fingerprint))
	number := max(sum.Sum64(), 1)
	h.prints[number], h.last[sysPath] = fingerprint, number
	return number
}

// fingerprintOf returns the fingerprint of a number. One of an earlier life of the daemon is not known any more, and gives a
// fingerprint that no disk has.
func (h *hands) fingerprintOf(number uint64) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if fingerprint := h.prints[number]; fingerprint != "" {
		return fingerprint
	}
	return "0000000000000000:00000000000000000000000000000000"
}

// claim waits until nothing else is done to a device by us: a disk that one helper holds to read it cannot be held by
// another to erase it.
func (h *hands) claim(ctx context.Context, path string) (release func(), err error) {
	for {
		over, release := h.tryClaim(path)
		if over == nil {
			return release, nil
		}
		select {
		case <-over:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: by us: %w", device.ErrInUse, ctx.Err())
		}
	}
}

// tryClaim claims a device, or returns what is closed when it may be tried again.
func (h *hands) tryClaim(path string) (over chan struct{}, release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if over := h.busy[path]; over != nil {
		return over, nil
	}
	if h.busy == nil {
		h.busy = make(map[string]chan struct{})
	}
	mine := make(chan struct{})
	h.busy[path] = mine
	return nil, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.busy, path)
		close(mine)
	}
}

// probe claims nothing of a disk that a pod holds.
func (h *hands) probe(ctx context.Context, t device.Target, held bool) (device.Reading, error) {
	r := request(ctx, reset.Probe, t)
	r.Held, r.Offered = held, t.Offered
	if !held {
		release, err := h.claim(ctx, t.SysPath)
		if err != nil {
			return device.Reading{}, fmt.Errorf("%w: we are at work on it: %w", device.ErrUnanswered, ctx.Err())
		}
		defer release()
	}
	h.mu.Lock()
	r.Fingerprint = h.prints[h.last[t.SysPath]] // to read the same places: else what is there could not be compared
	h.mu.Unlock()
	a, err := h.do(ctx, r)
	return device.Reading{
		Content: a.Content, Print: h.printOf(t.SysPath, a.Fingerprint), Claimed: a.Claimed, Methods: a.Methods,
		Smart: device.Smart{
			Known: a.Smart.Known, Warning: a.Smart.Warning, Used: a.Smart.Used, Spare: a.Smart.Spare,
			Temperature: a.Smart.Temperature, MediaErrors: a.Smart.MediaErrors,
		},
	}, err
}

func (h *hands) restore(ctx context.Context, t device.Target, method string, leftover bool) (string, error) {
	release, err := h.claim(ctx, t.SysPath)
	if err != nil {
		return "", err
	}
	defer release()
	r := h.prepare(ctx, t, leftover)
	r.Method = method
	a, err := h.do(ctx, r)
	return a.Done, err
}

// erase waits for what goes on inside the disk. If it has to stop waiting, the next call goes on with that.
func (h *hands) erase(ctx context.Context, t device.Target, scrub string, leftover bool) (string, error) {
	release, err := h.claim(ctx, t.SysPath)
	if err != nil {
		return "", err
	}
	defer release()
	key := scrub + " " + t.Appearance() + " " + t.SysPath
	for {
		r := h.prepare(ctx, t, leftover)
		if r.Scrub, r.ByHand, r.Follow = scrub, !leftover, h.following(key); r.Follow {
			r.Fingerprint = "" // what is on it by now is what the disk itself has made of it
		}
		a, err := h.do(ctx, r)
		switch {
		case errors.Is(err, reset.Running):
			h.setFollowing(key, true)
		case err == nil, errors.Is(err, reset.Failed):
			h.unfollow(t.SysPath)
			fallthrough
		default:
			return a.Done, err
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(followPause):
		}
	}
}

func (h *hands) following(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.follow[key]
}

// unfollow forgets what went on in a disk, by whatever method and in whatever appearance.
func (h *hands) unfollow(sysPath string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.follow, func(key string, _ bool) bool { return strings.HasSuffix(key, " "+sysPath) })
}

func (h *hands) setFollowing(key string, follow bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.follow == nil {
		h.follow = make(map[string]bool)
	}
	if h.follow[key] = follow; !follow {
		delete(h.follow, key)
	}
}

// do asks the helper that touches devices.
func (h *hands) do(ctx context.Context, r reset.Request) (reset.Answer, error) {
	a, err := h.reset.Do(ctx, r)
	if err != nil {
		return a, fmt.Errorf("%w: %w", device.ErrUnanswered, err)
	}
	err = a.Err()
	switch {
	case errors.Is(err, reset.Busy):
		err = fmt.Errorf("%w: %s", device.ErrInUse, a.Detail)
	case errors.Is(err, reset.Foreign):
		err = fmt.Errorf("%w: %w: %s", turnover.ErrUnfit, device.ErrForeign, a.Detail)
	case errors.Is(err, reset.Gone):
		err = fmt.Errorf("%w: %s", device.ErrGone, a.Detail)
	case errors.Is(err, reset.Late):
		err = fmt.Errorf("%w: %s", device.ErrUnanswered, a.Detail)
	case errors.Is(err, reset.Refused), errors.Is(err, reset.Unsupported):
		err = fmt.Errorf("%w: %s", turnover.ErrUnfit, a.Detail)
	}
	return a, err
}
