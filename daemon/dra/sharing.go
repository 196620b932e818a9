// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metalplug/metalplug/daemon/api"
)

// sharing is what the API server answers about devices with shares.
type sharing struct {
	asked    bool
	possible bool   // the API server lets several claims hold a device
	problem  string // the last text for the operator
}

// ask finds out whether several claims can hold a device, if there are shared devices. An API server without the feature gate
// DRAConsumableCapacity drops the fields for this. The scheduler would then give the whole device to one claim. So ask
// creates a slice in a dry run and checks what the API server would store.
func (a *sharing) ask(ctx context.Context, d *driver, shared bool) error {
	problem := a.problem
	var failed error
	if !shared {
		problem, a.asked = "", false
	} else if !a.asked {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: d.Node + "-"}}
		slice.Spec = resourceapi.ResourceSliceSpec{
			Driver: DriverName, NodeName: &d.Node, Pool: resourceapi.ResourcePool{Name: d.Node, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{published("shared", api.Device{Health: "Healthy"}, 2)},
		}
		stored, err := d.Kube.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if problem, failed = "", err; err != nil {
			problem = err.Error()
		} else if a.asked, a.possible = true, stored.Spec.Devices[0].AllowMultipleAllocations != nil; !a.possible {
			problem = api.NoSharing
		}
	}
	if problem != a.problem {
		if a.problem = problem; problem != "" {
			d.Log.Warn("shared devices not published", "err", problem)
		}
		d.Note(problem)
	}
	return failed
}
