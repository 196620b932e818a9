// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// A resource that is held back shows with its cause and what to do, and is no fault of this machine.
func TestHeldBackIsShown(t *testing.T) {
	const cause = "another plugin serves nvidia.com/gpu: the kubelet counts GPU-x"
	r := control.Resource{Name: "nvidia.com/gpu", Class: "gpu", Shares: 1, Optional: true, Totals: control.Totals{Healthy: 2}, Status: plugin.Status{Held: cause}}
	status := control.Status{Ready: true, Resources: []control.Resource{r}, Devices: control.Totals{Healthy: 2}}
	if !allWell(status) {
		t.Error("status says that something is wrong")
	}
	s := screen{}
	s.status(status, time.Now())
	for _, want := range []string{"2 of 2 healthy; held back", "nvidia.com/gpu is held back: " + cause, "-> " + endOther} {
		if !strings.Contains(s.String(), want) {
			t.Errorf("status does not say %q:\n%s", want, s.String())
		}
	}
	s = screen{}
	s.devices([]control.Device{{ID: "GPU-1", Resource: r.Name, Class: "gpu", Health: "Healthy"}}, []control.Resource{r}, false)
	if !strings.Contains(s.String(), "held back: "+cause) {
		t.Errorf("list does not say why:\n%s", s.String())
	}
}
