// SPDX-License-Identifier: Apache-2.0

// Package turnover makes a device fit for its next pod: before a container starts, after a pod has gone, and by hand.
//
// It makes sure that nobody has the device open, resets it by the method of its class, erases it where that is asked
// for, and tells the inventory what has come of it. What touches a device is done by the helpers ([device.Touch]), which
// check everything again. One thing at a time is done to a device. Whatever goes wrong or cannot be told keeps it from
// everybody: it fails closed.
package turnover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// Words of the configuration for methods.
const (
	Auto = "auto" // the method that the class thinks right for the device as it stands, or none
	None = "none"
)

var (
	// ErrBusy: somebody has the device open who should not.
	ErrBusy = errors.New("device busy")
	// ErrUnfit: the device must be left as it is.
	ErrUnfit = errors.New("not possible")
)

// patience is how long it is looked, with pauses of glancePause, whether a process of this host that has a device open is
// only passing by, and whether a pod that has had it is about to end: its sandbox is stopped after its containers, which
// takes a runtime a second or two.
const (
	patience    = 5 * time.Second
	glancePause = 200 * time.Millisecond
)

// Care is what is to be done to the devices of a resource between two pods.
type Care struct {
	Method    string // of the class, [Auto] or [None]
	Scrub     string // how a disk is erased, or [None]
	AtStart   bool   // before each container starts; a disk is erased only for the first container of a pod
	AtRelease bool   // after the last pod
	Timeout   time.Duration
	// Open: others may have it open, since it has several shares or the host may use it. It is neither reset nor erased.
	Open  bool
	Units Units // beside that of the rule, [device.Rule].Init
}

// clears tells whether anything is to be done after the last pod.
func (c Care) clears() bool { return c.AtRelease || c.Units.Release != "" }

// acts tells whether anything is to be done.
func (c Care) acts() bool { return c.Method != None || c.scrubs() }

func (c Care) scrubs() bool { return c.Scrub != None && c.Scrub != "" }

// Turnover is safe for concurrent use.
type Turnover struct {
	Inventory *inventory.Inventory
	Host      *device.Host
	Log       *slog.Logger
	// Care returns what is configured for a resource. It does not block.
	Care func(resource string) (c Care, ok bool)
	// Owners returns the UIDs of the pods that the kubelet has given devices, by the ID of the device.
	Owners func() (map[string][]string, error)
	// Running tells whether a pod, by its UID, has a process still, whatever that has open; nil: nobody can tell.
	Running func(pod string) (bool, error)
	// Unit carries out a vendor's own step, which has a name in the configuration, for a device, and returns when it has
	// succeeded or failed. It ends with ctx. nil: there are no such steps, as on a recording.
	Unit func(ctx context.Context, step Step) error
	// Audit is told of all that is done to devices; may be nil.
	Audit *audit.Log
	// Done is told of every reset and erasure for whoever counts; may be nil.
	Done func(resource, method string, took time.Duration, err error)

	mu    sync.Mutex
	locks map[string]chan struct{} // by device: one slot, full while something is done to it
}

func (t *Turnover) careOf(resource string) Care {
	if c, ok := t.Care(resource); ok {
		return c
	}
	return Care{Method: None, Scrub: None}
}

// owners asks for the pods that the kubelet has given devices to.
func (t *Turnover) owners() (map[string][]string, error) {
	if t.Owners == nil {
		return nil, nil
	}
	owners, err := t.Owners()
	if err != nil {
		return nil, fmt.Errorf("whose devices are cannot be told: %w", err)
	}
	return owners, nil
}

// find returns the newest status of a device.
func (t *Turnover) find(id string) *inventory.Status {
	snapshot, _ := t.Inventory.Snapshot()
	return snapshot.Find(id)
}
