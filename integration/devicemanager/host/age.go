// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"reflect"
	"sync"
	"time"
)

// Age has the plugin of a resource gone by that much earlier than it has: the
// device manager forgets it once that is longer ago than its grace period
// (pkg/kubelet/cm/devicemanager/types.go, endpointStopGracePeriod), for which
// no test waits.
//
// It keeps that time to itself, in ManagerImpl.endpoints[resource].e, which is
// an *endpointImpl: its stopTime, zero while the plugin is there. The names are
// the same in all releases; where they are not, this panics, and so ends the
// process with what is missing.
func (n *Node) Age(resource string, by time.Duration) error {
	fields := reflect.ValueOf(n.manager).Elem()
	mu := (*sync.Mutex)(fields.FieldByName("mutex").Addr().UnsafePointer())
	mu.Lock()
	defer mu.Unlock()
	info := fields.FieldByName("endpoints").MapIndex(reflect.ValueOf(resource))
	if !info.IsValid() {
		return fmt.Errorf("age %s: not known", resource)
	}
	endpoint := info.FieldByName("e").Elem().Elem()
	own := (*sync.Mutex)(endpoint.FieldByName("mutex").Addr().UnsafePointer())
	own.Lock()
	defer own.Unlock()
	stopped := (*time.Time)(endpoint.FieldByName("stopTime").Addr().UnsafePointer())
	if stopped.IsZero() {
		return fmt.Errorf("age %s: its plugin is there", resource)
	}
	*stopped = stopped.Add(-by)
	return nil
}
