// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// row is the number of pods in TestErased.
var row = flag.Int("row", 10, "pods in a row through one disk")

// diskSize is the size of the disk in TestErased, in bytes.
const diskSize = 16 << 20

// disk creates a loop device for this story.
func (s *story) disk() (node, file string) {
	s.Helper()
	file = filepath.Join(s.cluster.options.Dir, s.label(".disk"))
	s.must(os.WriteFile(file, nil, 0o600))
	s.must(os.Truncate(file, diskSize))
	out, err := exec.CommandContext(s.Context(), "losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		s.Fatalf("losetup: %v: %s", err, out)
	}
	node = strings.TrimSpace(string(out))
	s.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", node).CombinedOutput(); err != nil {
			s.Errorf("losetup: %v: %s", err, out)
		}
	})
	return node, file
}

// output returns the last line that the program of a pod has printed.
func (s *story) output(pod string) (line string) {
	s.Helper()
	s.await("no output of "+pod, func(ctx context.Context) error {
		text, err := s.cluster.Client.CoreV1().Pods(space).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil {
			return err
		}
		_, rest, _ := bytes.Cut(text, []byte("\n")) // skip the line with the devices of the container
		line = strings.TrimSpace(string(rest))
		if line == "" {
			return fmt.Errorf("its log is %q", text)
		}
		return nil
	})
	return line
}

// Each pod reads the whole disk, writes to all of it, and ends. All pods wait for the disk from the beginning.
func TestErased(t *testing.T) {
	s := tell(t, fmt.Sprintf("%d pods in a row write on one disk, and each finds it erased", *row))
	disk, file := s.disk()
	node := s.nodeOf(NodeOptions{Name: s.label(""), Disk: disk, Resources: fmt.Sprintf(`
[[resource]]
name = %q
class = "node"
match = { DEVNAME = %q }
[resource.reset]
method = "none"
scrub = "zero"
`, widget, disk)}, 1)
	var names []string
	for i := range *row {
		p := pod(node, s.label(fmt.Sprintf("-%d", i)), 1)
		p.Spec.Containers[0].Command = []string{"/run/bin/cluster/fill", disk}
		s.create(p)
		names = append(names, p.Name)
	}
	s.step("%d pods were created", *row)
	for left := names; len(left) > 0; {
		left = s.succeeded(left)
	}
	s.step("all have succeeded")
	for _, name := range names {
		if found := s.output(name); found != "blank" {
			s.Errorf("%s found %s", name, found)
		}
	}
	content, err := os.ReadFile(file)
	s.must(err)
	if !bytes.HasPrefix(content, []byte("data of process ")) {
		s.Errorf("the last pod has left %q", content[:64])
	}
}

// succeeded waits until at least one of these pods has succeeded, and returns the others.
func (s *story) succeeded(names []string) (others []string) {
	s.Helper()
	s.await("no pod has succeeded", func(ctx context.Context) error {
		others = nil
		pods, err := s.cluster.Client.CoreV1().Pods(space).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			switch {
			case !slices.Contains(names, p.Name) || p.Status.Phase == corev1.PodSucceeded:
			case p.Status.Phase == corev1.PodFailed:
				return fatal{fmt.Errorf("pod %s failed: %s %s", p.Name, p.Status.Reason, p.Status.Message)}
			default:
				others = append(others, p.Name)
			}
		}
		if len(others) == len(names) {
			return fmt.Errorf("%d wait", len(names))
		}
		return nil
	})
	return others
}
