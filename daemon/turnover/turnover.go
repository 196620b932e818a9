// SPDX-License-Identifier: Apache-2.0

// Package turnover prepares a device for its next tenant. This work is done before a container starts, after a pod has
// ended, and when an operator orders it.
//
// The package checks that no process has the device open, resets the device with the configured method, and erases the device if
// the resource requires that. The package reports each step to the inventory, which changes the device's lease. Only the helper
// processes open the device ([device.Touch]). A helper repeats all checks before it changes the device. Only one worker at a time
// works on a device. If the work fails, or if a helper does not answer, no pod gets the device.
package turnover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/verdict"
)

var (
	// ErrBusy means that a pod, a process or another operation is using the device.
	ErrBusy = errors.New("device busy")
	// ErrUnfit means that metalplug cannot or must not do the work on the device.
	ErrUnfit = errors.New("not possible")
	// errUnsaved means that a disk was erased, but metalplug could not record the erasure in the state file.
	errUnsaved = errors.New("the erasure cannot be saved")
	// errOutdated means that a device has changed since work on it was requested. Nothing was done.
	errOutdated = fmt.Errorf("%w: the device has changed since the request", ErrBusy)
)

const (
	// lingerInterval is the time between two attempts while the device is busy. A device is often still busy for a few seconds after
	// its pod has ended.
	lingerInterval = 2 * time.Second
	// initialBackoff and maxBackoff are the minimum and maximum time between attempts after a failure.
	initialBackoff = 10 * time.Second
	maxBackoff     = 10 * time.Minute
)

// Turnover runs the work on devices between two pods. Turnover is safe for concurrent use.
type Turnover struct {
	Inventory *inventory.Inventory
	Host      *device.Host
	Log       *slog.Logger
	// Configured returns a resource's configuration. The result ok is false if the resource is not configured. Configured does not
	// block.
	Configured func(resource string) (r config.Resource, ok bool)
	// Owners returns the UIDs of the pods that hold each device according to the kubelet. The keys are device IDs.
	Owners func() (map[string][]string, error)
	// Running reports whether the pod with this UID still has a process. Running may be nil.
	Running func(pod string) (bool, error)
	// Unit runs the vendor unit that the resource configures for a stage, such as [unit.Start]. Unit passes the device ID to this
	// unit. Unit returns when the vendor unit has succeeded or failed, or when ctx ends. Unit is nil if the hardware is simulated
	// from a recording.
	Unit func(ctx context.Context, resource, stage, id string) error
	// Audit records all work on devices, or is nil.
	Audit *audit.Log
	// For the metrics, Done is called once for each reset and each erasure. Done may be nil.
	Done func(resource, method string, took time.Duration, err error)
}

// policyFor returns a resource's configuration. A resource without a configuration requires no work.
func (t *Turnover) policyFor(resource string) config.Resource {
	r, ok := t.Configured(resource)
	if !ok {
		r.Reset.Method, r.Reset.Scrub = config.None, config.None
	}
	return r
}

// note writes an event about a device, or an error from the work, to the audit log.
func (t *Turnover) note(s *inventory.Status, event audit.Event, err error, e audit.Entry) {
	e.Event, e.Resource, e.Device, e.Identity, e.Result = event, s.Taker, s.Device.ID, s.Target.Attributes(), "ok"
	if len(e.Pods) == 0 {
		e.Pods = s.Tenants
	}
	if err != nil {
		e.Result = err.Error()
		if event != audit.Refused {
			e.Event = audit.Failed
		}
	}
	t.Audit.Note(e)
}

// Until ctx ends, Run works on devices that were released, or that must be prepared before they are first offered. Each device
// with pending work has one worker, which repeats the work until it succeeds. Run waits for the workers.
func (t *Turnover) Run(ctx context.Context, started func()) error {
	started()
	var all sync.WaitGroup
	defer all.Wait()
	workers := make(map[string]bool) // IDs of the devices with a worker
	over := make(chan string)
	for {
		snapshot, changed := t.Inventory.Snapshot()
		for s := range snapshot.All() {
			id := s.Device.ID
			if s.Todo != verdict.Nothing && !workers[id] {
				workers[id] = true
				all.Go(func() {
					t.work(ctx, s)
					select {
					case over <- id:
					case <-ctx.Done():
					}
				})
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case id := <-over:
			delete(workers, id)
		case <-changed:
		}
	}
}

// work does the pending work on a device until nothing is pending or ctx ends. After a failure, work retries with a delay that
// doubles each time, up to maxBackoff. Work that succeeded resets the delay.
func (t *Turnover) work(ctx context.Context, s *inventory.Status) {
	id := s.Device.ID
	if s.Used && s.Todo == verdict.CleanUp {
		t.note(s, audit.Released, nil, audit.Entry{})
	}
	for pause := initialBackoff; ; {
		snapshot, changed := t.Inventory.Snapshot()
		s := snapshot.Find(id)
		if s == nil || s.Todo == verdict.Nothing {
			return
		}
		wait, todo, err := lingerInterval, s.Todo, t.doWork(ctx, id, s.Todo)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil: // wait for the next snapshot, which shows the result
			pause = initialBackoff
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		case errors.Is(err, errFound):
			wait, todo = foundPause, verdict.ReadAgain
		case isBusy(err):
		default:
			t.Log.Error(string(todo), "device", id, "resource", s.Taker, "err", err)
			wait, pause = pause, min(2*pause, maxBackoff)
		}
		t.pause(ctx, id, wait, todo)
	}
}

// doWork does the given work on a device, and records why the work is delayed if it fails. If this work is no longer pending,
// doWork does nothing and returns nil.
func (t *Turnover) doWork(ctx context.Context, id string, todo verdict.Todo) error {
	j, err := t.take(ctx, id)
	if err != nil {
		return err
	}
	defer j.finish()
	if j.Todo != todo {
		return nil
	}
	err = j.do(ctx, todo)
	switch {
	case ctx.Err() != nil:
	case err == nil, errors.Is(err, errFound), errors.Is(err, errOutdated):
		t.Inventory.Delayed(id, "")
	default:
		t.Inventory.Delayed(id, strings.TrimPrefix(err.Error(), ErrBusy.Error()+": "))
	}
	return err
}

func (j *job) do(ctx context.Context, todo verdict.Todo) error {
	switch todo {
	case verdict.CleanUp:
		return j.cleanUp(ctx)
	case verdict.EraseAdopted:
		return j.eraseAdopted(ctx)
	case verdict.ReadDisk, verdict.ReadAgain:
		return j.read(ctx)
	case verdict.AskHolders:
		return j.askHolders(ctx)
	}
	return j.initialise(ctx)
}

// pause waits until ctx ends, the pending work of the device changes, or the given time has passed.
func (t *Turnover) pause(ctx context.Context, id string, wait time.Duration, todo verdict.Todo) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err := t.Inventory.Await(ctx, func(snapshot *inventory.Snapshot) bool {
		s := snapshot.Find(id)
		return s == nil || s.Todo != todo
	})
	if err != nil {
		<-ctx.Done() // the inventory may have ended earlier
	}
}

// halfErased is the error from a failed erasure. The erasure may already have changed the disk's content.
type halfErased struct{ error }

// Unwrap returns the cause.
func (e halfErased) Unwrap() error { return e.error }

// isBusy reports whether an error means that the device was busy and is unchanged.
func isBusy(err error) bool { return errors.Is(err, ErrBusy) || errors.Is(err, device.ErrInUse) }
