// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

// healthTimeout is how long the kubelet trusts a message. The time can be long, because the kubelet discards all messages when
// the stream ends.
const healthTimeout = 24 * time.Hour

// NodeWatchResources sends the kubelet the health of all devices that claims can get or hold. NodeWatchResources sends one message
// immediately, and one after each change, until the kubelet disconnects.
func (d *driver) NodeWatchResources(_ *health.NodeWatchResourcesRequest, to grpc.ServerStreamingServer[health.NodeWatchResourcesResponse]) error {
	for {
		now := d.state.Load()
		if now.devices != nil {
			if err := to.Send(healthOf(d.Node, *now)); err != nil {
				return err
			}
		}
		select {
		case <-to.Context().Done():
			return nil
		case <-now.replaced:
		case <-time.After(healthTimeout / 2):
		}
	}
}

// statuses maps a device's health to the kubelet's term.
var statuses = map[string]health.HealthStatus{"Healthy": health.HealthStatus_HEALTHY, "Unhealthy": health.HealthStatus_UNHEALTHY}

// healthOf returns the health of the devices that claims can get or hold. After serve has changed to "plugin", a claim still holds
// its device.
func healthOf(pool string, s state) *health.NodeWatchResourcesResponse {
	answer := &health.NodeWatchResourcesResponse{}
	for _, name := range slices.Sorted(maps.Keys(s.devices)) {
		if d := s.devices[name]; s.claimed[name] > 0 || len(d.Claims) > 0 {
			answer.Devices = append(answer.Devices, &health.DeviceHealth{
				Device: &health.DeviceIdentifier{PoolName: pool, DeviceName: name},
				Health: statuses[d.Health], Message: d.Reason,
				LastUpdatedTime: time.Now().Unix(), HealthCheckTimeoutSeconds: int64(healthTimeout.Seconds()),
			})
		}
	}
	return answer
}
