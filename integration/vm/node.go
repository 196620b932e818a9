//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"strings"
)

// NodePackages are the Debian packages of a machine that is a Kubernetes node.
var NodePackages = []string{"containerd", "runc"}

// NodeImage is the only container image of a node. It contains busybox as /bin/sh.
const NodeImage = "localhost/busybox:1"

// manifests is the directory of the kubelet's static pods.
const manifests = "/etc/kubernetes/manifests"

// nodeFiles make a machine a node. There is no API server, no registry, and no network except inside the machine.
var nodeFiles = map[string]string{
	"/etc/containerd/config.toml": `version = 2

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + NodeImage + `"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
options = { SystemdCgroup = true }
`,
	"/etc/kubernetes/kubelet.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: ` + manifests + `
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: systemd
failSwapOn: false
localStorageCapacityIsolation: false
authentication:
  anonymous: {enabled: true}
  webhook: {enabled: false}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%"}
runtimeRequestTimeout: 10m
`,
	"/etc/systemd/system/kubelet.service": `[Unit]
Description=Kubelet of the integration tests
Wants=containerd.service
After=containerd.service

[Service]
ExecStart=/usr/local/bin/kubelet --config=/etc/kubernetes/kubelet.yaml
Restart=always
RestartSec=1
KillMode=process

[Install]
WantedBy=multi-user.target
`,
}

// importImage creates an image from the machine's busybox. The image has one layer, in the format of "docker save" (moby
// image specification, v1.2). Its default command only waits, so it also serves as the sandbox image.
const importImage = `set -eu
mkdir -p /run/image/layer/bin; cd /run/image
cp /bin/busybox layer/bin/
for name in sh dd sleep ls tr; do ln -s busybox layer/bin/$name; done
tar -C layer -cf layer.tar bin
printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/bin/sleep","2000000000"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
	$(sha256sum layer.tar | cut -d' ' -f1) >config.json
printf '[{"Config":"config.json","RepoTags":["` + NodeImage + `"],"Layers":["layer.tar"]}]' >manifest.json
tar -cf image.tar manifest.json config.json layer.tar
ctr --namespace k8s.io images import image.tar
rm -r /run/image`

// InstallNode installs a kubelet and the image in a machine with NodePackages. The kubelet is enabled, but not started.
func (m *Machine) InstallNode() {
	m.t.Helper()
	m.Push(Build(m.t, "integration/kubelet", false), "/usr/local/bin/kubelet")
	m.Run("mkdir", "-p", manifests, "/etc/containerd")
	for file, content := range nodeFiles {
		m.Write(file, content)
	}
	m.Run("systemctl", "daemon-reload")
	m.Run("systemctl", "enable", "kubelet")
	m.Run("systemctl", "restart", "containerd")
	m.Sh(importImage)
}

// StaticPod creates a pod with one container that runs a script and has devices of a resource. It does not wait for the
// pod.
func (m *Machine) StaticPod(name, resource string, count int, script string) {
	m.t.Helper()
	m.Write("/tmp/"+name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    command: ["/bin/sh", "-c", %q]
    resources: {limits: {%s: %d}}
`, name, NodeImage, script, resource, count))
	m.Run("mv", "/tmp/"+name+".yaml", manifests+"/") // the kubelet must not see a part of the file
}

// RemoveStaticPod removes a pod. It does not wait for its end.
func (m *Machine) RemoveStaticPod(name string) {
	m.t.Helper()
	m.Run("rm", manifests+"/"+name+".yaml")
}

// PodLog returns the output of a pod's container after the given number of restarts. The kubelet keeps only the log of
// the previous container.
func (m *Machine) PodLog(name string, restarts int) string {
	m.t.Helper()
	var said strings.Builder
	out := m.Try("sh", "-c", fmt.Sprintf("cat /var/log/pods/default_%s-*/main/%d.log", name, restarts)).Stdout
	for line := range strings.Lines(out) {
		if f := strings.SplitN(line, " ", 4); len(f) == 4 { // time, stream, F or P, text
			said.WriteString(f[3])
		}
	}
	return said.String()
}
