// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// startRest is how long after all devices are known the memory of the start is given back, most of which was for the
// enumeration and for the kubelet's first list.
const startRest = 4 * time.Second

// keepSmall returns unused memory to the kernel after the start, and then after each audit, which takes as much again.
// Memory in a pool, such as the bytes of a list, is freed at the second collection.
func (d *daemon) keepSmall(ctx context.Context, ready func()) error {
	ready()
	select {
	case <-ctx.Done():
	case <-d.inventory.Ready():
	}
	for rest := startRest; ; rest = auditing {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rest):
			runtime.GC()
			debug.FreeOSMemory()
		}
	}
}
