// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/internal/fsutil"
)

const (
	// defaultRoot is the default value of the kubelet's --root-dir (kubernetes v1.36 cmd/kubelet/app/options/options.go,
	// defaultRootDir).
	defaultRoot = "/var/lib/kubelet"
	// devicePluginDir is the kubelet's directory for device plugins. devicePluginDir is a constant in the kubelet, so --root-dir
	// does not change it (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1, constants.go; kubernetes#120626).
	devicePluginDir = "/var/lib/kubelet/device-plugins"
)

// checkKubelet checks the kubelet's directory and socket. The kubelet creates the directory when it first starts, and creates the
// socket at each start. The socket remains when the kubelet exits, so only a registration proves that a kubelet is running.
func (d *doctor) checkKubelet() (fine string) {
	dir := d.config.Paths.DevicePlugins
	socket := filepath.Join(dir, "kubelet.sock")
	elsewhere := "" // text for the remedy if the directory is not the default one
	if dir != devicePluginDir {
		elsewhere = "; or remove device_plugins from [paths]: the kubelet always uses " + devicePluginDir
	}
	info, err := os.Stat(d.path(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist) && !d.exists(dir): // the kubelet cannot start if its directory is a dangling link
		d.fail("start the kubelet: systemctl start kubelet, or k3s, k3s-agent, rke2-agent, k0sworker, microshift"+elsewhere,
			"%s is missing: the kubelet has never run on this node", dir)
	case errors.Is(err, fs.ErrPermission):
		d.skip(readRemedy(err, ""), "%s: %v", dir, fsutil.Cause(err))
	case err != nil && !errors.Is(err, unix.ENOTDIR):
		d.fail("ls -ld "+dir+elsewhere, "%s: %v", dir, fsutil.Cause(err))
	case err != nil || !info.IsDir():
		d.fail(moveFileRemedy+elsewhere, "%s: %v", dir, cmp.Or(fsutil.Cause(err), error(unix.ENOTDIR)))
	default:
		d.checkSocket(socket, "the kubelet is not running", "systemctl restart kubelet; if that fails: systemctl status kubelet")
	}
	return socket + " exists"
}

// checkRootDir compares the section [paths] of the configuration with the directories that the running kubelets use.
func (d *doctor) checkRootDir() (fine string) {
	here, elsewhere := d.kubelets()
	paths := d.config.Paths
	for _, p := range here {
		root := cmp.Or(p.flag("root-dir"), defaultRoot)
		podResources := filepath.Join(root, "pod-resources")
		moved, other := !d.isSameDirectory(paths.DevicePlugins, devicePluginDir), !d.isSameDirectory(filepath.Dir(paths.PodResources), podResources)
		if moved {
			d.fail("remove device_plugins from [paths]; then: "+restartRemedy, "%s always listens in %s, regardless of its --root-dir, but "+
				"paths.device_plugins is %s: nothing is registered", p, devicePluginDir, paths.DevicePlugins)
		}
		switch {
		case p.hidden && p.flag("root-dir") == "":
			d.pass("the --root-dir of %s is not visible; paths.pod_resources is %s", p, paths.PodResources)
		case other:
			d.fail(fmt.Sprintf("set paths.pod_resources = %q, and write the files of metalplugd(8), OTHER DIRECTORIES; then: %s",
				filepath.Join(podResources, "kubelet.sock"), restartRemedy), "%s has --root-dir %s, but paths.pod_resources is in %s: "+
				"the pods that hold devices are unknown", p, root, filepath.Dir(paths.PodResources))
		case !moved:
			d.pass("%s has --root-dir %s, which agrees with [paths]", p, root)
		}
	}
	for _, p := range elsewhere {
		d.skip("compare [paths] with the mounts of the kubelet: /proc/"+p.pid+"/mountinfo",
			"%s has its own mount namespace", p)
	}
	return ""
}

// checkRegistration checks that the kubelet has accepted each resource's registration and keeps the resource's stream open.
// Otherwise, the devices are not allocatable. Resources in the same state share a finding.
func (d *doctor) checkRegistration() (fine string) {
	names := make(map[finding][]string)
	var kinds []finding
	for _, r := range d.status.Resources {
		text, ok := r.KubeletState()
		f := finding{Level: levelOK, Text: text}
		switch {
		case ok:
		case r.Held != "":
			f.Level, f.Remedy = levelWarn, registrationRemedy(text)
		case r.Expected():
			f.Level, f.Remedy = levelFail, registrationRemedy(text)
		default:
			f.Text = "not registered with the kubelet, because there is no device"
		}
		if names[f] == nil {
			kinds = append(kinds, f)
		}
		names[f] = append(names[f], r.Name)
	}
	for _, f := range kinds {
		d.note(f.Level, f.Remedy, strings.Join(names[f], ", ")+": "+f.Text)
	}
	return ""
}

// checkCounts compares the kubelet's count of devices with the number that metalplugd offers. metalplugd asks the kubelet
// (PodResources v1, GetAllocatableResources), because only root can open the kubelet's socket, and the doctor may run as another
// user. The two numbers may differ for a few milliseconds after the device list changes.
func (d *doctor) checkCounts() (fine string) {
	var answer api.KubeletCounts
	if err := d.client.Get(d.ctx, "/v1/kubelet", &answer); err != nil {
		d.warn("check that the kubelet is running, and that paths.pod_resources is its socket", "the kubelet does not answer: %v", err)
		return ""
	}
	for _, r := range d.status.Resources {
		if id := answer.Foreign[r.Name]; r.Connected && id != "" {
			d.fail("stop the other plugin, or define a [[resource]] with another name",
				"%s: the kubelet counts %s, which metalplug does not offer: another plugin has also registered the resource", r.Name, id)
		} else if offered, counted := r.Healthy*max(1, r.Shares), answer.Allocatable[r.Name]; r.Connected && offered != counted {
			d.fail("systemctl restart metalplugd; if that does not help, systemctl restart kubelet",
				"%s: metalplug offers %d healthy devices, but the kubelet counts %d", r.Name, offered, counted)
		}
	}
	return "the kubelet counts the devices that metalplug offers"
}

// checkCheckpoint finds devices in the kubelet's checkpoint that metalplugd does not know. If the kubelet chooses an unknown
// device for a pod, the pod cannot start. metalplugd offers all devices in the checkpoint when it starts. An unknown device
// therefore means that the checkpoint is from another node, or that the device's resource was configured later.
func (d *doctor) checkCheckpoint() (fine string) {
	dir := d.path(d.config.Paths.DevicePlugins)
	_, err := os.Lstat(filepath.Join(dir, checkpoint.File))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return "absent: no pod has received a device yet"
	}
	given, _, err := checkpoint.Read(dir)
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.skip(readRemedy(err, ""), "only root can read the file: %v", fsutil.Cause(err))
		return ""
	case err != nil:
		d.fail("stop the kubelet, move the file away, and start the kubelet; the kubelet then admits its pods again", "%v", err)
		return ""
	case d.status == nil:
		d.skip("see the findings about the daemon above", "this check needs an answer from the daemon")
		return ""
	}
	for _, g := range given {
		configured := slices.ContainsFunc(d.status.Resources, func(r api.Resource) bool { return r.Name == g.ResourceName })
		id := checkpoint.Parent(g.Share)
		if configured && !slices.ContainsFunc(d.devices, func(v api.Device) bool { return v.ID == id }) {
			d.fail("delete the pod that holds the device: kubectl get pods -A --field-selector spec.nodeName=$HOSTNAME",
				"%s: the checkpoint lists %s for a pod, but this node has no such device", g.ResourceName, id)
		}
	}
	return "every device in the checkpoint is known"
}

// refusedPods describes the state of the pod after metalplugd has refused a call from the kubelet. The calls for claims are
// prepare and unprepare.
var refusedPods = map[string]string{
	"Allocate": "the pod is in UnexpectedAdmissionError", "PreStartContainer": "the pod waits in CreateContainerConfigError",
	"prepare": "the pod waits in ContainerCreating", "unprepare": "the pod waits in Terminating",
}

// checkRefused reports the containers and claims for which metalplugd refused a call of the kubelet. metalplugd records these
// refusals, because the kubelet reports them only to an API server.
func (d *doctor) checkRefused() (fine string) {
	for _, r := range d.status.Refused {
		d.warn("fix the cause; delete a pod in UnexpectedAdmissionError",
			"%s ago, %s: %s (%s)", formatDuration(time.Since(r.Time)), r.Resource, r.Reason, refusedPods[r.Call])
	}
	return "none recently"
}

// driverProgram is where the package metalplug-dra installs its program.
const driverProgram = "/usr/sbin/metalplug-dra"

// checkClaims checks the driver for Dynamic Resource Allocation if a resource has serve = "dra", and otherwise adds no finding.
// systemd removes the driver's sockets when the driver stops, so a missing socket means that the driver is not running. The
// driver does not run as root, so it can send claims to metalplugd only through the claims socket. The driver reports its
// identity to metalplugd, together with the reason if it cannot publish the devices.
func (d *doctor) checkClaims() (fine string) {
	if !slices.ContainsFunc(d.config.Resources, func(r config.Resource) bool { return r.Serve == config.ServeDRA }) {
		return ""
	}
	if !d.exists(driverProgram) {
		d.fail("apt-get install metalplug-dra; or dnf install metalplug-dra", "%s is missing: no pod gets a device through a claim", driverProgram)
		return ""
	}
	d.checkSocket(filepath.Join(d.config.Paths.PodResources, "../../plugins_registry/metalplug.io-reg.sock"), "metalplug-dra is not running", startDriver)
	d.checkSocket(filepath.Join(d.config.Paths.Run, "claims.sock"), "metalplugd accepts no claims from metalplug-dra",
		"systemctl restart metalplugd, which starts metalplugd-claims.socket; if that fails: journalctl -u metalplugd-claims.socket -e")
	switch driver := d.status.Driver; {
	case !d.exists(fmt.Sprintf("/proc/%d", driver.PID)): // systemd holds the sockets open while a driver fails to start
		d.fail(startDriver, "metalplug-dra is not running, or has not reported its identity to metalplugd")
	case driver.Problem != "":
		d.fail(renewIdentity, "metalplug-dra %s: %s", driver.Identity, driver.Problem)
	}
	return "metalplug-dra " + d.status.Driver.Identity
}

// startDriver contains the command that starts the driver, and the command that shows why the driver does not start.
const startDriver = "systemctl enable --now metalplug-dra; if that fails: journalctl -u metalplug-dra -e"

// renewIdentity contains the commands that help if the API server refuses the slices.
const renewIdentity = "if the identity has expired or is refused: create a token for this node as metalplug-dra(8) describes, then " +
	"systemctl restart metalplug-dra; if the Node is not found: systemctl restart kubelet; if DRAConsumableCapacity is off: enable this " +
	"feature gate in the API server and the scheduler, then systemctl restart metalplug-dra; otherwise: journalctl -u metalplug-dra -e"
