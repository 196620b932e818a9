// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// finding is the result of a check of dra-sanity.
type finding struct{ Check, Outcome, Time, Detail string }

// sanity runs a command that ends with the path of dra-sanity, and returns the findings by check.
func (s *story) sanity(command []string, driver, node string, flags ...string) map[string]finding {
	s.Helper()
	command = slices.Concat(command, []string{
		"-o=json", "--kubeconfig=" + s.cluster.File("admin.kubeconfig"), "--driver=" + driver, "--node=" + node,
	}, flags)
	c := exec.CommandContext(s.Context(), command[0], command[1:]...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	var all []finding
	if wrong := json.Unmarshal(out, &all); wrong != nil {
		s.Fatalf("dra-sanity: %v: %v: %s%s", err, wrong, out, errs.String())
	}
	by := make(map[string]finding)
	bad := false
	for _, f := range all {
		by[f.Check] = f
		bad = bad || f.Outcome == "FAIL"
	}
	if bad != (err != nil) {
		s.Errorf("dra-sanity has a failed check: %v; it ended with: %v", bad, err)
	}
	return by
}

// expect compares findings with the checks that have to fail, and logs all. No check may be skipped.
func (s *story) expect(all map[string]finding, failures ...string) {
	s.Helper()
	for _, check := range slices.Sorted(maps.Keys(all)) {
		f := all[check]
		want := "PASS"
		if slices.Contains(failures, check) {
			want = "FAIL"
		}
		s.Logf("%s %-22s %8s  %s", f.Outcome, f.Check, f.Time, f.Detail)
		if f.Outcome != want {
			s.Errorf("%s is %s, not %s", check, f.Outcome, want)
		}
	}
	if len(all) == 0 {
		s.Error("no check was run")
	}
}

// hook returns a shell command that calls do in this process, and fails if do fails. It needs bash.
func (s *story) hook(do func() error) string {
	s.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	s.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answer := "ok"
			if err := do(); err != nil {
				answer = err.Error()
			}
			fmt.Fprintln(c, answer)
			c.Close()
		}
	}()
	return fmt.Sprintf(`exec bash -c 'read -r answer </dev/tcp/127.0.0.1/%d; echo "$answer"; [ "$answer" = ok ]'`, l.Addr().(*net.TCPAddr).Port)
}

// driven is a driver in the mount namespace of a node, which dra-sanity restarts.
type driven struct {
	node   *Node
	start  func() (*process, error)
	daemon bool // metalplugd is a part of the driver
	now    *process
}

// restart kills the driver and starts it.
func (d *driven) restart() (err error) {
	d.now.kill()
	d.now, err = d.start()
	return err
}

// boot kills the driver, removes all CDI specs as a boot does, and starts the driver.
func (d *driven) boot() error {
	d.now.kill()
	if d.daemon {
		if err := d.node.StopDaemon(); err != nil {
			return err
		}
	}
	specs, err := filepath.Glob(d.node.path("run/cdi/*"))
	for _, spec := range specs {
		err = errors.Join(err, os.Remove(spec))
	}
	if d.daemon && err == nil {
		err = d.node.StartDaemon(context.Background())
	}
	return errors.Join(err, d.restart())
}

// sane runs all checks on a driver of a node.
func (s *story) sane(d *driven, name string, flags ...string) map[string]finding {
	s.Helper()
	var err error
	d.now, err = d.start()
	s.must(err)
	s.Cleanup(func() {
		if s.Failed() {
			s.Logf("%s", d.node.tails(d.now.name))
		}
		d.now.kill()
	})
	inside := []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", d.node.runtime.cmd.Process.Pid), "--", "/run/bin/dra-sanity"}
	return s.sanity(inside, name, d.node.Name, append(flags, "--cdi=/run/cdi", "--restart="+s.hook(d.restart), "--boot="+s.hook(d.boot))...)
}

func TestClaimSanity(t *testing.T) {
	s := tell(t, "dra-sanity finds no fault in metalplug-dra")
	node := s.start(NodeOptions{Name: s.label(""), Recording: widgets(70), Resources: `
[[resource]]
name = "example.org/shared"
class = "node"
match = { ID_SERIAL_SHORT = "W69" }
serve = "dra"
shares = 2
` + byClaim})
	s.expect(s.sane(&driven{node: node, start: func() (*process, error) { return node.startDriver() }, daemon: true}, "metalplug.io", "--wipe=10s"))
	s.step("all checks have passed")
}

// upstream is the name of the driver of Kubernetes' own tests.
const upstream = "test-driver.cdi.k8s.io"

// startUpstream starts the driver of Kubernetes' own tests with 40 devices.
func (n *Node) startUpstream() (*process, error) {
	if err := os.MkdirAll(n.path("var/lib/kubelet/plugins/"+upstream), 0o750); err != nil { // the driver does not create it
		return nil, err
	}
	return n.enter("dra-test-driver", "/run/bin/cluster/dra-test-driver", "kubelet-plugin", "--drivername="+upstream, "--num-devices=40",
		"--kubeconfig="+n.cluster.File("node-"+n.Name+".kubeconfig"), "--node-name="+n.Name, "--cdi-dir=/run/cdi")
}

// The driver of Kubernetes' own tests reports the health of a device only after a test has set it. It keeps the prepared claims in
// memory, so that after a restart it does not remove their CDI specs.
func TestClaimSanityUpstream(t *testing.T) {
	s := tell(t, "dra-sanity finds that Kubernetes' test driver leaves CDI specs after its restart")
	node := s.start(NodeOptions{Name: s.label(""), Resources: byClaim})
	all := s.sane(&driven{node: node, start: node.startUpstream}, upstream, "--wipe=2m", "--timeout=20s")
	if shares := all["prepare/shares"]; shares.Outcome != "SKIP" { // the driver has no device for several claims
		s.Errorf("%+v", shares)
	}
	delete(all, "prepare/shares")
	s.expect(all, "health/first", "restart/unprepare")
	s.step("all other checks have passed")
}

func TestClaimSanityFaults(t *testing.T) {
	s := tell(t, "dra-sanity finds each fault of a driver by the check for it")
	s.expect(s.sanityOf(""))
	s.step("a driver without a fault passes all checks")
	for _, f := range []struct{ fault, check string }{
		{"type", "registration/info"},
		{"service", "registration/services"},
		{"notify", "registration/notify"},
		{"count", "slices/pools"},
		{"twins", "slices/devices"},
		{"bus", "slices/devices"},
		{"wipe", "slices/wipe"},
		{"other", "prepare/devices"},
		{"late spec", "prepare/cdi"},
		{"new name", "prepare/again"},
		{"race", "prepare/concurrent"},
		{"first", "prepare/batch"},
		{"empty", "prepare/empty"},
		{"owner", "prepare/shares"},
		{"share", "prepare/shares"},
		{"same name", "prepare/shares"},
		{"one file", "prepare/shares"},
		{"clears", "prepare/shares"},
		{"missing", "prepare/missing"},
		{"uid", "prepare/uid"},
		{"foreign", "prepare/foreign"},
		{"stays", "unprepare/cdi"},
		{"known", "unprepare/again"},
		{"known", "unprepare/unknown"},
		{"claim", "unprepare/deleted"},
		{"empty", "unprepare/empty"},
		{"owner", "unprepare/next"},
		{"eight", "limits/devices"},
		{"one file", "limits/calls"},
		{"health", "health/first"},
		{"future", "health/first"},
		{"renamed", "restart/slices"},
		{"recreated", "restart/slices"},
		{"forgets", "restart/prepare"},
		{"leaves", "restart/unprepare"},
		{"checkpoint", "boot/prepare"},
		{"known", "boot/unprepare"},
	} {
		s.expect(s.sanityOf(f.fault, "--run=^"+f.check+"$", "--timeout=1s", "--wipe=1s"), f.check)
	}
	s.step("each fault was found")
}

// sanityOf runs dra-sanity on a stub with a fault.
func (s *story) sanityOf(fault string, flags ...string) map[string]finding {
	s.Helper()
	d := s.stub(fault)
	defer d.close()
	return s.sanity([]string{s.cluster.program("dra-sanity")}, d.name, d.node, append(flags, "--settle=200ms", "--registration="+d.dir, "--cdi="+d.cdi(),
		"--restart="+s.hook(d.restart), "--boot="+s.hook(d.boot))...)
}
