// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slowReset makes the helper that erases disks wait while the file run/slow of the node exists. Each helper that waits creates a
// file in run/waiting.
func (s *story) slowReset(node *Node) {
	s.Helper()
	const script = `#!/bin/sh
if test -e /run/slow; then
	touch /run/waiting/$$
	while test -e /run/slow; do sleep 0.05; done
fi
exec /run/real/metalplug-reset
`
	s.must(os.Mkdir(node.path("run/waiting"), 0o700))
	s.must(os.Mkdir(node.path("run/real"), 0o700)) // the helper starts another one from its own directory
	s.must(os.WriteFile(node.path("run/slow-reset"), []byte(script), 0o700))
	s.must(node.inside(func() error {
		if err := unix.Mount("/run/bin", "/run/real", "", unix.MS_BIND, ""); err != nil {
			return err
		}
		return unix.Mount("/run/slow-reset", "/run/bin/metalplug-reset", "", unix.MS_BIND, "")
	}))
}

// audited returns the number of entries with an event in the audit log of the node, and the tenants in these entries.
func (s *story) audited(node *Node, event string) (n int, tenants []string) {
	s.Helper()
	text, err := os.ReadFile(node.path("var/lib/metalplug/audit.jsonl"))
	s.must(err)
	for line := range bytes.Lines(text) {
		var entry struct {
			Event string
			Pods  []string `json:"podUIDs"`
		}
		s.must(json.Unmarshal(line, &entry))
		if entry.Event == event {
			n++
			tenants = append(tenants, entry.Pods...)
		}
	}
	return n, tenants
}

// The helper of the killed metalplugd begins after metalplugd has ended. This helper must not erase the disk.
func TestClaimDaemonKilled(t *testing.T) {
	s := tell(t, "metalplugd is killed while a disk is erased for a claim, and the disk is erased once and given to one pod")
	disk, _ := s.disk()
	node, _ := s.claims(NodeOptions{Disk: disk, Resources: erasedByClaim(disk)}, 1)
	s.slowReset(node)
	program := shell(fmt.Sprintf(`cmp -s -n %[2]d %[1]s /dev/zero && found=blank || found=data
dd if=/dev/urandom of=/run/tmp/written bs=1M count=16 status=none; dd if=/run/tmp/written of=%[1]s bs=1M conv=fsync status=none
sleep 3; cmp -s -n %[2]d %[1]s /run/tmp/written && echo $found kept || echo $found lost`, disk, diskSize))
	var pods []*corev1.Pod
	for i := range 3 {
		pods = append(pods, claiming(node, s.label(fmt.Sprintf("-%d", i))))
		pods[i].Spec.Containers[0].Command = program
	}
	s.create(pods[0])
	s.phase(pods[0].Name, corev1.PodSucceeded)
	s.await("the disk is not free", func(ctx context.Context) error {
		out, err := node.Ctl(ctx, "list", "-o", "json")
		if err == nil && !bytes.Contains([]byte(out), []byte(`"state": "free"`)) {
			err = fmt.Errorf("the devices are %s", out)
		}
		return err
	})
	s.step("a pod has written on the disk and has ended")
	s.must(os.WriteFile(node.path("run/slow"), nil, 0o600))
	s.create(pods[1])
	s.create(pods[2])
	var helpers []os.DirEntry
	s.await("the disk is not being erased", func(context.Context) (err error) {
		if helpers, err = os.ReadDir(node.path("run/waiting")); err == nil && len(helpers) == 0 {
			err = errors.New("no helper waits")
		}
		return err
	})
	node.daemon.kill()
	s.step("metalplugd was killed while the disk was erased for the claim of the next pod")
	s.must(os.Remove(node.path("run/slow")))
	s.await("a helper of the killed metalplugd still runs", func(context.Context) error {
		for _, h := range helpers {
			if _, err := os.Stat("/proc/" + h.Name()); err == nil {
				return fmt.Errorf("process %s", h.Name())
			}
		}
		return nil
	})
	s.must(node.StartDaemon(s.Context()))
	for left := []string{pods[1].Name, pods[2].Name}; len(left) > 0; {
		left = s.succeeded(left)
	}
	for _, p := range pods {
		if found := s.output(p.Name); found != "blank kept" {
			s.Errorf("%s found and left: %s", p.Name, found)
		}
	}
	erased, _ := s.audited(node, "erased")
	started, tenants := s.audited(node, "started")
	if slices.Sort(tenants); erased != 2 || started != 3 || len(slices.Compact(tenants)) != 3 {
		s.Errorf("the disk was erased %d times, and started %d times for %v", erased, started, tenants)
	}
	s.step("metalplugd was started, two more pods have used the disk, and each has found it erased and has kept its data")
}

func TestClaimNodeDeleted(t *testing.T) {
	s := tell(t, "the Node is deleted while its kubelet runs, and metalplug-dra publishes its devices for the next Node")
	node, driver := s.claims(NodeOptions{Recording: widgets(2), Resources: byClaim}, 2)
	nodes := s.cluster.Client.CoreV1().Nodes()
	s.must(nodes.Delete(s.Context(), node.Name, metav1.DeleteOptions{}))
	s.await("metalplug-dra publishes devices without a Node", func(context.Context) error {
		if all, log := s.identities(node), node.tails("metalplug-dra"); len(all) > 0 || !bytes.Contains([]byte(log), []byte("not found")) {
			return fmt.Errorf("the slices are %v, and the log is %s", all, log)
		}
		return nil
	})
	s.step("the Node was deleted, and has no slices")
	next, err := nodes.Create(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}, metav1.CreateOptions{})
	s.must(err)
	s.published(node, 2)
	all, err := s.slicesOf(s.Context(), node)
	s.must(err)
	for _, slice := range all {
		if uid := slice.OwnerReferences[0].UID; uid != next.UID {
			s.Errorf("slice %s belongs to Node %s instead of %s", slice.Name, uid, next.UID)
		}
	}
	if !driver.alive() {
		s.Error("the driver has ended")
	}
	s.step("the Node was created again, and has the devices")
	node.KillKubelet()
	s.must(node.StartKubelet())
	s.must(node.AwaitReady(s.Context()))
	p := claiming(node, s.label(""))
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	s.step("a pod runs with a claim")
}
