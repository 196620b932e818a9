// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// startRest is the time after which the memory used at the start is released. Most of it was used for the enumeration and
// the kubelet's first list.
const startRest = 4 * time.Second

// keepSmall returns unused memory to the kernel after the start, and after each periodic enumeration, which uses as much
// memory as the start. Memory in a pool, such as the bytes of a list, is freed by the second collection.
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
