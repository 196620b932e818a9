// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/metalplug/metalplug/daemon/plugin"
)

// After a hint at another plugin, its registration, or that the kubelet notices its end, may take a while: what the kubelet
// counts is compared after the first of these pauses, and after each twice as long.
const (
	firstComparison = time.Second
	// stirComparison is the first pause after a plugin has made its socket: most register at once.
	stirComparison = 100 * time.Millisecond
	// endComparison is the first pause after a plugin has ended: the kubelet notices that at once.
	endComparison  = 50 * time.Millisecond
	lastComparison = time.Minute
	// ownComparison is the last pause where all that has happened is a registration of ours: the kubelet has milliseconds of
	// work with that.
	ownComparison = 4 * time.Second
)

// watchRivals has each endpoint hear what the kubelet counts of its resource, as long as another plugin may have to do with
// that. Otherwise it sleeps.
func (d *daemon) watchRivals(ctx context.Context, ready func()) error {
	ready()
	var pause, last time.Duration // before the next comparison, 0: there is none; and before the last that follows the hint
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.watch.Doubts():
			if last = max(last, ownComparison); d.watch.Stirred() {
				last = lastComparison
				d.peers.Live() // and so a new one is watched
				pause = stirComparison
				break
			}
			if pause > 0 && pause <= firstComparison {
				continue
			}
			pause = firstComparison
		case <-d.peers.Changed:
			d.watch.Hint() // for those that are held back
			pause, last = endComparison, lastComparison
		case <-timer.C:
			if pause = d.compare(ctx, pause, last); pause == 0 {
				last = 0
			}
		}
		if pause > 0 {
			timer.Reset(pause)
		}
	}
}

// compare compares what the kubelet counts with what is offered, and returns the pause until it is to be done again; 0:
// never. After another plugin has stirred, a kubelet that does not answer is asked until it does: it allows all its clients
// together some questions a second, and another plugin that is known may end meanwhile. So is one beside which another plugin
// is: if that has the same resource with the same devices, it shows only once it has ended, which no event tells of if it is
// killed.
func (d *daemon) compare(ctx context.Context, pause, last time.Duration) time.Duration {
	counted, err := plugin.Allocatable(ctx, d.Config.Paths.PodResources)
	if err == nil {
		if again := d.endpoints.compare(counted); again > 0 {
			return again
		}
	}
	switch {
	case pause < last:
		return min(2*pause, last)
	case d.watch.Others() || err != nil && last == lastComparison:
		return lastComparison
	}
	return 0
}

// countedOf asks the kubelet which devices of a resource it counts as healthy. A kubelet without the service counts none.
func (d *daemon) countedOf(ctx context.Context, resource string) ([]string, error) {
	if _, err := os.Lstat(d.Config.Paths.PodResources); errors.Is(err, fs.ErrNotExist) {
		if len(d.peers.Live()) == 0 {
			return nil, nil // there is no other plugin, or no kubelet yet
		}
		return nil, fmt.Errorf("%w: other plugins are here, and which resources they serve is not known; see paths.pod_resources", err)
	}
	counted, err := plugin.Allocatable(ctx, d.Config.Paths.PodResources)
	if errors.Is(err, plugin.ErrNotCounted) {
		return nil, nil
	}
	return counted[resource], err
}
