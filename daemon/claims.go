// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/cdi"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// claimLimit is how long a request about a claim waits for work on its devices. The kubelet allows a DRA driver 45 s
// (defaultClientCallTimeout in kubernetes v1.36, pkg/kubelet/cm/dra/plugin), and repeats the request after an error.
const claimLimit = 40 * time.Second

// claims prepares devices for claims. The lease of each device records the claim that holds it. This type stores only the
// work in progress.
type claims struct {
	*daemon
	mu      sync.Mutex
	working map[string]*preparing // by UID of the claim
	ctx     context.Context       // context of the work, or nil while Run does not run
	all     sync.WaitGroup
}

// preparing is work on the devices of a claim.
type preparing struct {
	began time.Time
	done  chan struct{}
	err   error // result of the work, once it is done
}

// Run accepts work until ctx ends, and then waits until the work has ended. It always returns nil.
func (c *claims) Run(ctx context.Context, ready func()) error {
	c.mu.Lock()
	c.ctx = ctx
	c.mu.Unlock()
	ready()
	<-ctx.Done()
	c.mu.Lock()
	c.ctx = nil
	c.mu.Unlock()
	c.all.Wait()
	return nil
}

// Prepare assigns to a claim the devices of its requests, and prepares them for containers. A repeated call skips
// devices that are already prepared for the claim. If the work takes longer than [claimLimit], Prepare returns
// [control.ErrWorking] and the work continues.
func (c *claims) Prepare(ctx context.Context, claim api.ClaimRef, ask api.Claim) (p api.Prepared, err error) {
	var ids []string
	for _, r := range ask.Requests {
		if !r.Admin { // the access of an administrator changes neither a device nor its lease
			ids = append(ids, r.Devices...)
		}
	}
	if err := c.await(ctx, claim.UID, func(ctx context.Context) error { return c.prepare(ctx, claim, ids) }); err != nil {
		return p, err
	}
	return c.answer(ctx, claim.UID, ask.Requests)
}

// Unprepare releases the devices of a claim, which starts their clean-up. It may be repeated.
func (c *claims) Unprepare(ctx context.Context, uid string) error {
	if err := c.await(ctx, uid, nil); errors.Is(err, control.ErrWorking) || ctx.Err() != nil {
		return err
	}
	if err := c.inventory.Unclaim(ctx, uid); err != nil {
		return err
	}
	return c.specs.Unclaim(uid)
}

// await waits at most [claimLimit] for the work on the devices of a claim. If there is no work, await calls start, unless
// that is nil.
func (c *claims) await(ctx context.Context, uid string, start func(context.Context) error) error {
	c.mu.Lock()
	w := c.working[uid]
	if w == nil && start != nil && c.ctx != nil {
		w = &preparing{began: time.Now(), done: make(chan struct{})}
		c.working[uid] = w
		work := c.ctx
		c.all.Go(func() {
			w.err = start(work)
			c.mu.Lock()
			delete(c.working, uid)
			c.mu.Unlock()
			close(w.done)
		})
	}
	c.mu.Unlock()
	switch {
	case w == nil && start != nil:
		return errors.New("metalplugd is starting or stopping")
	case w == nil:
		return nil
	}
	select {
	case <-w.done:
		return w.err
	case <-time.After(claimLimit):
		return fmt.Errorf("%w: the reset or erasure of its devices has taken %v so far", control.ErrWorking, time.Since(w.began).Round(time.Second))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// prepare assigns devices to a claim and prepares those that are not prepared yet. It returns once the state is on
// disk.
func (c *claims) prepare(ctx context.Context, claim api.ClaimRef, ids []string) error {
	if err := c.inventory.Claim(ctx, claim, ids); err != nil {
		return err
	}
	todo := make(map[string][]*inventory.Status)
	for _, id := range ids {
		s, err := c.inventory.Current(ctx, id)
		if err != nil {
			return err
		}
		if !s.Ready(claim.UID) {
			todo[s.Resource] = append(todo[s.Resource], s)
		}
	}
	errs := make(chan error)
	for resource, devices := range todo {
		go func() { errs <- c.turnover.StartFor(ctx, resource, devices, claim.UID) }()
	}
	var failed error
	for range todo {
		failed = errors.Join(failed, <-errs)
	}
	return failed
}

// answer writes the CDI spec of a claim and returns what containers get.
func (c *claims) answer(ctx context.Context, uid string, requests []api.ClaimRequest) (p api.Prepared, err error) {
	var written []cdi.Request
	for _, r := range requests {
		g, err := c.given(ctx, r)
		if err != nil {
			return p, err
		}
		told := api.PreparedRequest{Name: r.Name, CDI: g.CDI, Nodes: []string{}, Env: g.Env}
		for _, n := range g.Nodes {
			told.Nodes = append(told.Nodes, n.Container)
		}
		p.Requests = append(p.Requests, told)
		written = append(written, cdi.Request{Name: r.Name, Nodes: g.Nodes, Env: g.Env})
	}
	names, err := c.specs.Claim(uid, written)
	for i, name := range names {
		p.Requests[i].CDI = append([]string{name}, p.Requests[i].CDI...)
	}
	return p, err
}

// given returns the nodes and variables of a container for a request, whose devices may belong to several resources. An
// administrator can only read from disks, because the evidence about a disk does not allow for his writes.
func (c *claims) given(ctx context.Context, request api.ClaimRequest) (all plugin.Given, err error) {
	all.Env = make(map[string]string)
	by := make(map[string][]*inventory.Status)
	for _, id := range request.Devices {
		s, err := c.inventory.Current(ctx, id)
		if err != nil {
			return all, err
		}
		if !s.Present {
			return all, fmt.Errorf("%s: %w", id, device.ErrGone)
		}
		by[s.Resource] = append(by[s.Resource], s)
	}
	for _, r := range c.config.Load().Resources {
		if by[r.Name] == nil {
			continue
		}
		slices.SortFunc(by[r.Name], func(a, b *inventory.Status) int { return strings.Compare(a.Device.ID, b.Device.ID) })
		offer := offered(c.daemon, r)
		if request.Admin && (r.Class == device.NVMeName || slices.ContainsFunc(by[r.Name], c.isBlock)) {
			offer.CDI, offer.Permissions = nil, "r"
		}
		g, err := plugin.Give(offer, c.host, by[r.Name])
		if err != nil {
			return all, err
		}
		all.Nodes, all.CDI = append(all.Nodes, g.Nodes...), append(all.CDI, g.CDI...)
		maps.Copy(all.Env, g.Env)
		delete(by, r.Name)
	}
	for resource, devices := range by {
		return all, fmt.Errorf("%s: resource %s is not configured any more", devices[0].Device.ID, resource)
	}
	return all, nil
}

// isBlock reports whether a device has the node of a disk or of a part of a disk.
func (c *claims) isBlock(s *inventory.Status) bool {
	return slices.ContainsFunc(s.Allocation.Nodes, func(n device.Node) bool {
		file, err := c.host.Stat(n.Host)
		return err == nil && file.Mode&unix.S_IFMT == unix.S_IFBLK
	})
}

// byPlugin returns the resources that the device plugin also serves under the next configuration. The endpoints of the other
// resources end before the next rules apply, because those rules may let claims have their devices.
func byPlugin(current, next config.Config) []config.Resource {
	return slices.DeleteFunc(slices.Clone(current.Resources), func(r config.Resource) bool {
		return slices.ContainsFunc(next.Resources, func(n config.Resource) bool { return n.Name == r.Name && n.Serve == config.ServeDRA })
	})
}
