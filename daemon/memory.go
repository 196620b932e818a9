// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// startDelay is the time from the daemon's start until it returns unused memory to the kernel. Most of this memory was used to
// enumerate the devices and to encode the first device list.
const startDelay = 4 * time.Second

// returnMemory returns unused memory to the kernel after the start, and then every five minutes. Each periodic enumeration uses
// as much memory as the one at the start. returnMemory collects garbage twice, because only a second collection frees the memory
// in a sync.Pool, such as the bytes of an encoded device list.
func (d *daemon) returnMemory(ctx context.Context, ready func()) error {
	ready()
	select {
	case <-ctx.Done():
	case <-d.inventory.Ready():
	}
	for rest := startDelay; ; rest = checkInterval {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rest):
			runtime.GC()
			debug.FreeOSMemory()
		}
	}
}
