// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/systemd"
)

// How bad a finding is.
const (
	levelOK   = "ok"
	levelSkip = "skip" // it could not be looked at, which says nothing of it
	levelWarn = "warn" // it works, or will until something happens
	levelFail = "fail" // something does not work
)

// finding is a line of the doctor's.
type finding struct {
	Level  string `json:"level"`
	Check  string `json:"check"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// doctor looks at everything on a machine that has kept devices from pods. A check that cannot be done is skipped, and
// never ok.
type doctor struct {
	machine
	ctx    context.Context
	client api.Client
	file   string        // the configuration file
	config config.Config // its content, or the defaults if it cannot be used

	units func(ctx context.Context, templates ...string) ([]systemd.Unusable, error) // nil if no systemd runs

	status  *api.Status // nil if the daemon does not answer
	devices []api.Device

	check string // the name of the check that is under way
	found []finding
}

// check is one thing that the doctor looks at.
type check struct {
	name     string
	daemon   bool // it needs an answer of the daemon
	hardware bool // it is about the hardware of this machine, and skips a recording
	// run notes what it finds. fine is the text of an ok where it finds nothing; without a text there is no line.
	run func(*doctor) (fine string)
}

// checks are all of them, in the order in which one thing depends on the other. The first that fails is most often the
// cause of those after it.
var checks = []check{
	{name: "configuration", run: (*doctor).checkConfiguration}, // our side
	{name: "daemon", run: (*doctor).checkDaemon},
	{name: "udev", hardware: true, run: (*doctor).checkUdev},
	{name: "drivers", hardware: true, run: (*doctor).checkDrivers},
	{name: "helper sockets", hardware: true, run: (*doctor).checkHelpers},
	{name: "units", run: (*doctor).checkUnits},
	{name: "sandbox", run: (*doctor).checkSandbox},
	{name: "kubelet", run: (*doctor).checkKubelet}, // the kubelet's
	{name: "kubelet's directories", run: (*doctor).checkRootDir},
	{name: "registration", daemon: true, run: (*doctor).checkRegistration},
	{name: "kubelet's count", daemon: true, run: (*doctor).checkCounts},
	{name: "kubelet's checkpoint", run: (*doctor).checkCheckpoint},
	{name: "refused containers", daemon: true, run: (*doctor).checkRefused},
	{name: "devices", daemon: true, run: (*doctor).checkDevices}, // the machine's
	{name: "/dev/char links", daemon: true, hardware: true, run: (*doctor).checkLinks},
	{name: "CDI", run: (*doctor).checkCDI},
	{name: "locked memory", run: (*doctor).checkMemlock},
	{name: "RDMA namespaces", hardware: true, run: (*doctor).checkRDMA},
	{name: "SELinux", run: (*doctor).checkSELinux},
}

// doctorCommand looks at everything that has ever kept devices from pods. It changes nothing and repairs nothing: a
// remedy is a line to be read before it is run.
func (o *operator) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose why pods do not get devices",
		Args:  cobra.NoArgs,
	}
	file := configFlag(cmd)
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := newDoctor(cmd.Context(), o, *file)
		found := d.examine()
		err := show(cmd.OutOrStdout(), *output, false, found, func(s *screen) { s.findings(found) })
		switch {
		case err != nil:
			return err
		case d.status == nil:
			return errSilent
		case slices.ContainsFunc(found, func(f finding) bool { return f.Level == levelFail }):
			return errFound
		}
		return nil
	}
	return cmd
}

// newDoctor returns a doctor for this machine, with the configuration in a file.
func newDoctor(ctx context.Context, o *operator, file string) *doctor {
	d := &doctor{ctx: ctx, file: file, machine: thisMachine()}
	if systemd.Booted() {
		d.units = systemd.Units{}.Unusable
	}
	d.config, d.client = o.configured(file)
	return d
}

// errSilent is the error of a daemon that does not answer, which was shown.
var errSilent = errors.New("the daemon does not answer")

// examine does all checks.
func (d *doctor) examine() []finding {
	for _, c := range checks {
		d.do(c)
	}
	return d.found
}

// do does one check.
func (d *doctor) do(c check) {
	before, fine := len(d.found), ""
	d.check = c.name
	switch {
	case d.status != nil && d.status.Preview && !c.daemon:
		d.skip("run it without --socket and METALPLUG_SOCKET", "the daemon is a preview, not that of this node")
	case c.daemon && d.status == nil:
		d.skip("see above what is said of the daemon", "the daemon does not answer")
	case c.hardware && recorded(d.status):
		d.skip("run it on the machine that was recorded", "the hardware is a recording")
	default:
		fine = c.run(d)
	}
	if len(d.found) == before && fine != "" {
		d.ok("%s", fine)
	}
}

// note adds a finding of the check that is under way.
func (d *doctor) note(level, remedy, text string) {
	d.found = append(d.found, finding{Level: level, Check: d.check, Text: text, Remedy: remedy})
}

// ok notes that something is as it should be.
func (d *doctor) ok(format string, args ...any) { d.note(levelOK, "", fmt.Sprintf(format, args...)) }

// skip notes that something could not be looked at, with what would help.
func (d *doctor) skip(remedy, format string, args ...any) {
	d.note(levelSkip, remedy, "not checked: "+fmt.Sprintf(format, args...))
}

// warn notes what will matter later, with what cures it.
func (d *doctor) warn(remedy, format string, args ...any) {
	d.note(levelWarn, remedy, fmt.Sprintf(format, args...))
}

// fail notes what keeps a device from pods now, with what cures it.
func (d *doctor) fail(remedy, format string, args ...any) {
	d.note(levelFail, remedy, fmt.Sprintf(format, args...))
}

// findings writes the findings, the failures first, and how many there are of each kind. Checks that could not be done for
// one reason share a line.
func (s *screen) findings(all []finding) {
	counts := make(map[string]int)
	skipped := make(map[finding][]string) // the checks, by what is said of them
	for _, f := range all {
		counts[f.Level]++
		if check := f.Check; f.Level == levelSkip {
			f.Check = ""
			skipped[f] = append(skipped[f], check)
		}
	}
	for _, level := range []struct{ name, colour string }{{levelFail, red}, {levelWarn, yellow}, {levelSkip, bold}, {levelOK, green}} {
		for _, f := range all {
			if f.Level != level.name {
				continue
			}
			if f.Level == levelSkip {
				f.Check = ""
				checks := skipped[f]
				if delete(skipped, f); checks == nil {
					continue
				}
				f.Check = strings.Join(checks, ", ")
			}
			s.line(fmt.Sprintf("%-5s ", f.Level), level.colour, f.Check+": "+f.Text)
			if f.Remedy != "" {
				s.line("      -> ", bold, f.Remedy)
			}
		}
	}
	fmt.Fprintf(s, "\n%d ok, %d not checked, %d warnings, %d failed\n",
		counts[levelOK], counts[levelSkip], counts[levelWarn], counts[levelFail])
}
