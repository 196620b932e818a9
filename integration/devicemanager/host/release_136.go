// SPDX-License-Identifier: Apache-2.0

//go:build !k8s131 && !k8s133 && !k8s134 && !k8s135

package host

// Release is the Kubernetes release that this package was built from. Its
// kubelet Crashes if an ID leaves the list during its Allocate, and KeepsLast:
// what the last pod has counts as taken until another is admitted.
const (
	Release   = "v1.36.3"
	Crashes   = true
	KeepsLast = false
)
