// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
)

// FillImage is the image for a node with containerd. It contains only the program /fill, and also serves as the sandbox of
// pods.
const FillImage = "localhost/fill:1"

// containerdConfig is the configuration of containerd. There is no CNI plugin, so pods must use the network of the host.
const containerdConfig = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "` + FillImage + `"

[plugins."io.containerd.cri.v1.runtime"]
cdi_spec_dirs = ["/run/cdi"]
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/var/lib/cni"]
conf_dir = "/var/lib/cni"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "/run/bin/cluster/containerd-shim-runc-v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
`

// cniConfig names a CNI plugin that does not exist. A pod in the network of the host does not need it.
const cniConfig = `{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "none"}]}`

// cgroup is the parent cgroup of the node's pods and container runtime. cleaner.sh removes it.
func (n *Node) cgroup() string { return filepath.Join(n.cluster.cgroup(), n.Name) }

// cgroup is the parent cgroup of all nodes.
func (c *Cluster) cgroup() string { return filepath.Base(c.options.Dir) }

// prepareContainerd creates the cgroups, the configuration and the image for containerd.
func (n *Node) prepareContainerd() error {
	for _, need := range []string{"runc", n.cluster.program("cluster/containerd")} {
		if _, err := exec.LookPath(need); err != nil {
			return fmt.Errorf("a node with containerd needs %s: %w -> apt-get install runc; make cluster-containerd", need, err)
		}
	}
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		return err
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return errors.New("a node with containerd needs cgroups of version 1")
	}
	for _, file := range hierarchies {
		if err := os.MkdirAll(filepath.Join(filepath.Dir(file), n.cgroup(), "runtime"), 0o755); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(n.path("var/lib/cni"), 0o755); err != nil {
		return err
	}
	program, err := os.ReadFile(n.cluster.program("cluster/fill"))
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(n.path("var/lib/containerd.toml"), []byte(containerdConfig), 0o600),
		os.WriteFile(n.path("var/lib/cni/none.conflist"), []byte(cniConfig), 0o600),
		os.WriteFile(n.path("var/lib/image.tar"), image(program), 0o600))
}

// importImage imports the image into containerd.
func (n *Node) importImage() error {
	ctr, err := n.enter("ctr", "/run/bin/cluster/ctr", "--namespace", "k8s.io", "images", "import", "/var/lib/image.tar")
	if err != nil {
		return err
	}
	<-ctr.done
	if !ctr.cmd.ProcessState.Success() {
		return fmt.Errorf("import the image: %w", ctr.ended())
	}
	return nil
}

// removeCgroup kills all processes of the node's cgroup. Shims and containers outlive containerd.
func (n *Node) removeCgroup() error {
	if out, err := exec.Command("sh", "-c", cleanerScript, "cleaner.sh", n.cgroup()).CombinedOutput(); err != nil {
		return fmt.Errorf("remove the cgroup %s: %w: %s", n.cgroup(), err, out)
	}
	return nil
}

// image returns an image of one program in the format of "docker save" (moby's image specification, v1.2).
func image(program []byte) []byte {
	layer := archive(map[string][]byte{"fill": program})
	config := marshal(map[string]any{
		"architecture": goruntime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/fill"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(layer)}},
	})
	manifest := marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{FillImage}, "Layers": []string{"layer.tar"}}})
	return archive(map[string][]byte{"config.json": config, "layer.tar": layer, "manifest.json": manifest})
}

func sum(content []byte) string {
	s := sha256.Sum256(content)
	return hex.EncodeToString(s[:])
}

func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps, lists and strings have JSON
	}
	return text
}

// archive returns a tar archive of executable files.
func archive(files map[string][]byte) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))})
		if _, more := w.Write(content); err != nil || more != nil {
			panic(errors.Join(err, more)) // a write to a buffer never fails
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}
