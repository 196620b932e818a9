// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
)

// statusCommand shows the state of metalplugd in a few lines, so that an operator can paste them into a ticket.
func (o *clientOptions) statusCommand() *cobra.Command {
	cmd := newCommand("status")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var status api.Status
		if err := o.client().Get(cmd.Context(), "/v1/status", &status); err != nil {
			return err
		}
		if err := show(cmd.OutOrStdout(), *output, false, status, func(s *screen) { s.writeStatus(status, time.Now()) }); err != nil {
			return err
		}
		return foundIf(!allWell(status))
	}
	return cmd
}

// allWell reports whether metalplugd is ready and there are no problems. A refused reload and a file that metalplugd cannot
// write are problems. A device is a problem if it is neither healthy nor cordoned. A resource with devices is a problem if it
// is neither registered nor held back for another plugin.
func allWell(s api.Status) bool {
	for _, r := range s.Resources {
		if r.Expected() && !r.Connected && r.Held == "" {
			return false
		}
	}
	return s.Ready && s.Configuration.Problem == "" && len(s.Unwritten) == 0 && s.Devices.Unhealthy == s.Devices.Cordoned
}

// maxCordons is the maximum number of cordoned devices in the output. The command "list" shows all cordoned devices.
const maxCordons = 5

// writeStatus writes the state of metalplugd.
func (s *screen) writeStatus(v api.Status, now time.Time) {
	fact := func(name, text string) { s.line(fmt.Sprintf("%-14s", name), bold, text) }
	fact("metalplugd", fmt.Sprintf("%s, up %s", v.Version, formatDuration(time.Duration(v.Uptime*float64(time.Second)))))
	fact("hardware", v.Source)
	if !v.Ready {
		fact("", "not inspected yet")
	}
	fact("configuration", describeConfiguration(v.Configuration))
	for i, pending := range v.Configuration.Pending {
		fact("", pending)
		if i == len(v.Configuration.Pending)-1 {
			fact("", "-> "+restartRemedy)
		}
	}
	fact("devices", fmt.Sprintf("%d healthy, %d unhealthy, %d cordoned, %d held by pods, %d not offered",
		v.Devices.Healthy, v.Devices.Unhealthy-v.Devices.Cordoned, len(v.Cordons), v.Devices.Allocated, v.Devices.NotOffered))
	if r := v.Reading; r != nil {
		fact("reading", fmt.Sprintf("disks being read before they are offered: %d, %d %% done", r.Disks, r.Percent))
	}
	fact("events", eventLine(v.Events, now))
	for _, file := range v.Unwritten {
		fact("files", file)
	}
	for i, c := range v.Cordons {
		if i == maxCordons {
			fact("", fmt.Sprintf("and %d more: see 'metalplugctl list'", len(v.Cordons)-i))
			break
		}
		fact("cordoned", c.Device+": "+c.Reason+cordonedBy(&c.Cordon))
	}
	s.WriteString("\n")
	s.writeRegistrations(v.Resources)
	s.writeComplaints(v.Resources)
	if len(v.Refused) > 0 {
		s.WriteString("\nContainers that did not get their devices:\n")
		for _, r := range v.Refused {
			s.line("  ", "", fmt.Sprintf("%s ago, %s, %s: %s", formatDuration(now.Sub(r.Time)), r.Resource, r.Call, r.Reason))
		}
	}
}

// writeRegistrations writes the registration state of each resource.
func (s *screen) writeRegistrations(resources []api.Resource) {
	var rows [][]cell
	for _, r := range resources {
		if r.Expected() || r.Connected || r.ByClaim() {
			rows = append(rows, []cell{{r.Name, bold}, {text: resourceSummary(r)}})
		}
	}
	s.table("", rows...)
}

// writeComplaints writes the reasons why resources are held back or not connected. If several resources have the same reason,
// writeComplaints writes it only once.
func (s *screen) writeComplaints(resources []api.Resource) {
	var written []string
	for _, r := range resources {
		text := r.Complaint
		if r.Held != "" {
			text = r.Name + " is held back: " + r.Held
		} else if !r.Expected() || r.Connected || text == "" || slices.Contains(written, text) {
			continue
		}
		written = append(written, text)
		s.line("", "", "")
		s.line("", "", text)
		s.line("  -> ", bold, registrationRemedy(text))
	}
}
