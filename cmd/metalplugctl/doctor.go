// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
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

// doctor looks at everything on a machine that has kept devices from pods: each check is there because somebody has
// searched for it for hours. What cannot be looked at is skipped, which is said, and never in order. The
// functions at the end are the machine's own; a test has others.
type doctor struct {
	ctx    context.Context
	client control.Client
	file   string        // the configuration file
	config config.Config // what is in it; the defaults where it cannot be used
	root   string        // where the machine's files are, empty: /
	uid    int           // whose rights it has

	status  *control.Status // nil: the daemon does not answer
	devices []control.Device

	label  func(name string) (string, error)                                          // the SELinux label of a file
	units  func(ctx context.Context, templates ...string) ([]systemd.Unusable, error) // nil: no systemd runs
	number func(node string) (kind string, number string, ok bool)                    // "char" or "block", and MAJOR:MINOR of a node
}

// checks are all of them, in the order in which one thing depends on the other: the first that fails is most often the
// cause of those after it.
func (d *doctor) checks() []func() []finding {
	return []func() []finding{
		d.checkConfiguration, d.checkDaemon, d.checkUdev, d.checkDrivers, d.checkHelpers, d.checkUnits, d.checkSandbox, // our side
		d.checkKubelet, d.checkRootDir, d.checkRegistration, d.checkCounts, d.checkCheckpoint, d.checkRefused, // the kubelet's
		d.checkDevices, d.checkLinks, d.checkCgroupDriver, d.checkCDI, d.checkMemlock, d.checkRDMA, d.checkSELinux,
	}
}

// doctorCommand looks at everything that has ever kept devices from pods. It changes nothing and repairs nothing: a
// remedy is a line to be read before it is run.
func (o *operator) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what keeps devices from pods, and how to cure it",
		Long: `Find out what keeps devices from pods, and how to cure it. Every line is ok, warn or fail, with a remedy below, what has
failed first; skip is what could not be checked. What can be told without the daemon is told without it; as root more can
be. The configuration is the one that the running daemon reads, unless another is named.

Exit code 1: a line is fail; 3: the daemon does not answer.`,
		Args: noArgs,
	}
	file := cmd.Flags().String("config", "", "configuration `FILE`; if not given: that of the running daemon, or else the default one")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := &doctor{ctx: cmd.Context(), file: *file, uid: os.Geteuid(), label: selinuxLabel, number: nodeNumber}
		if systemd.Booted() {
			d.units = systemd.Units{}.Unusable
		}
		if d.file == "" {
			d.file, _ = o.runningFile(d.ctx)
		}
		d.config, d.client = o.configured(d.file)
		found := d.examine()
		err := show(cmd, *output, found, func(s *screen) { s.findings(found) })
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

// fileLimit is how long a daemon may take to say which file it reads: it says so from memory.
const fileLimit = 5 * time.Second

// runningFile returns the configuration file of the daemon that answers; the default one if none does.
func (o *operator) runningFile(ctx context.Context) (file string, answers bool) {
	ctx, cancel := context.WithTimeout(ctx, fileLimit)
	defer cancel()
	var status control.Status
	if err := o.client().Get(ctx, "/v1/status", &status); err != nil {
		return config.DefaultFile, false // why is not what was asked
	}
	return cmp.Or(status.Configuration.File, config.DefaultFile), true
}

// configured returns the configuration in a file, or the defaults, and a client for the daemon that it configures.
func (o *operator) configured(file string) (config.Config, control.Client) {
	c, err := config.Load(file)
	if err != nil {
		c = config.Default()
	}
	client := control.Client{Socket: filepath.Join(c.Paths.Run, controlSocket)}
	if o.socket != "" {
		client.Socket = o.socket
	}
	return c, client
}

// examine does all checks.
func (d *doctor) examine() []finding {
	var all []finding
	for _, check := range d.checks() {
		all = append(all, check()...)
	}
	return all
}

// path returns where a file of the machine is.
func (d *doctor) path(name string) string { return filepath.Join(d.root, name) }

// ok, warn and fail make the findings of a check: of one, since most checks have one thing to say.
func ok(check, format string, args ...any) []finding {
	return []finding{{Level: levelOK, Check: check, Text: fmt.Sprintf(format, args...)}}
}

// skip makes a finding that something could not be looked at, with what would help.
func skip(check, remedy, format string, args ...any) []finding {
	return []finding{{Level: levelSkip, Check: check, Text: "not checked: " + fmt.Sprintf(format, args...), Remedy: remedy}}
}

// unread is what to do about a file that could not be read: to become root, where that is what it lacks, or what else there
// is.
func (d *doctor) unread(err error, otherwise string) string {
	const denied = "it is denied even to root, as by SELinux or in a namespace: run it on the node itself; ausearch -m avc -ts recent"
	switch {
	case !errors.Is(err, fs.ErrPermission):
		return otherwise
	case d.uid == 0:
		return cmp.Or(otherwise, denied)
	case otherwise == "":
		return "run it as root"
	}
	return "run it as root; or " + otherwise
}

// silent is the finding of a check that needs the daemon where that does not answer.
func silent(check string) []finding {
	return skip(check, "see above what is said of the daemon", "the daemon does not answer")
}

// foreign is the finding of a check that is about this machine where the hardware is another's.
func foreign(check string) []finding {
	return skip(check, "run it on the machine that was recorded", "the hardware is a recording")
}

// warn makes a finding that will matter later, with what cures it.
func warn(check, remedy, format string, args ...any) []finding {
	return []finding{{Level: levelWarn, Check: check, Text: fmt.Sprintf(format, args...), Remedy: remedy}}
}

// fail makes a finding that keeps a device from pods now, with what cures it.
func fail(check, remedy, format string, args ...any) []finding {
	return []finding{{Level: levelFail, Check: check, Text: fmt.Sprintf(format, args...), Remedy: remedy}}
}

// findings writes them, what has failed first, and how many there are of what kind.
func (s *screen) findings(all []finding) {
	counts := make(map[string]int)
	levels := []string{levelFail, levelWarn, levelSkip, levelOK}
	all = slices.SortedStableFunc(slices.Values(all), func(a, b finding) int {
		return cmp.Compare(slices.Index(levels, a.Level), slices.Index(levels, b.Level))
	})
	colours := map[string]string{levelOK: green, levelSkip: bold, levelWarn: yellow, levelFail: red}
	for _, f := range all {
		counts[f.Level]++
	}
	for _, f := range merged(all) {
		s.paragraph(0, fmt.Sprintf("%-5s ", f.Level), colours[f.Level], f.Check+": "+f.Text)
		if f.Remedy != "" {
			s.paragraph(6, "-> ", bold, f.Remedy)
		}
	}
	s.WriteString("\n")
	s.paragraph(0, "", "", fmt.Sprintf("%d ok, %d not checked, %d to be warned of, %d failed",
		counts[levelOK], counts[levelSkip], counts[levelWarn], counts[levelFail]))
}

// merged makes one line of all that could not be checked for one reason.
func merged(all []finding) []finding {
	var lines []finding
	for _, f := range all {
		same := func(line finding) bool {
			return line.Level == levelSkip && line.Text == f.Text && line.Remedy == f.Remedy
		}
		if i := slices.IndexFunc(lines, same); i >= 0 {
			lines[i].Check += ", " + f.Check
			continue
		}
		lines = append(lines, f)
	}
	return lines
}

// offersClass tells whether any resource is of a class.
func (d *doctor) offersClass(class string) bool {
	return slices.ContainsFunc(d.config.Resources, func(r config.Resource) bool { return r.Class.Name == class })
}

// hasDevices tells whether a device of a class is offered.
func (d *doctor) hasDevices(class string) bool {
	return slices.ContainsFunc(d.devices, func(v control.Device) bool { return v.Class == class && v.Resource != "" })
}

// errSilent: that the daemon does not answer was shown.
var errSilent = errors.New("the daemon does not answer")

// selinuxLabel reads the label of a file.
func selinuxLabel(name string) (string, error) {
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(name, "security.selinux", buf)
	if err != nil {
		return "", err
	}
	for n > 0 && buf[n-1] == 0 {
		n--
	}
	return string(buf[:n]), nil
}

// nodeNumber reads what kind of node a file is, and its numbers.
func nodeNumber(name string) (kind, number string, ok bool) {
	var st unix.Stat_t
	if unix.Stat(name, &st) != nil {
		return "", "", false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		kind = "char"
	case unix.S_IFBLK:
		kind = "block"
	default:
		return "", "", false
	}
	return kind, fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), true
}
