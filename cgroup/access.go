// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Any is the major or minor number of a [Rule] that holds for all.
const Any = -1

// Rule is a line of devices.list of cgroup version 1: what the processes in a cgroup may do with device nodes
// (Documentation/admin-guide/cgroup-v1/devices.rst).
type Rule struct {
	Kind         byte   // 'a' for all devices, 'b' for block devices, 'c' for character devices
	Major, Minor int64  // or [Any]
	Access       string // of "r" to read, "w" to write and "m" to make nodes
}

// Allows tells whether a rule allows all of an access, such as "rw", to a device. In a list with a rule of the kind 'a'
// the kernel leaves out what is denied besides: there it is only a guess.
func (r Rule) Allows(n Number, access string) bool {
	switch {
	case r.Kind == 'b' && !n.Block, r.Kind == 'c' && n.Block:
		return false
	case r.Major != Any && r.Major != int64(n.Major), r.Minor != Any && r.Minor != int64(n.Minor):
		return false
	}
	return strings.Trim(access, r.Access) == ""
}

// Access returns what the device cgroup allows the processes in a cgroup, given by its path in /proc/PID/cgroup. root is
// where the cgroups are ("/sys/fs/cgroup"). Who has a node open already keeps it, whatever is allowed.
//
// The error is [errors.ErrUnsupported] with cgroup version 2: there a BPF program decides, which nobody without CAP_BPF
// can ask for, and which says yes or no but not what it would say to something else.
func Access(root, path string) ([]Rule, error) {
	if _, err := os.Stat(filepath.Join(root, controllersFile)); err == nil {
		return nil, fmt.Errorf("read device access of %s: %w: on cgroup version 2 it is a BPF program, not readable without CAP_BPF",
			path, errors.ErrUnsupported)
	}
	inside := strings.TrimPrefix(path, "/")
	if inside != "" && !filepath.IsLocal(inside) {
		return nil, fmt.Errorf("read device access of %s: %w: it is outside of this cgroup namespace", path, fs.ErrNotExist)
	}
	text, err := os.ReadFile(filepath.Join(root, "devices", inside, "devices.list"))
	if err != nil {
		return nil, fmt.Errorf("read device access of %s: %w", path, err)
	}
	var rules []Rule
	for line := range strings.Lines(string(text)) {
		rule, ok := parseRule(strings.TrimSuffix(line, "\n"))
		if !ok {
			return nil, fmt.Errorf("read device access of %s: malformed line %q", path, line)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// parseRule reads a line, "c 1:3 rwm" or "a *:* rwm".
func parseRule(line string) (r Rule, ok bool) {
	kind, rest, _ := strings.Cut(line, " ")
	numbers, access, _ := strings.Cut(rest, " ")
	major, minor, ok := strings.Cut(numbers, ":")
	if !ok || len(kind) != 1 || !strings.Contains("abc", kind) || access == "" || strings.Trim(access, "rwm") != "" {
		return Rule{}, false
	}
	r = Rule{Kind: kind[0], Access: access}
	if r.Major, ok = parseHalf(major); !ok {
		return Rule{}, false
	}
	r.Minor, ok = parseHalf(minor)
	return r, ok
}

func parseHalf(number string) (int64, bool) {
	if number == "*" {
		return Any, true
	}
	n, err := strconv.ParseUint(number, 10, 32)
	return int64(n), err == nil
}
