// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
)

// TestHeldBackIsShown checks that the commands show a resource that is held back with its cause and a remedy. Such a
// resource is not a fault of the node.
func TestHeldBackIsShown(t *testing.T) {
	const cause = "another plugin serves nvidia.com/gpu: the kubelet counts GPU-x"
	r := api.Resource{Name: "nvidia.com/gpu", Class: "gpu", Shares: 1, Optional: true, Totals: api.Totals{Healthy: 2}, Registration: api.Registration{Held: cause}}
	status := api.Status{Ready: true, Resources: []api.Resource{r}, Devices: api.Totals{Healthy: 2}}
	if !allWell(status) {
		t.Error("status says that something is wrong")
	}
	s := screen{}
	s.writeStatus(status, time.Now())
	for _, want := range []string{"2 of 2 healthy; held back", "nvidia.com/gpu is held back: " + cause, "-> " + otherPluginRemedy} {
		if !strings.Contains(s.String(), want) {
			t.Errorf("status does not say %q:\n%s", want, s.String())
		}
	}
	s = screen{}
	s.writeDevices([]api.Device{{ID: "GPU-1", Resource: r.Name, Class: "gpu", Health: "Healthy"}}, []api.Resource{r}, false)
	if !strings.Contains(s.String(), "held back: "+cause) {
		t.Errorf("list does not say why:\n%s", s.String())
	}
}
