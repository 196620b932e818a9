// SPDX-License-Identifier: Apache-2.0

//go:build k8s131

package host

// Release is the Kubernetes release that this package was built from. Crashes reports whether its kubelet crashes if an
// ID leaves the list during the Allocate of that ID. KeepsLast reports whether the devices of the last pod count as taken
// until another pod is admitted.
const (
	Release   = "v1.31.14"
	Crashes   = false
	KeepsLast = true
)
