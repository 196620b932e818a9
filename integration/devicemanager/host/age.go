// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"reflect"
	"sync"
	"time"
)

// Age moves the time at which the plugin of a resource ended into the past. The device manager forgets a plugin after a
// grace period (pkg/kubelet/cm/devicemanager/types.go, endpointStopGracePeriod). No test waits for that.
//
// The time is in the private field ManagerImpl.endpoints[resource].e. It is an *endpointImpl, whose stopTime is zero
// while the plugin is connected. The names are the same in all releases. If one is missing, Age panics with its name,
// and the process ends.
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
