// SPDX-License-Identifier: Apache-2.0

//go:build k8s133

package host

// Release is the Kubernetes release that this package was built from. Its
// kubelet Crashes if an ID leaves the list during its Allocate, and KeepsLast:
// what the last pod has counts as taken until another is admitted.
const (
	Release   = "v1.33.13"
	Crashes   = false
	KeepsLast = false
)
