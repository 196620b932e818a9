// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// checkKubelet looks at the kubelet's directory and socket. The kubelet makes the directory at its first start and the
// socket at each, and leaves the socket behind when it ends; whether somebody answers there is seen by the
// registrations.
func (d *doctor) checkKubelet() []finding {
	const check = "kubelet"
	dir := d.config.Paths.DevicePlugins
	socket := filepath.Join(dir, "kubelet.sock")
	info, err := os.Stat(d.path(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail(check, "start it: systemctl start kubelet, or k3s, k3s-agent, rke2-agent, k0sworker, microshift"+elsewhere(dir),
			"its directory %s is not there: the kubelet has never run", dir)
	case errors.Is(err, fs.ErrPermission):
		return skip(check, d.unread(err, ""), "%s: %v", dir, plainCause(err))
	case err != nil:
		return fail(check, "ls -ld "+dir+elsewhere(dir), "%s: %v", dir, plainCause(err))
	case !info.IsDir():
		return fail(check, "move it away and restart the kubelet, which makes the directory"+elsewhere(dir), "%s is no directory", dir)
	}
	switch info, err := os.Stat(d.path(socket)); {
	case errors.Is(err, fs.ErrPermission):
		return skip(check, d.unread(err, ""), "%s: permission denied", socket)
	case err != nil:
		return fail(check, "systemctl status kubelet", "%s is not there: the kubelet is not running", socket)
	case info.Mode().Type() != fs.ModeSocket:
		return fail(check, "remove it and restart the kubelet", "%s is no socket", socket)
	}
	return ok(check, "%s is there", socket)
}

// elsewhere is what more to do where the kubelet's directory is not there and is not the one that every kubelet has.
func elsewhere(dir string) string {
	if dir == devicePluginDir {
		return ""
	}
	return "; or remove device_plugins from [paths]: the kubelet always uses " + devicePluginDir
}

// checkRegistration looks at both halves of how a resource stands with the kubelet: that it has accepted the
// registration, and that it has dialled back and keeps its stream open. Only the second makes devices allocatable.
func (d *doctor) checkRegistration() []finding {
	const check = "registration"
	if d.status == nil {
		return silent(check)
	}
	var found []finding
	for _, r := range d.status.Resources {
		switch {
		case r.Held != "":
			found = append(found, warn(check, endOther, "%s: held back: %s", r.Name, r.Held)...)
		case r.Connected:
			found = append(found, ok(check, "%s: registered, and the kubelet's stream is open", r.Name)...)
		case !expected(r):
			found = append(found, ok(check, "%s: no device, so the kubelet is not told of it", r.Name)...)
		case r.Registered:
			const text = "registered, but the kubelet has opened no stream"
			found = append(found, fail(check, reconnect(text), "%s: %s", r.Name, text)...)
		default:
			found = append(found, fail(check, reconnect(r.Complaint), "%s: the kubelet does not know it%s", r.Name, after(r.Complaint))...)
		}
	}
	return found
}

// checkCounts compares what the kubelet counts with what is offered. The daemon asks the kubelet, whose socket is for
// root (kubelet, PodResources v1, GetAllocatableResources). A difference is normal for the milliseconds that a list
// takes.
func (d *doctor) checkCounts() []finding {
	const check = "kubelet's count"
	if d.status == nil {
		return silent(check)
	}
	var answer control.Counted
	if err := d.client.Get(d.ctx, "/v1/kubelet", &answer); err != nil {
		return warn(check, "see whether the kubelet runs, and paths.pod_resources", "it cannot be asked: %v", err)
	}
	if answer.Unknown != "" {
		return warn(check, "see to it that no other plugin serves these resources", "%s", answer.Unknown)
	}
	var found []finding
	for _, r := range d.status.Resources {
		if id := answer.Foreign[r.Name]; r.Connected && id != "" {
			found = append(found, fail(check, "end the other plugin; or name the resource differently, by a [[resource]] of your own",
				"%s: the kubelet counts %s, which is no device of ours: another plugin has registered the resource too", r.Name, id)...)
		} else if ours, theirs := r.Healthy*max(1, r.Shares), answer.Allocatable[r.Name]; r.Connected && ours != theirs {
			found = append(found, fail(check, "systemctl restart metalplugd; if that does not help, systemctl restart kubelet",
				"%s: %d healthy devices are offered, the kubelet counts %d", r.Name, ours, theirs)...)
		}
	}
	if len(found) == 0 {
		return ok(check, "it is the same as ours")
	}
	return found
}

// checkCheckpoint looks for devices that the kubelet remembers and nobody knows: their pods cannot start. The daemon
// takes what the checkpoint names into its offer when it starts, so that this is a checkpoint of another machine or a
// resource that was configured since.
func (d *doctor) checkCheckpoint() []finding {
	const check = "kubelet's checkpoint"
	dir := d.path(d.config.Paths.DevicePlugins)
	_, err := os.Lstat(filepath.Join(dir, plugin.CheckpointFile))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return ok(check, "there is none: the kubelet has given no device to a pod yet")
	}
	remembered, err := plugin.Remembered(dir)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return skip(check, d.unread(err, ""), "the kubelet's file is for root: %v", plainCause(err))
	case err != nil:
		return fail(check, "stop the kubelet, move the file away, start it: its pods are admitted anew", "%v", err)
	case d.status == nil:
		return silent(check)
	}
	known := make(map[string]bool)
	for _, v := range d.devices {
		known[v.ID] = true
	}
	var found []finding
	for _, r := range d.status.Resources {
		for _, id := range slices.Sorted(maps.Keys(remembered[r.Name])) {
			if !known[id] {
				found = append(found, fail(check, "delete the pod that has it: kubectl get pods -A --field-selector spec.nodeName=$HOSTNAME",
					"%s: the kubelet remembers %s for a pod, which is no device of this machine", r.Name, id)...)
			}
		}
	}
	if len(found) == 0 {
		return ok(check, "every device that it names is known")
	}
	return found
}

// checkRefused reads what the daemon remembers, for the kubelet tells nobody without an API server. It tells of
// containers that did not get their devices: their pods are in UnexpectedAdmissionError.
func (d *doctor) checkRefused() []finding {
	const check = "refused containers"
	if d.status == nil {
		return silent(check)
	}
	if len(d.status.Refused) == 0 {
		return ok(check, "none of the last ones")
	}
	var found []finding
	for _, r := range d.status.Refused {
		state := "the pod is in UnexpectedAdmissionError"
		if r.Call != "Allocate" {
			state = "the pod waits in CreateContainerConfigError"
		}
		found = append(found, warn(check, "cure the cause; a pod in UnexpectedAdmissionError has to be deleted",
			"%s ago, %s: %s (%s)", age(time.Since(r.Time)), r.Resource, r.Reason, state)...)
	}
	return found
}

// plainCause drops the operation and the path from an error of the os package.
func plainCause(err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
