// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
)

// whyCommand explains the state of one device. The explanation comes from metalplugd, and is based on metalplugd's current rules
// and state. If metalplugd is not running, "metalplugctl preview" can explain a configuration.
func (o *clientOptions) whyCommand() *cobra.Command {
	cmd := newCommand("why")
	cmd.ValidArgsFunction = o.deviceIDs
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var answer api.Answer
		if err := o.client().Get(cmd.Context(), "/v1/why?what="+url.QueryEscape(absolutePath(args[0])), &answer); err != nil {
			return err
		}
		err := show(cmd.OutOrStdout(), *output, false, answer, func(s *screen) { s.writeAnswer(answer) })
		return cmp.Or(err, foundIf(slices.ContainsFunc(answer.Found, isUnavailable)))
	}
	return cmd
}

// isUnavailable reports whether a problem with a device or its resource prevents pods from getting the device.
func isUnavailable(e api.Explanation) bool {
	return e.Device == nil || e.Device.Resource == "" || e.Device.Health != "Healthy" ||
		slices.ContainsFunc(e.Steps, func(s api.Step) bool { return !s.OK && s.What == "kubelet" })
}

// remedyFor returns the remedy for a device that pods cannot get, or "" if no remedy is valid on every node.
func remedyFor(e api.Explanation) string {
	at := slices.IndexFunc(e.Steps, func(s api.Step) bool { return !s.OK && s.What == "kubelet" })
	switch {
	case e.Device != nil && e.Device.Cordoned:
		return remedy(*e.Device)
	case at >= 0:
		return registrationRemedy(e.Steps[at].Why)
	case e.Would == "" && strings.HasPrefix(e.Verdict, "not offered: "+noResource):
		return "if pods need the device: change match or exclude of a resource, or add a [[resource]] that matches the device"
	}
	return ""
}

// absolutePath converts an argument that begins with a dot to an absolute path, because the shell completes relative paths.
func absolutePath(what string) string {
	if absolute, err := filepath.Abs(what); err == nil && strings.HasPrefix(what, ".") {
		return absolute
	}
	return what
}

// writeAnswer writes why a device is offered, or why it is not.
func (s *screen) writeAnswer(a api.Answer) {
	for i, e := range a.Found {
		if i > 0 {
			s.WriteString("\n")
		}
		name := e.SysPath
		if e.Device != nil {
			name = cmp.Or(e.Device.ID, name)
		}
		s.line("", "", name)
		for _, step := range e.Steps {
			mark, colour := "ok", green
			switch {
			case !step.OK && (step.What == "class" || step.What == "rule"):
				mark, colour = "--", "" // this step is not a failure, because the next class or rule may match
			case !step.OK:
				mark, colour = "NO", red
			}
			text := strings.TrimSpace(step.What+" "+step.Name) + ": " + step.Why
			if step.Where != "" {
				text += " (" + step.Where + ")"
			}
			s.line("  "+mark+"  ", colour, text)
		}
		s.line("  =>  ", bold, e.Verdict)
		if do := remedyFor(e); do != "" {
			s.line("      -> ", bold, do)
		}
		if e.Would != "" {
			s.line("      -> ", bold, "add this to a drop-in, such as "+filepath.Join(filepath.Dir(config.DefaultFile), dropInDir, "10-devices.toml"))
		}
		for line := range strings.Lines(e.Would) {
			s.line("         ", "", line)
		}
	}
}
