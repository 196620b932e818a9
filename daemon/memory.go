// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// startRest is the delay after the start before unused memory is returned to the kernel. The enumeration and the
// kubelet's first list use most of this memory.
const startRest = 4 * time.Second

// keepSmall returns unused memory to the kernel after the start, and after each periodic enumeration, which uses as much
// memory as the start. A second collection is needed to free memory in pools, such as the bytes of a list.
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
