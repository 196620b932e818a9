// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/device"
)

// Known contains what the kubelet has recorded about a device that pods hold.
type Known struct {
	NUMANode int      // -1 if unknown
	As       []string // IDs that pods hold: the device's own ID, IDs of its shares, or its bundle's ID
	Pods     []string // UIDs of these pods
	Members  []Member // members of a bundle, if the kubelet knows them
}

// Member names a device and its resource. The checkpoint uses a Member for a member of a bundle. A Member can also name a bundle
// and the bundle's resource.
type Member struct {
	Resource string `json:"resource"`
	ID       string `json:"id"`
}

// CheckpointDevices returns the devices that pods hold according to the kubelet's checkpoint in dir. The key of the outer map is
// the resource, and the key of the inner map is the device ID. metalplugd must list all of these devices, even if its own state
// does not contain them.
func CheckpointDevices(dir string) (map[string]map[string]Known, error) {
	all, _, err := checkpoint.Read(dir)
	devices := make(map[string]map[string]Known)
	for _, g := range all {
		if devices[g.ResourceName] == nil {
			devices[g.ResourceName] = make(map[string]Known)
		}
		known := devices[g.ResourceName][checkpoint.Parent(g.Share)]
		devices[g.ResourceName][checkpoint.Parent(g.Share)] = Known{
			NUMANode: g.Node, As: append(known.As, g.Share), Pods: append(known.Pods, g.PodUID), Members: membersOf(g.Share, g.AllocResp),
		}
	}
	return devices, err
}

// Owners maps each device ID to the UIDs of the pods that hold the device, according to the kubelet's checkpoint in dir.
func Owners(dir string) (map[string][]string, error) {
	owners, _, err := readOwners(dir)
	return owners, err
}

// readOwners returns the same map as Owners, and also the time when the kubelet wrote the checkpoint.
func readOwners(dir string) (map[string][]string, time.Time, error) {
	all, written, err := checkpoint.Read(dir)
	owners := make(map[string][]string)
	for _, g := range all {
		owners[checkpoint.Parent(g.Share)] = append(owners[checkpoint.Parent(g.Share)], g.PodUID)
	}
	return owners, written, err
}

// GivenByOthers returns the containers that got devices of a resource from another plugin. The keys of the result identify the
// containers. Each value is the ID of a device that the container got. In the kubelet's checkpoint, an answer from another plugin
// lacks the variable that metalplug sets.
func GivenByOthers(dir, resource, variable string) (map[string]string, error) {
	all, _, err := checkpoint.Read(dir)
	others := make(map[string]string)
	for _, g := range all {
		var answer pluginapi.ContainerAllocateResponse
		if g.ResourceName != resource || g.AllocResp == nil || proto.Unmarshal(g.AllocResp, &answer) != nil {
			continue
		}
		if _, own := answer.GetEnvs()[variable]; !own {
			others[g.PodUID+"/"+g.ContainerName] = g.Share
		}
	}
	return others, err
}

// membersKey is the first part of the key of the annotation that lists a bundle's members. The second part is the bundle's ID.
const membersKey = "metalplug.io/"

// Annotation returns the annotation that lists the members of a container's bundle. The kubelet saves the annotation in its
// checkpoint, so that metalplugd can restore the members from there if it loses its own state.
func Annotation(id string, members []Member) (key, value string) {
	texts := make([]string, len(members))
	for i, m := range members {
		texts[i] = m.Resource + "=" + m.ID
	}
	return membersKey + id, strings.Join(texts, ",")
}

// membersOf returns a bundle's members from an answer in the kubelet's checkpoint. If the device is not a bundle, the result is
// nil.
func membersOf(id string, answer []byte) (members []Member) {
	var saved pluginapi.ContainerAllocateResponse
	if !strings.HasPrefix(id, device.BundlePrefix) || proto.Unmarshal(answer, &saved) != nil {
		return nil
	}
	for text := range strings.SplitSeq(saved.GetAnnotations()[membersKey+id], ",") {
		if resource, member, ok := strings.Cut(text, "="); ok {
			members = append(members, Member{Resource: resource, ID: member})
		}
	}
	return members
}
