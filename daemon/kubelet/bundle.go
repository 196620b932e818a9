// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"strings"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/device"
)

// membersKey is the first part of the key of the annotation that lists the members of a bundle. The second part is the ID of the
// bundle.
const membersKey = "metalplug.io/"

// Annotation returns the annotation that lists the members of a container's bundle. The kubelet saves the annotation in its
// checkpoint. If metalplugd loses its own state, it can restore the members from there.
func Annotation(id string, members []Member) (key, value string) {
	texts := make([]string, len(members))
	for i, m := range members {
		texts[i] = m.Resource + "=" + m.ID
	}
	return membersKey + id, strings.Join(texts, ",")
}

// membersOf returns the members of a bundle from an answer in the kubelet's checkpoint. If the device is not a bundle, the result
// is nil.
func membersOf(id string, answer []byte) (members []Member) {
	var kept pluginapi.ContainerAllocateResponse
	if !strings.HasPrefix(id, device.BundlePrefix) || proto.Unmarshal(answer, &kept) != nil {
		return nil
	}
	for text := range strings.SplitSeq(kept.GetAnnotations()[membersKey+id], ",") {
		if resource, member, ok := strings.Cut(text, "="); ok {
			members = append(members, Member{Resource: resource, ID: member})
		}
	}
	return members
}
