// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metalplug/metalplug/daemon/api"
)

// sharing records whether the API server supports devices with shares.
type sharing struct {
	asked    bool
	possible bool   // whether the API server lets several claims hold a device
	problem  string // the problem that was last reported to the operator, or ""
}

// check finds out whether the API server lets several claims hold one device. It does nothing unless the flag shared is set.
// Without the feature gate DRAConsumableCapacity, an API server drops the fields for sharing, and the scheduler would give the
// whole device to one claim. If the API server has not answered, check returns true and must be called again. Until it answers,
// the field possible keeps its previous value.
func (s *sharing) check(ctx context.Context, d *driver, shared bool) (again bool) {
	problem := s.problem
	switch {
	case !shared:
		problem, s.asked = "", false
	case !s.asked:
		possible, err := d.storesSharing(ctx)
		if problem = ""; err != nil {
			problem = err.Error()
		} else if s.asked, s.possible = true, possible; !possible {
			problem = api.NoSharing
		}
	}
	if problem != s.problem {
		if s.problem = problem; problem != "" {
			d.Log.Warn("shared devices not published", "reason", problem)
		}
		d.Note(problem)
	}
	return shared && !s.asked
}

// storesSharing reports whether the API server stores the field that lets several claims hold a device. It creates a slice in a
// dry run, which changes nothing.
func (d *driver) storesSharing(ctx context.Context) (bool, error) {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: d.Node + "-"}}
	slice.Spec = resourceapi.ResourceSliceSpec{
		Driver: DriverName, NodeName: &d.Node, Pool: resourceapi.ResourcePool{Name: d.Node, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{published("shared", api.Device{Health: "Healthy"}, 2)},
	}
	stored, err := d.Kube.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err == nil && stored.Spec.Devices[0].AllowMultipleAllocations != nil, err
}
