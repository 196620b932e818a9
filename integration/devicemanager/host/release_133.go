// SPDX-License-Identifier: Apache-2.0

//go:build k8s133

package host

// Release is the Kubernetes release that this package was built from. Crashes reports whether its kubelet crashes if an
// ID leaves the list during the Allocate of that ID. KeepsLast reports whether the devices of the last pod count as taken
// until another pod is admitted.
const (
	Release   = "v1.33.13"
	Crashes   = false
	KeepsLast = false
)
