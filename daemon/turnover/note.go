// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// note writes down what has happened to a device, or that it could not be done.
func (t *Turnover) note(s *inventory.Status, event audit.Event, err error, e audit.Entry) {
	e.Event, e.Resource, e.Device, e.Identity, e.Result = event, s.Resource, s.Device.ID, s.Target.Attributes(), "ok"
	if len(e.Pods) == 0 {
		e.Pods = s.Tenants
	}
	if err != nil {
		e.Result = err.Error()
		if event != audit.Refused {
			e.Event = audit.Failed
		}
	}
	t.Audit.Note(e)
}
