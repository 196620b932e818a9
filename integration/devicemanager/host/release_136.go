// SPDX-License-Identifier: Apache-2.0

//go:build !k8s131 && !k8s133 && !k8s134 && !k8s135

package host

// Release is the Kubernetes release that this package was built from. Crashes reports whether its kubelet crashes if an
// ID leaves the list during the Allocate of that ID. KeepsLast reports whether the devices of the last pod count as taken
// until another pod is admitted.
const (
	Release   = "v1.36.3"
	Crashes   = true
	KeepsLast = false
)
