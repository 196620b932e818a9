// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/systemd/unitfile"
)

// Each finding has one of these levels.
const (
	levelOK   = "ok"
	levelSkip = "skip" // the check was not possible, so the checked part may or may not work
	levelWarn = "warn" // the checked part works, but may fail later
	levelFail = "fail" // the checked part does not work
)

// finding is the result of a check.
type finding struct {
	Level  string `json:"level"`
	Check  string `json:"check"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// doctor checks everything on a node that can withhold devices from pods. A check that cannot run counts as skipped, not as ok.
type doctor struct {
	machine
	ctx    context.Context
	client api.Client
	file   string        // path of the configuration file
	config config.Config // configuration in the file, or the defaults if the file has errors

	units func(templates ...string) []string // complaints about unit files, or nil if systemd is not running

	status  *api.Status // nil if metalplugd does not answer
	devices []api.Device
	askErr  error // why metalplugd does not answer, or nil

	check string // name of the current check
	found []finding
}

// check is one of the doctor's checks, with its requirements.
type check struct {
	name     string
	daemon   bool // whether the check needs answers from metalplugd
	node     bool // whether the check inspects this node or its kubelet; such a check does not run with a preview's socket
	hardware bool // whether the check inspects this node's hardware; this kind of check does not run with a recording
	// run performs the check and adds findings to the doctor. If run adds no finding but returns a text, the doctor adds an "ok"
	// finding with that text.
	run func(*doctor) (fine string)
}

// checks lists all checks, each after those that it depends on. If several checks fail, the first failure usually shows the
// cause.
var checks = []check{
	{name: "configuration", node: true, run: (*doctor).checkConfiguration}, // checks of metalplug itself
	{name: "daemon", run: (*doctor).checkDaemon},
	{name: "udev", node: true, hardware: true, run: (*doctor).checkUdev},
	{name: "drivers", node: true, hardware: true, run: (*doctor).checkDrivers},
	{name: "helper sockets", node: true, hardware: true, run: (*doctor).checkHelpers},
	{name: "units", node: true, run: (*doctor).checkUnits},
	{name: "sandbox", node: true, hardware: true, run: (*doctor).checkSandbox},
	{name: "kubelet", node: true, run: (*doctor).checkKubelet}, // checks of the kubelet
	{name: "kubelet's directories", node: true, run: (*doctor).checkRootDir},
	{name: "registration", daemon: true, run: (*doctor).checkRegistration},
	{name: "kubelet's count", node: true, daemon: true, run: (*doctor).checkCounts},
	{name: "kubelet's checkpoint", node: true, run: (*doctor).checkCheckpoint},
	{name: "claims", node: true, daemon: true, hardware: true, run: (*doctor).checkClaims},
	{name: "refused containers", daemon: true, run: (*doctor).checkRefused},
	{name: "devices", daemon: true, run: (*doctor).checkDevices}, // checks of the node and its hardware
	{name: "CDI", node: true, run: (*doctor).checkCDI},
	{name: "locked memory", node: true, run: (*doctor).checkMemlock},
	{name: "SELinux", node: true, run: (*doctor).checkSELinux},
}

// doctorCommand checks everything that can withhold devices from pods. The command changes nothing, because operators should read
// a remedy before they apply it.
func (o *clientOptions) doctorCommand() *cobra.Command {
	cmd := newCommand("doctor")
	file := configFlag(cmd)
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := newDoctor(cmd.Context(), o, *file)
		found := d.examine()
		err := show(cmd.OutOrStdout(), *output, false, found, func(s *screen) { s.writeFindings(found) })
		if err == nil && d.status == nil {
			return errSilent
		}
		return cmp.Or(err, foundIf(slices.ContainsFunc(found, func(f finding) bool { return f.Level == levelFail })))
	}
	return cmd
}

// newDoctor returns a doctor for this node. The parameter file is the path of the configuration file.
func newDoctor(ctx context.Context, o *clientOptions, file string) *doctor {
	d := &doctor{ctx: ctx, file: file, machine: machine{label: selinuxLabel}}
	if unitfile.Booted() {
		d.units = unitfile.Complaints
	}
	d.config, d.client = o.loadConfig(file)
	return d
}

// errSilent means that metalplugd does not answer, which the output has already shown.
var errSilent = errors.New("the daemon does not answer")

// examine runs all checks.
func (d *doctor) examine() []finding {
	d.askErr = d.ask()
	for _, c := range checks {
		d.runCheck(c)
	}
	return d.found
}

// runCheck runs one check, or adds a finding with the reason why the check cannot run.
func (d *doctor) runCheck(c check) {
	before, fine := len(d.found), ""
	d.check = c.name
	switch {
	case d.status != nil && d.status.Preview && c.node:
		d.skip("run doctor without --socket and METALPLUG_SOCKET", "the socket belongs to a preview, not to the daemon of this node")
	case c.daemon && d.status == nil:
		d.skip("see the findings about the daemon above", "this check needs an answer from the daemon")
	case c.hardware && d.status != nil && strings.HasPrefix(d.status.Source, "recording:"):
		d.skip("run doctor on the machine that was recorded", "the hardware is simulated from a recording")
	default:
		fine = c.run(d)
	}
	if len(d.found) == before && fine != "" {
		d.pass("%s", fine)
	}
}

// note adds a finding to the results of the current check.
func (d *doctor) note(level, remedy, text string) {
	d.found = append(d.found, finding{Level: level, Check: d.check, Text: text, Remedy: remedy})
}

// pass adds a finding that the checked part works.
func (d *doctor) pass(format string, args ...any) { d.note(levelOK, "", fmt.Sprintf(format, args...)) }

// skip adds a finding that the check was not possible, with a remedy.
func (d *doctor) skip(remedy, format string, args ...any) {
	d.note(levelSkip, remedy, "not checked: "+fmt.Sprintf(format, args...))
}

// warn adds a finding, with a remedy, about a problem that may withhold devices from pods later.
func (d *doctor) warn(remedy, format string, args ...any) {
	d.note(levelWarn, remedy, fmt.Sprintf(format, args...))
}

// fail adds a finding, with a remedy, about a problem that withholds devices from pods now.
func (d *doctor) fail(remedy, format string, args ...any) {
	d.note(levelFail, remedy, fmt.Sprintf(format, args...))
}

// writeFindings prints all findings, failures first, and the number of findings at each level. Equal findings of several checks
// share a line.
func (s *screen) writeFindings(all []finding) {
	counts := make(map[string]int)
	checks := make(map[finding][]string) // maps a finding to the names of all checks that made it
	all = slices.Clone(all)
	for i, f := range all {
		all[i].Check = ""
		counts[f.Level]++
		checks[all[i]] = append(checks[all[i]], f.Check)
	}
	for _, level := range []struct{ name, colour string }{{levelFail, red}, {levelWarn, yellow}, {levelSkip, bold}, {levelOK, green}} {
		for _, f := range all {
			if f.Level != level.name || checks[f] == nil {
				continue
			}
			s.line(fmt.Sprintf("%-5s ", f.Level), level.colour, strings.Join(checks[f], ", ")+": "+f.Text)
			if f.Remedy != "" {
				s.line("      -> ", bold, f.Remedy)
			}
			delete(checks, f)
		}
	}
	fmt.Fprintf(s, "\n%d ok, %d not checked, %d with a warning, %d failed\n",
		counts[levelOK], counts[levelSkip], counts[levelWarn], counts[levelFail])
}
