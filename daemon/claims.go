// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/cdi"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// claimLimit is how long a request about a claim waits for work on the claim's devices. The kubelet waits 45 s for a DRA driver
// (defaultClientCallTimeout in kubernetes v1.36, pkg/kubelet/cm/dra/plugin), and repeats the request after an error.
const claimLimit = 40 * time.Second

// The type claims prepares and releases the devices of resource claims. The lease of each device records the claims that hold the
// device, so this type stores only the work in progress. Each claim has at most one piece of work in progress.
type claims struct {
	*daemon
	mu      sync.Mutex
	working map[string]*preparation // keys are claim UIDs
	// calls contains the function that ends each Prepare call in progress. Each call has its own key.
	calls map[*api.ClaimRef]context.CancelCauseFunc
	ctx   context.Context // context of the work, or nil while Run is not running
	all   sync.WaitGroup
}

// preparation is work in progress that either prepares or releases a claim's devices.
type preparation struct {
	releases bool // whether the work releases the devices instead of preparing them
	began    time.Time
	done     chan struct{}
	prepared api.Prepared // result of the work, once it is done
	err      error        // why the work failed, or nil
}

// locked calls the function f while it holds the mutex of c.
func (c *claims) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Run accepts work until ctx ends. After that, Run waits for all work to end, and returns nil.
func (c *claims) Run(ctx context.Context, ready func()) error {
	c.locked(func() { c.ctx = ctx })
	ready()
	<-ctx.Done()
	c.locked(func() { c.ctx = nil })
	c.all.Wait()
	return nil
}

// Prepare assigns the devices in a claim's requests to the claim, and prepares them for containers. Prepare skips devices that an
// earlier call has already prepared for the claim. While a device is being cleared after its last tenant, Prepare waits. A call
// to Unprepare ends this wait, and Prepare then returns an error. If Prepare takes longer than [claimLimit], it returns
// [control.ErrWorking], and any work that has begun continues.
func (c *claims) Prepare(ctx context.Context, claim api.ClaimRef, ask api.Claim) (api.Prepared, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer time.AfterFunc(claimLimit, func() { end(control.ErrWorking) }).Stop()
	c.locked(func() { c.calls[&claim] = end })
	defer c.locked(func() { delete(c.calls, &claim) })
	var ids []string
	for _, r := range ask.Requests {
		// A request with admin access does not need the device to be prepared, and leaves the device's lease as it is.
		if !r.Admin {
			ids = append(ids, r.Devices...)
		}
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids))) // several requests may contain shares of the same device
	for {
		_, changed := c.inventory.Snapshot()
		p, err := c.await(ctx, claim.UID, false, func(ctx context.Context) (p api.Prepared, err error) {
			if err := c.prepare(ctx, claim, ids); err != nil {
				return p, err
			}
			saved := make(chan error, 1)
			go func() { saved <- c.inventory.WaitSaved(ctx) }()
			p, err = c.answer(ctx, claim.UID, ask.Requests)
			return p, errors.Join(<-saved, err)
		})
		if !errors.Is(err, inventory.ErrClearing) {
			return p, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// Unprepare releases a claim's devices, so that metalplugd cleans them up. A second call for the same claim does nothing.
// Unprepare first ends all earlier Prepare calls for the claim, because a waiting call could assign a device to the claim after
// the release.
func (c *claims) Unprepare(ctx context.Context, uid string) error {
	c.locked(func() {
		for claim, end := range c.calls {
			if claim.UID == uid {
				end(control.ErrReleased)
			}
		}
	})
	ctx, cancel := context.WithTimeoutCause(ctx, claimLimit, control.ErrWorking)
	defer cancel()
	_, err := c.await(ctx, uid, true, func(ctx context.Context) (p api.Prepared, err error) {
		if err := c.inventory.Unclaim(ctx, uid); err != nil {
			return p, err
		}
		return p, c.specs.Unclaim(uid)
	})
	return err
}

// await waits for work on a claim's devices, and returns its result, or an error when ctx ends. If no work is in progress, await
// begins it by calling start, unless ctx has ended. If work of the other kind is in progress, await first waits for that work,
// because a claim cannot be released while it is being prepared.
func (c *claims) await(ctx context.Context, uid string, releases bool, start func(context.Context) (api.Prepared, error)) (p api.Prepared, err error) {
	for {
		c.mu.Lock()
		w := c.working[uid]
		if w == nil && c.ctx != nil && ctx.Err() == nil {
			w = &preparation{releases: releases, began: time.Now(), done: make(chan struct{})}
			c.working[uid] = w
			work := c.ctx
			c.all.Go(func() {
				w.prepared, w.err = start(work)
				c.locked(func() { delete(c.working, uid) })
				close(w.done)
			})
		}
		c.mu.Unlock()
		if w == nil {
			return p, cmp.Or(context.Cause(ctx), errors.New("metalplugd is starting or stopping"))
		}
		select {
		case <-w.done:
			if w.releases == releases {
				return w.prepared, w.err
			}
		case <-ctx.Done():
			return p, fmt.Errorf("%w: metalplugd has been working on the claim's devices for %v", context.Cause(ctx), time.Since(w.began).Round(time.Second))
		}
	}
}

// prepare assigns devices to a claim and prepares those that are not prepared yet. The caller must wait until the new state is
// on disk. The work itself may begin earlier, because metalplugd can repeat it after a crash.
func (c *claims) prepare(ctx context.Context, claim api.ClaimRef, ids []string) error {
	if err := c.inventory.Claim(ctx, claim, ids); err != nil {
		return err
	}
	var todo []*inventory.Status
	for _, id := range ids {
		s, err := c.inventory.Current(ctx, id)
		if err != nil {
			return err
		}
		if !s.Claims.Ready(claim.UID) {
			todo = append(todo, s.Status)
		}
	}
	return c.turnover.StartFor(ctx, todo, claim.UID)
}

// answer writes a claim's CDI spec, and returns the answer to the request to prepare the claim.
func (c *claims) answer(ctx context.Context, uid string, requests []api.ClaimRequest) (p api.Prepared, err error) {
	var written []cdi.Request
	for _, r := range requests {
		g, devices, err := c.containerParts(ctx, uid, r)
		if err != nil {
			return p, err
		}
		p.Requests = append(p.Requests, api.PreparedRequest{Name: r.Name, CDI: g.CDI})
		written = append(written, cdi.Request{Name: r.Name, Admin: r.Admin, Devices: devices, Nodes: g.Nodes, Env: g.Env})
	}
	names, err := c.specs.Claim(uid, written)
	for i, of := range names {
		p.Requests[i].CDI = append(of, p.Requests[i].CDI...)
	}
	return p, err
}

// containerParts returns the nodes, variables and devices that a container gets for a request. The devices may belong to several
// resources. DRA must serve the resources in a request with admin access. Otherwise, a compromised metalplug-dra could give a pod
// any device. With admin access, the container gets read permission, but no write permission, for NVMe disks and for devices of
// the class node, which may be disks. If an administrator wrote to a disk, metalplug would mistake the new content for a tenant's
// data.
func (c *claims) containerParts(ctx context.Context, uid string, request api.ClaimRequest) (parts api.Allocation, devices []*inventory.Status, err error) {
	parts.Env = make(map[string]string)
	by := make(map[string][]*inventory.Status)
	for _, id := range request.Devices {
		s, err := c.inventory.Current(ctx, id)
		if err != nil {
			return parts, nil, err
		}
		if !s.Present || !request.Admin && !s.Claims.Ready(uid) {
			return parts, nil, fmt.Errorf("%s: %w, or the claim no longer has this device", id, device.ErrGone)
		}
		by[s.Resource], devices = append(by[s.Resource], s.Status), append(devices, s.Status)
	}
	for _, r := range c.config.Load().Resources {
		if by[r.Name] == nil || request.Admin && r.Serve != config.ServeDRA {
			continue
		}
		slices.SortFunc(by[r.Name], func(a, b *inventory.Status) int { return strings.Compare(a.Device.ID, b.Device.ID) })
		offer := pluginResource(c.daemon, r)
		if request.Admin && (r.Class == device.NVMeName || r.Class == device.NodeName) {
			offer.CDI, offer.Permissions = nil, "r"
		}
		g, err := plugin.Give(offer, c.host, by[r.Name])
		if err != nil {
			return parts, nil, err
		}
		parts.Nodes, parts.CDI = append(parts.Nodes, g.Nodes...), append(parts.CDI, g.CDI...)
		maps.Copy(parts.Env, g.Env)
		delete(by, r.Name)
	}
	for resource, devices := range by {
		return parts, nil, fmt.Errorf("%s: resource %s is not served through DRA", devices[0].Device.ID, resource)
	}
	return parts, devices, nil
}

// byPlugin returns the current resources without those that DRA will serve with the next configuration. The endpoints of the
// omitted resources must end before the next rules apply, because these rules may give the devices to claims.
func byPlugin(current, next config.Config) []config.Resource {
	return slices.DeleteFunc(slices.Clone(current.Resources), func(r config.Resource) bool {
		return slices.ContainsFunc(next.Resources, func(n config.Resource) bool { return n.Name == r.Name && n.Serve == config.ServeDRA })
	})
}
